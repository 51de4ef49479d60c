"""What is in a model file, what it needs, and whether this build can run it: the facts of ``kinetic info``.

Reads metadata only, and imports NumPy only for models of a known family.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kinetic.errors import Malformed, UsageError
from kinetic.gguf import TYPES, Gguf, type_name
from kinetic.loader import LoadedBundle, LoadedFile, open_model_file

if TYPE_CHECKING:
    from kinetic.models.family import Family
    from kinetic.text.tokenizer import Tokenizer

KV_STEP = 256
"""Key/value memory grows by this many positions."""

KV_BYTES = 2
"""A key or value is a float16."""


def describe(path: str | os.PathLike[str], context: int = 0) -> dict[str, Any]:
    """Facts about a model file or bundle, as plain data for JSON; what the file doesn't say is None.

    ``context`` is what memory is worked out for, 0 the model's own. Raises
    FileProblem, MalformedGguf, UsageError for a context the model can't have, and
    what a bundle is refused for. Of a bundle it checks all that is shown, and no weights.
    """
    with open_model_file(path, check="none") as loaded:
        reasons: list[str] = []
        family, tokenizer = _try_family(loaded, reasons), _try_tokenizer(loaded.gguf, reasons)
        reasons += formats_not_built_in(loaded.gguf) if family else []
        facts = {"bundle": _bundle(loaded)} | _file(loaded.gguf) | _shape(loaded.gguf)
        facts["tokenizer"] = _tokenizer(loaded.gguf, tokenizer)
        facts["template"] = _template(loaded.gguf, tokenizer, reasons)
        facts["end_tokens"] = _named(tokenizer, sorted(tokenizer.end_tokens)) if tokenizer else []
        facts["memory"] = _memory(facts, family, context)
        facts["runnable"] = not reasons
        facts["reasons"] = reasons
        odd = loaded.bundle.warnings if isinstance(loaded, LoadedBundle) else ()
        facts["warnings"] = [*odd, *loaded.gguf.warnings, *(tokenizer.warnings if tokenizer else ())]
        return facts


def _bundle(loaded: LoadedFile) -> dict[str, Any] | None:
    """What the bundle around a model says, and what its signatures are worth with no key pinned."""
    if not isinstance(loaded, LoadedBundle):
        return None
    bundle = loaded.bundle
    said = {name: bundle.manifest[name] for name in ("name", "release", "file", "sources", "profiles", "derivation")}
    return said | {
        "manifest_digest": bundle.manifest_digest,
        "size": bundle.status.st_size,
        "sections": [section._asdict() for section in bundle.sections],
        "signers": bundle.signers,
        "signature": bundle.standing.sentence if bundle.standing else "",
    }


# --- can it run? ---


def _try_family(loaded: LoadedFile, reasons: list[str]) -> Family | None:
    from kinetic import models

    try:
        return models.build(loaded.gguf, loaded.weights)
    except Malformed as error:
        reasons.append(str(error))
        return None


def _try_tokenizer(gguf: Gguf, reasons: list[str]) -> Tokenizer | None:
    from kinetic.text import load_tokenizer

    try:
        return load_tokenizer(gguf.metadata)
    except Malformed as error:
        reasons.append(str(error))
        return None


def formats_not_built_in(gguf: Gguf) -> Iterator[str]:
    """One sentence for each weight format that this build can't compute with and that a used tensor has."""
    from kinetic.formats import RUNNABLE
    from kinetic.models.family import UNUSED

    used = [tensor for tensor in gguf.tensors.values() if not tensor.name.endswith(UNUSED)]
    for ggml_type in sorted({tensor.ggml_type for tensor in used} - RUNNABLE):
        names = [tensor.name for tensor in used if tensor.ggml_type == ggml_type]
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"weight format {type_name(ggml_type)}, of {names[0]}{others}, is not built in yet"


# --- facts ---


def _file(gguf: Gguf) -> dict[str, Any]:
    mix: dict[str, dict[str, int]] = {}
    for tensor in gguf.tensors.values():
        entry = mix.setdefault(type_name(tensor.ggml_type), {"tensors": 0, "parameters": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["parameters"] += _count(tensor.shape)
        entry["bytes"] += tensor.nbytes if tensor.ggml_type in TYPES else 0
    return {
        "files": [str(path) for path in gguf.paths],
        "file_size": gguf.size,
        "gguf_version": gguf.version,
        "architecture": _scalar(gguf, "general.architecture"),
        "name": _scalar(gguf, "general.name"),
        "parameters": sum(entry["parameters"] for entry in mix.values()),
        "format_mix": dict(sorted(mix.items(), key=lambda item: -item[1]["bytes"])),
    }


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _shape(gguf: Gguf) -> dict[str, Any]:
    """Numbers under the architecture's own keys, whether this build knows the architecture or not."""
    prefix = f"{_scalar(gguf, 'general.architecture')}."
    width, heads = _scalar(gguf, prefix + "embedding_length"), _each(gguf, prefix + "attention.head_count")
    head_width = _scalar(gguf, prefix + "attention.key_length")
    if head_width is None and isinstance(width, int) and isinstance(heads, int) and heads:
        head_width = width // heads
    kv_heads = _each(gguf, prefix + "attention.head_count_kv")
    rotated = _scalar(gguf, prefix + "rope.dimension_count")
    return {
        "context_length": _scalar(gguf, prefix + "context_length"),
        "layers": _scalar(gguf, prefix + "block_count"),
        "width": width,
        "ffn_width": _each(gguf, prefix + "feed_forward_length"),
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_width": head_width,
        "experts": _scalar(gguf, prefix + "expert_count"),
        "window": _scalar(gguf, prefix + "attention.sliding_window"),
        "rope": {
            "base": _scalar(gguf, prefix + "rope.freq_base"),
            "width": head_width if rotated is None else rotated,
            "scaling": _scalar(gguf, prefix + "rope.scaling.type"),
            "factor": _scalar(gguf, prefix + "rope.scaling.factor"),
            "original_context": _scalar(gguf, prefix + "rope.scaling.original_context_length"),
        },
    }


def _scalar(gguf: Gguf, key: str) -> int | float | bool | str | None:
    value = gguf.metadata.get(key)
    return value if isinstance(value, (int, float, bool, str)) else None


def _each(gguf: Gguf, key: str) -> Any:
    """A number, or the list of a model whose layers differ."""
    value = gguf.metadata.get(key)
    if value is None or isinstance(value, (int, float, bool, str)):
        return value
    numbers = list(value)
    return numbers[0] if numbers and len(set(numbers)) == 1 else numbers


def _tokenizer(gguf: Gguf, tokenizer: Tokenizer | None) -> dict[str, Any]:
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    bos = eos = None
    if tokenizer:
        bos, eos = (_named(tokenizer, [] if token is None else [token]) for token in (tokenizer.bos, tokenizer.eos))
    return {
        "model": _scalar(gguf, "tokenizer.ggml.model"),
        "pre": _scalar(gguf, "tokenizer.ggml.pre"),
        "vocabulary": None if tokens is None or isinstance(tokens, (int, float, str)) else len(tokens),
        "bos": bos[0] if bos else None,
        "eos": eos[0] if eos else None,
        "add_bos": tokenizer.add_bos if tokenizer else None,
    }


def _named(tokenizer: Tokenizer, ids: list[int]) -> list[dict[str, Any]]:
    return [{"id": token, "text": tokenizer.piece(token, special=True).decode("utf-8", "replace")} for token in ids]


def _template(gguf: Gguf, tokenizer: Tokenizer | None, reasons: list[str]) -> str | None:
    """The source of the chat template, or None."""
    source = gguf.metadata.get("tokenizer.chat_template")
    if tokenizer:
        from kinetic.text import load_template

        try:
            load_template(gguf.metadata, tokenizer)
        except Malformed as error:
            reasons.append(str(error))
    return source if isinstance(source, str) else None


def _memory(facts: dict[str, Any], family: Family | None, context: int) -> dict[str, int | None]:
    """Bytes. Weights take about what they take in the file; keys and values of all layers are kept in float16;
    recurrent states, in float32, are counted with them."""
    longest = family.context_length if family else facts["context_length"]
    if context < 0 or (isinstance(longest, int) and context > longest):
        raise UsageError(f"the context must be from 0 to the model's {longest}, not {context}", name="BAD_CONTEXT")
    positions = context or longest
    weights = sum(entry["bytes"] for entry in facts["format_mix"].values())
    if not family:
        return {"context": positions, "weights": weights, "keys_and_values": None, "total": None}
    each = sum(layer.kv_heads * (layer.head_dim + layer.value_width) * KV_BYTES for layer in family.attention)
    cache = -(-positions // KV_STEP) * KV_STEP * each + sum(4 * state.size for state in family.states)
    return {"context": positions, "weights": weights, "keys_and_values": cache, "total": weights + cache}
