"""Model files that are well formed and make no sense: settings, tensors, vocabularies; and files that are no models."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from conformance.attacks.attack import Attack
from conformance.attacks.tiny_model import (
    BYTE,
    END,
    FFN,
    KINDS,
    Q8_0,
    Q8_0_BLOCK,
    TOKENS,
    VOCABULARY,
    WIDTH,
    Typed,
    tiny_model,
)

USE = "conformance.attacks.use"
OPEN, ASK, DESCRIBE = ((USE, action, "m.gguf") for action in ("open", "ask", "describe"))

NAN, INFINITY = float("nan"), float("inf")
HEADS, KV_HEADS = "llama.attention.head_count", "llama.attention.head_count_kv"
UP, DOWN, TABLE = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "token_embd.weight"
VOCAB = "tokenizer.ggml."

Row = tuple[str, int, str, str, bytes]
"""Name, number, what, the name of the refusal, the file."""


def attacks() -> Iterator[Attack]:
    for name, number, what, reason, data in (*_settings(), *_tensors(), *_special_tokens(), *_vocabularies()):
        yield Attack(f"model-{name}", [number], what, OPEN, _file(data), 11, f" {reason}: ")
    yield from _odd_vocabularies()
    yield from _not_finite()
    yield from _merging()
    yield from _no_models()


def _file(data: bytes) -> Callable[[Path], None]:
    def write(at: Path) -> None:
        (at / "m.gguf").write_bytes(data)

    return write


def _settings() -> Iterator[Row]:
    rows: list[tuple[str, int, str, str, dict[str, Any]]] = [
        ("no-heads", 34, "No heads at all.", "BAD_SETTING", {HEADS: 0}),
        ("odd-heads", 34, "A width that three heads can't share.", "BAD_HEAD_COUNT", {HEADS: 3, KV_HEADS: 3}),
        ("more-kv-heads", 34, "More key heads than heads.", "BAD_HEAD_COUNT", {KV_HEADS: 2}),
        ("no-kv-heads", 34, "No key heads.", "BAD_SETTING", {KV_HEADS: 0}),
        ("no-layers", 34, "No layers.", "BAD_SETTING", {"llama.block_count": 0}),
        ("many-layers", 34, "2^31 layers.", "BAD_SETTING", {"llama.block_count": 2**31}),
        ("absent-layers", 34, "4,096 layers, one of which is there.", "MISSING_TENSOR", {"llama.block_count": 4096}),
        ("long-context", 34, "A context of 2^63.", "BAD_SETTING", {"llama.context_length": Typed(2**63, "UINT64")}),
        ("negative-context", 34, "A negative context.", "BAD_SETTING", {"llama.context_length": -1}),
        ("no-width", 34, "A width of 0.", "BAD_SETTING", {"llama.embedding_length": 0}),
        ("wide", 34, "A width of 2^32 - 1.", "BAD_SETTING", {"llama.embedding_length": 2**32 - 1}),
        ("heads-as-text", 34, "A number of heads that is a text.", "BAD_KEY_TYPE", {HEADS: "1"}),
        ("heads-as-flag", 34, "A number of heads that is a flag.", "BAD_KEY_TYPE", {HEADS: True}),
        ("no-epsilon", 34, "A norm without its epsilon.", "MISSING_KEY",
         {"llama.attention.layer_norm_rms_epsilon": None}),
        ("rope-nan", 34, "Rotations of a base that is no number.", "BAD_SETTING", {"llama.rope.freq_base": NAN}),
        ("rope-odd", 34, "Rotations of an odd width.", "BAD_ROPE_WIDTH", {"llama.rope.dimension_count": 31}),
        ("rope-wide", 34, "Rotations wider than a head.", "BAD_ROPE_WIDTH", {"llama.rope.dimension_count": 64}),
        ("rope-endless", 34, "Positions divided by infinity.", "BAD_SETTING",
         {"llama.rope.scaling.factor": INFINITY}),
        ("experts", 35, "Three experts used of two.", "BAD_SETTING",
         {"llama.expert_count": 2, "llama.expert_used_count": 3}),
        ("experts-unused", 35, "Two experts, none used.", "BAD_SETTING",
         {"llama.expert_count": 2, "llama.expert_used_count": 0}),
        ("short-list", 35, "Key heads for two of three layers.", "BAD_SETTING",
         {"llama.block_count": 3, KV_HEADS: [1, 1]}),
        ("empty-list", 35, "A list of key heads that is empty.", "BAD_SETTING", {KV_HEADS: []}),
        ("list-of-zeros", 35, "A list of key heads that holds 0.", "BAD_SETTING", {KV_HEADS: [0]}),
        ("list-of-texts", 35, "A list of key heads that holds a text.", "BAD_SETTING", {KV_HEADS: ["1"]}),
        ("list-of-halves", 35, "A list of key heads that holds 1.5.", "BAD_SETTING", {KV_HEADS: [1.5]}),
        ("list-of-flags", 35, "A list of key heads that holds a flag.", "BAD_SETTING", {KV_HEADS: [True]}),
        ("kv-heads-as-flag", 34, "A number of key heads that is a flag.", "BAD_SETTING", {KV_HEADS: True}),
        ("architecture", 39, "An architecture nobody knows.", "UNKNOWN_ARCHITECTURE", {"general.architecture": "gpt9"}),
        ("architecture-path", 39, "An architecture that is a path to a module.", "UNKNOWN_ARCHITECTURE",
         {"general.architecture": "../../os"}),
        ("architecture-module", 39, "An architecture that is a module's name.", "UNKNOWN_ARCHITECTURE",
         {"general.architecture": "family"}),
        ("architecture-other", 39, "An architecture with the keys of another.", "MISSING_KEY",
         {"general.architecture": "gemma3"}),
        ("architecture-number", 39, "An architecture that is a number.", "BAD_KEY_TYPE",
         {"general.architecture": 7}),
    ]  # fmt: skip
    for name, number, what, reason, keys in rows:
        yield name, number, what, reason, tiny_model(keys)


def _tensors() -> Iterator[Row]:
    short, long = (VOCABULARY - 1, WIDTH), (VOCABULARY + 1, WIDTH)
    yield "few-rows", 37, "A row of embeddings too few.", "VOCABULARY_SIZE", tiny_model(shapes={TABLE: short})
    yield "many-rows", 37, "A row of embeddings too many.", "VOCABULARY_SIZE", tiny_model(shapes={TABLE: long})
    yield "no-table", 37, "No embeddings.", "MISSING_TENSOR", tiny_model(shapes={TABLE: None})
    yield "no-tensor", 37, "A tensor that is missing.", "MISSING_TENSOR", tiny_model(shapes={UP: None})
    yield "extra", 37, "A tensor that nobody uses.", "EXTRA_TENSOR", tiny_model(shapes={"blk.0.evil.weight": (4,)})
    yield "extra-layer", 37, "A layer too many.", "EXTRA_TENSOR", tiny_model(shapes={"blk.1.ffn_up.weight": (4,)})
    yield "transposed", 37, "A tensor on its side.", "WRONG_SHAPE", tiny_model(shapes={DOWN: (FFN, WIDTH)})
    yield "flat", 37, "A matrix in one row.", "WRONG_SHAPE", tiny_model(shapes={DOWN: (FFN * WIDTH,)})
    yield "cube", 37, "A matrix of three dimensions.", "WRONG_SHAPE", tiny_model(shapes={DOWN: (WIDTH, FFN, 1)})


def _special_tokens() -> Iterator[Row]:
    for name, value in [
        ("past-the-end", VOCABULARY),
        ("negative", -1),
        ("all-ones", 2**32 - 1),
        ("text", "1"),
        ("flag", True),
    ]:
        for key in ("bos", "eos", "padding"):
            what = f"A special token that is none: {key} is {value!r}."
            changed = {f"{VOCAB}{key}_token_id": value}
            yield f"{key}-{name}", 40, what, "BAD_SPECIAL_TOKEN", tiny_model(changed)


def _vocabularies() -> Iterator[Row]:
    bytes_of = {"digits": "<0x-1>", "letters": "<0xGG>", "long": "<0x100>", "short": "<0x1>", "empty": ""}
    rows: list[tuple[str, int, str, str, dict[str, Any]]] = [
        ("few-kinds", 41, "A token without a type.", "LENGTH_MISMATCH", {"token_type": KINDS[:-1]}),
        ("many-kinds", 41, "A type without a token.", "LENGTH_MISMATCH", {"token_type": [*KINDS, 1]}),
        ("few-scores", 41, "Fewer scores than tokens.", "LENGTH_MISMATCH", {"scores": [0.0]}),
        ("score-nan", 41, "A score that is no number.", "BAD_SCORE", {"scores": [0.0] * (VOCABULARY - 1) + [NAN]}),
        ("score-text", 41, "Scores that are texts.", "BAD_SCORE", {"scores": ["0"] * VOCABULARY}),
        ("kinds-text", 41, "Types that are texts.", "BAD_TOKEN_TYPE", {"token_type": ["1"] * VOCABULARY}),
        *((f"byte-{name}", 42, f"A byte token that reads {text!r}.", "BAD_BYTE_TOKEN", _last_tokens("<0x00>", text))
          for name, text in bytes_of.items()),
        ("byte-twice", 42, "One byte in capitals and in small letters.", "BAD_BYTE_TOKEN",
         _last_tokens("<0x0a>", "<0x0A>")),
        ("charsmap-outside", 44, "A map of characters that points outside itself.", "BAD_NORMALIZER",
         {"precompiled_charsmap": Typed([255] * 8, "UINT8")}),
        ("charsmap-short", 44, "A map of characters of two bytes.", "BAD_NORMALIZER",
         {"precompiled_charsmap": Typed([0, 0], "UINT8")}),
        ("pre-unknown", 45, "A pre-tokenizer nobody knows.", "UNKNOWN_PRE_TOKENIZER", {"pre": "nonesuch"}),
        ("pre-number", 45, "A pre-tokenizer that is a number.", "UNKNOWN_PRE_TOKENIZER", {"pre": 7}),
        ("tokenizer-unknown", 45, "A tokenizer nobody knows.", "UNKNOWN_TOKENIZER", {"model": "nonesuch"}),
        ("tokenizer-list", 45, "A tokenizer's name that is a list.", "UNKNOWN_TOKENIZER", {"model": ["gpt2"]}),
        ("long-token", 46, "A token of a megabyte.", "TOKEN_TOO_LONG", {"tokens": [*TOKENS[:-1], "x" * 2**20]}),
        ("tokens-numbers", 41, "Tokens that are numbers.", "BAD_TOKEN_LIST", {"tokens": [0] * VOCABULARY}),
        ("merges-empty", 41, "No merges.", "MISSING_MERGES", {"merges": Typed([], "STRING")}),
        ("merges-text", 41, "Merges that are one text.", "MISSING_MERGES", {"merges": 7}),
    ]  # fmt: skip
    for name, number, what, reason, keys in rows:
        yield name, number, what, reason, tiny_model({VOCAB + key: value for key, value in keys.items()})


def _last_tokens(*texts: str) -> dict[str, Any]:
    """The last tokens are byte tokens that read so."""
    kept = VOCABULARY - len(texts)
    ids = {"bos_token_id": None, "eos_token_id": None, "add_bos_token": None}
    return {"tokens": [*TOKENS[:kept], *texts], "token_type": [*KINDS[:kept], *[BYTE] * len(texts)], **ids}


def _odd_vocabularies() -> Iterator[Attack]:
    """46, 47: accepted, and what is odd is said; words stay words."""
    twice = tiny_model({f"{VOCAB}tokens": [*TOKENS[:255], TOKENS[0], *TOKENS[256:]]})
    empty = tiny_model({f"{VOCAB}tokens": ["", *TOKENS[1:]]})
    yield Attack("model-token-twice", [46], "Two tokens of one text.", ASK, _file(twice), 0, "repeat the text")
    yield Attack("model-token-empty", [46], "An empty token.", ASK, _file(empty), 0, "empty token")
    numbers = tiny_model({f"{VOCAB}merges": [1, 2]})
    yield Attack("model-merges-numbers", [41], "Merges that are numbers.", ASK, _file(numbers), 11, "MISSING_MERGES")
    template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    words = "<end><begin>"
    data = tiny_model({"tokenizer.chat_template": template})
    said = f"prompt {[*_ids(words), END]}"
    what = "Words that spell control tokens: they are tokenised as text."
    yield Attack("words-spell-control", [47], what, (*ASK, words), _file(data), 0, said)


def _ids(text: str) -> list[int]:
    """Of characters that are printable and ASCII."""
    return [TOKENS.index(character) for character in text]


def _not_finite() -> Iterator[Attack]:
    """38: scales are refused when the model is loaded; what only shows in the answer ends it without one."""
    for name, scale in [("nan", b"\x00\x7e"), ("infinite", b"\x00\x7c"), ("minus-infinite", b"\x00\xfc")]:
        blocks = (scale + bytes(Q8_0_BLOCK - 2)) * (VOCABULARY * WIDTH // 32)
        data = tiny_model(types={TABLE: Q8_0}, data={TABLE: blocks})
        what = f"Blocks whose scale is {name}."
        yield Attack(f"model-scale-{name}", [38], what, ASK, _file(data), 11, "UnsupportedModel NON_FINITE_SCALE:")
    for name, value in [("nan", NAN), ("negative", -1.0)]:
        data = tiny_model({"llama.attention.layer_norm_rms_epsilon": value})
        what = f"A norm whose epsilon is {name}."
        yield Attack(f"model-epsilon-{name}", [38], what, ASK, _file(data), 8, "NonFinite")


def _merging() -> Iterator[Attack]:
    """A word of 100,000 letters that merge into ever longer tokens must not take quadratic time."""
    letters = ["a" * 2**power for power in range(1, 15)]
    kept = VOCABULARY - 2 - len(letters)
    tokens = [*TOKENS[:kept], *letters, *TOKENS[-2:]]
    merges = [f"{letter[: len(letter) // 2]} {letter[: len(letter) // 2]}" for letter in letters]
    data = tiny_model({f"{VOCAB}tokens": tokens, f"{VOCAB}merges": merges})
    what = "A word of 100,000 letters, all of which merge."
    yield Attack("model-merges-deep", [46], what, (*ASK, "a" * 100_000), _file(data), 0, "prompt", seconds=10)
    data = tiny_model({f"{VOCAB}merges": ["x y"]})
    what = "A word of 100,000 letters, none of which merge: more than the context holds."
    yield Attack("model-merges-none", [46], what, (*ASK, "a" * 100_000), _file(data), 6, "PROMPT_TOO_LONG", seconds=10)


def _no_models() -> Iterator[Attack]:
    """113 to 115: other formats under a model's name are told by their content, and nothing in them runs."""
    header = b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    files = [
        ("pickle", 114, "A pickle that runs a command when it is loaded.", b"cos\nsystem\n(S'touch ran'\ntR."),
        ("pickle-2", 114, "The same in pickle's second protocol.", b"\x80\x02cos\nsystem\nU\ttouch ran\x85R."),
        ("zip", 114, "An archive, as of PyTorch or Keras.", b"PK\3\4" + bytes(200)),
        ("7z", 114, "Another archive.", b"7z\xbc\xaf\x27\x1c" + bytes(200)),
        ("hdf5", 114, "A file of HDF5.", b"\x89HDF\r\n\x1a\n" + bytes(200)),
        ("safetensors", 113, "Safetensors.", struct.pack("<Q", len(header)) + header + bytes(4)),
        ("safetensors-empty", 113, "Safetensors with a header of length 0.", struct.pack("<Q", 0)),
        ("safetensors-long", 113, "Safetensors with a header of 2^63 bytes.", struct.pack("<Q", 2**63) + header),
        ("onnx", 115, "ONNX with data in another file.", b"\x08\x07\x12\x01x\x3a\x10\x0a../../etc/passwd"),
    ]
    for name, number, what, data in files:
        for command in (("run", "m.gguf", "--device", "reference"), ("info", "m.gguf"), ("pull", "./m.gguf")):
            yield Attack(f"no-model-{name}-{command[0]}", [number], what, ("kinetic", *command), _file(data), 11)
        yield Attack(f"no-model-{name}", [number], what, DESCRIBE, _file(data), 11, "MalformedGguf ")
