"""Whole models run in every way that must not matter, and a digest of all that came out.

    python -m tests.support.whole_models FOLDER [fenv=MODE | control=HEX]...

writes the tiny models into FOLDER unless they are there, runs them and prints ``digest`` of each.
The arguments spoil the floating-point environment first, before anything is loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from kinetic import models
from kinetic.backends.base import Program
from kinetic.backends.control_word import default_rounding
from kinetic.bits import F32
from kinetic.engine import Engine
from kinetic.loader import LoadedFile, open_model_file
from kinetic.types import Batch, Request, Sampling
from tests.support.backends import loaded
from tests.support.blocks import integers
from tests.support.tiny_families import KINDS, write_tiny_family
from tests.support.tiny_latent import write_tiny_deepseek2, write_tiny_gpt_oss
from tests.support.tiny_models import (
    MIXTURES,
    write_tiny_gemma3,
    write_tiny_llama,
    write_tiny_mixture,
    write_tiny_qwen3,
)
from tests.support.tiny_recurrent import RECURRENT, write_tiny_recurrent

FLOAT_TYPES = {"": "F32", "attn_q": "F16", "ffn_up": "BF16", "ffn_down": "F16"}


def write_llama(path: Path) -> Path:
    """Formats of blocks of 32 and of 256 mixed in every layer, and F16 and BF16 at the ends."""
    return write_tiny_llama(path)


def write_floats(path: Path) -> Path:
    """No quantised weight; odd widths, biases, a tied table, scaled rotations."""
    return write_tiny_llama(
        path, seed=1, width=60, heads=6, kv_heads=2, head_dim=20, ffn=70, types=FLOAT_TYPES, tied=True, biases=True,
        rope_scale=2.0, rope_divisors=True,
    )  # fmt: skip


def write_gemma(path: Path) -> Path:
    """Windows of 64 keys in six of seven layers."""
    return write_tiny_gemma3(path, seed=2)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": write_llama,
    "floats": write_floats,
    "gemma3": write_gemma,
    "qwen3": write_tiny_qwen3,
} | {name: partial(write_tiny_family, architecture=name) for name in KINDS}
WRITERS |= {name: partial(write_tiny_mixture, name=name) for name in MIXTURES}
WRITERS |= {name: partial(write_tiny_recurrent, architecture=name) for name in RECURRENT}
WRITERS |= {"gpt-oss": write_tiny_gpt_oss, "deepseek2": write_tiny_deepseek2}
WRITERS["deepseek2-lite"] = partial(write_tiny_deepseek2, absorbed=False)

PROMPT_LENGTH, DECODED = 290, 14
LENGTH = PROMPT_LENGTH + DECODED
"""Past the end of the first chunk of keys, and past several windows."""


def tokens_of(stream: int, count: int = LENGTH) -> list[int]:
    """Tokens that every tiny vocabulary has."""
    return integers(stream, 3, 300, count).tolist()


@contextmanager
def program_of(file: LoadedFile, backend: str = "cpu", threads: int = 1) -> Iterator[Program]:
    with default_rounding():  # as the engine does
        family = models.build(file.gguf, file.weights)
    with loaded(family.forward, family.attention, backend, threads, family.states) as program:
        yield program


def feed(program: Program, tokens: Sequence[int], sizes: Iterable[int], start: int = 0, sequence: int = 0) -> F32:
    """Logits of all rows of ``tokens`` from position ``start`` on, fed in pieces of ``sizes`` (the last repeats)."""
    out = []
    done, size, remaining = 0, 1, iter(sizes)
    while done < len(tokens):
        size = next(remaining, size)
        piece = tuple(tokens[done : done + size])
        rows = range(len(piece))
        positions = tuple(start + done + i for i in rows)
        out.append(program.run(Batch(piece, positions, (sequence,) * len(piece), tuple(rows))))
        done += len(piece)
    return np.concatenate(out)


def prompt_then_decode(program: Program, tokens: Sequence[int], sizes: Iterable[int]) -> F32:
    """The prompt in pieces, then one token at a time, of a sequence begun afresh."""
    program.truncate(0, 0)
    prompt = feed(program, tokens[:PROMPT_LENGTH], sizes)
    return np.concatenate([prompt, feed(program, tokens[PROMPT_LENGTH:], [1], start=len(prompt))])


def digest(path: Path) -> str:
    """Of logits of prompt and decode in two chunkings and thread counts, and of an answer drawn at temperature 0.8."""
    tokens = tokens_of(100)
    hasher = hashlib.sha256()
    with open_model_file(path) as file:
        for threads, sizes in ((1, [100, 1, 7]), (2, [16])):
            with program_of(file, threads=threads) as program:
                hasher.update(prompt_then_decode(program, tokens, sizes).tobytes())
        engine = Engine(file.gguf, file.weights, threads=2)
        settings = Sampling(temperature=0.8, seed=5, repeat_penalty=1.1, top_p=0.9)
        for step in engine.generate(Request(tuple(tokens[:60]), settings, 20)):
            hasher.update(repr(step).encode())
        engine.close()
    return hasher.hexdigest()


def write_all(folder: Path) -> dict[str, Path]:
    """The tiny models in ``folder``, by name."""
    paths = {name: folder / f"{name}.gguf" for name in WRITERS}
    for name, path in paths.items():
        if not path.is_file():
            WRITERS[name](path)
    return paths


def spoil(argument: str) -> None:
    """``fenv=MODE`` sets a rounding mode, ``control=LIBRARY:HEX`` MXCSR with the function of a compiled library."""
    kind, _, value = argument.partition("=")
    if kind == "fenv":
        assert ctypes.CDLL("libm.so.6").fesetround(int(value, 16)) == 0
    else:
        library, _, word = value.rpartition(":")
        ctypes.CDLL(library).set_control_word(int(word, 16))


def main() -> None:
    paths = write_all(Path(sys.argv[1]))
    for argument in sys.argv[2:]:
        spoil(argument)
    print(" ".join(digest(path) for path in paths.values()))


if __name__ == "__main__":
    main()
