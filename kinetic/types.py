"""Frozen records that cross layers. They hold no arrays and no devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PROFILE = "kinetic-1"
"""Name of the arithmetic (docs/NUMERICS.md). A receipt can be rerun only under its own profile."""

SPEED_UPS = ("drafts", "warm", "shortlist")
"""What saves time, is on unless it is turned off by its name, and changes no bit."""


@dataclass(frozen=True)
class Sampling:
    """Settings that choose a token from a row of logits, with llama.cpp's defaults.

    Floats are rounded once to binary32 where they are used. ``top_k`` 0 means
    off, ``repeat_last_n`` and ``dry_penalty_last_n`` -1 mean the whole context
    and 0 means off, ``temperature`` <= 0 means the argmax with the lowest id.
    Off are ``typ_p`` 1 and, of the samplers after it, 0.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    typ_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", '"', "*", ":")
    """Texts. A request also holds the tokens they stand for (``Request.breakers``)."""
    seed: int = 0
    """Unsigned 64-bit. Drawing a fresh one is the caller's business; it is always recorded."""


@dataclass(frozen=True)
class Request:
    """One completion, in token ids only."""

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = -1
    """-1: until an end token or the context is full."""
    end_tokens: frozenset[int] = frozenset()
    completion_index: int = 0
    breakers: tuple[tuple[int, ...], ...] | None = None
    """Runs of tokens that stand for the breakers of DRY, where it is on and has any (kinetic.text.breakers)."""


@dataclass(frozen=True)
class RopeOverrides:
    """Settings of rotary positions in place of a file's, by llama.cpp's names. What is 0 or empty is as the file says;
    None says so where 0 is a setting. Floats are of binary32 value."""

    rope_scaling: str = ""
    """'none', 'linear' or 'yarn'."""
    rope_scale: float = 0.0
    """How many times longer the context may be; ``rope_freq_scale`` is 1 over it, and only one of them is given."""
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    """Context that the rotation was first made for."""
    yarn_ext_factor: float | None = None
    """How much of YaRN there is; 0 is none."""
    yarn_attn_factor: float | None = None
    """What cosines and sines are multiplied by, without YaRN."""
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None

    @property
    def factor(self) -> float:
        """What ``rope_scale`` or ``rope_freq_scale`` gives; 0 where neither does."""
        return 1.0 / self.rope_freq_scale if self.rope_freq_scale else self.rope_scale


@dataclass(frozen=True)
class Batch:
    """Rows for one forward pass. Row i is ``tokens[i]`` at ``positions[i]`` of sequence ``sequences[i]``.

    Positions of a sequence rise from row to row; all that stand before the first
    have been computed earlier. ``outputs`` are the row indices whose logits are wanted, ascending.
    For a mean and for attention that is not causal a batch must have the whole of each of its
    sequences, from position 0 on, its rows side by side.

    ``also[i]``, where there is any, are further sequences of which row i is a part: branches of a tree
    whose stem is computed once.
    """

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    sequences: tuple[int, ...]
    outputs: tuple[int, ...]
    also: tuple[tuple[int, ...], ...] = ()


def lengths(batch: Batch) -> dict[int, int]:
    """By sequence how many positions it has with this batch."""
    out: dict[int, int] = {}
    for sequence, position in zip(batch.sequences, batch.positions, strict=True):
        out[sequence] = max(out.get(sequence, 0), position + 1)
    for sequences, position in zip(batch.also, batch.positions, strict=bool(batch.also)):
        for sequence in sequences:
            out[sequence] = max(out.get(sequence, 0), position + 1)
    return out


@dataclass(frozen=True)
class Step:
    """One generated token. ``position`` is its index in the sequence (the number of tokens before it)."""

    token: int
    position: int
    runner_up: int
    """Second best of the logits after bias and penalties, or -1."""
    gap: float
    """Difference of the two best logits of the row."""
    commit: bytes = b""
    """Eight bytes of a digest of the row of logits, where one was asked for (ktc.digest.logits_digest)."""


@dataclass(frozen=True)
class ModelFile:
    """One file of a model, as a receipt names it."""

    name: str
    size: int
    blake3: str
    sha256: str


@dataclass(frozen=True)
class AdapterFile(ModelFile):
    """An adapter's file, and how much of it is added."""

    scale: float
    """Of binary32 value."""


@dataclass(frozen=True)
class ModelIdentity:
    architecture: str
    files: tuple[ModelFile, ...]


@dataclass(frozen=True)
class PackCache:
    """Where a backend may keep a model's weights in the form in which it uses them."""

    folder: str
    limit: int
    """Most bytes that all in this folder may take together."""
    known: str
    """Digest that names the content of the model's files, lower-case hex; "" if it isn't known yet."""
    find: Callable[[], str]
    """Gives that digest, by reading the files if need be. Raises KineticError if they were changed."""


@dataclass(frozen=True)
class PrefixCache:
    """Where an engine may keep what it computed of prompts, for the next start."""

    folder: str
    limit: int
    """Most bytes that all in this folder may take together."""
    secret: bytes = field(repr=False)
    """32 bytes of this user's, with which files are authenticated."""
    label: str
    """The model's name, for lists."""
    known: str
    """Digest that names the content of the model's files, of its adapters, and what else the answer depends on beside
    the engine; lower-case hex, "" if it isn't known yet."""
    find: Callable[[], str]
    """Gives that digest, by reading the files if need be. Raises KineticError if they were changed."""


STOP_REASONS = ("end", "stop", "length", "context", "interrupt")
"""end token, stop string, max_tokens reached, context full, interrupted by the user."""
