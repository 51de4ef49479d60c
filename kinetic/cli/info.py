"""``kinetic info``: what is in a model file, what it needs, and whether this build can run it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinetic.cli.parser import Subcommands

HELP = "show what is in a model file and what this build can run of it"

SHOWN = 60
"""Characters of a chat template."""


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("info", help=HELP, description=HELP.capitalize() + ".")
    parser.add_argument("file", metavar="FILE", help="a .gguf or .ktc file, or a name from `kinetic models`")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-c", "--ctx-size", type=int, default=0, metavar="N", help="memory at this context size")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    from kinetic.api.describe import describe
    from kinetic.store import resolve

    facts = describe(resolve(options.file), options.ctx_size)
    if options.json:
        import json

        print(json.dumps(facts, ensure_ascii=False))
        return 0
    rows = list(_rows(facts))
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        print(f"{label:{width}}  {_printable(text)}".rstrip())
    return 0


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and text of each line; what the file doesn't say has no line."""
    files, tokenizer, memory = facts["files"], facts["tokenizer"], facts["memory"]
    yield "file", Path(files[0]).name + (f" and {_counted(len(files) - 1, 'more part')}" if files[1:] else "")
    model = f"{_size(facts['file_size'])}, GGUF version {facts['gguf_version']}"
    yield "size", f"{_size(facts['bundle']['size'])}; the model in it {model}" if facts["bundle"] else model
    if facts["bundle"]:
        yield from _bundle(facts["bundle"])
    if facts["name"] is not None:
        yield "name", facts["name"]
    yield "architecture", facts["architecture"] or "not named"
    if facts["parameters"]:
        yield "parameters", f"{facts['parameters']:,}"
    for number, (name, entry) in enumerate(facts["format_mix"].items()):
        share = entry["parameters"] / max(facts["parameters"], 1)
        tensors = _counted(entry["tensors"], "tensor")
        yield ("" if number else "weights"), f"{name:6} {share:6.1%} in {tensors}, {_size(entry['bytes'])}"
    if facts["context_length"] is not None:
        yield "context", f"{_number(facts['context_length'])} tokens"
    yield from _shape(facts)
    yield "tokenizer", _tokenizer(tokenizer)
    embedding = facts["embedding"]
    if embedding is None or embedding["writes_text"]:
        yield "template", _template(facts["template"])
    if embedding and (not embedding["writes_text"] or embedding["pooling"] != "none"):
        yield "embeds", _embeds(embedding)
    if facts["end_tokens"] and (embedding is None or embedding["writes_text"]):
        yield "ends with", ", ".join(map(_token, facts["end_tokens"]))
    if memory["total"] is not None:
        parts = f"weights {_size(memory['weights'])}, keys and values {_size(memory['keys_and_values'])}"
        yield "memory", f"{_size(memory['total'])} at a context of {memory['context']:,}: {parts}"
    yield "runs here", "yes" if facts["runnable"] else "no"
    yield from (("", reason) for reason in facts["reasons"])
    for number, warning in enumerate(facts["warnings"]):
        yield ("" if number else "warnings"), warning


def _bundle(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the bundle around the model says. None of it is more than a claim of whoever signed it."""
    yield "bundle", f"{facts['name']}, release {facts['release']}, holds {facts['file']}"
    yield "manifest", facts["manifest_digest"]
    yield "signature", facts["signature"]
    leaves = sum(section["length"] // 32 for section in facts["sections"] if section["kind"] == "leaves")
    checks = f"each of {_counted(leaves, 'leaf')} when first used" if leaves else "all of it before use"
    yield "checks", checks.replace("leafs", "leaves")
    for number, profile in enumerate(facts["profiles"]):
        isa, cores = profile["isa"], _counted(profile["cores"], "core")
        used = f"{_counted(profile['threads'], 'thread')}, {profile['prompt_rows']} rows of a prompt"
        yield ("" if number else "profiles"), f"{profile['device']} ({isa}) with {cores}: {used}"
    for number, source in enumerate(facts["sources"]):
        yield ("" if number else "joined from"), f"{source['name']}, {_size(source['size'])}"
    for derivation in facts["derivation"]:
        made = " ".join(filter(None, (derivation["tool"], derivation["tool_version"], derivation["settings"])))
        yield "made by", f"{made}, from {', '.join(file['name'] for file in derivation['files']) or 'nothing named'}"


def _shape(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    counted = {"layers": "layer", "heads": "head", "kv_heads": "key/value head", "experts": "expert"}
    measured = {"width": "width", "head_width": "head width", "ffn_width": "feed-forward", "window": "sliding window"}
    parts = [_counted(facts[name], word) for name, word in counted.items() if facts[name]]
    parts += [f"{word} {_number(facts[name])}" for name, word in measured.items() if facts[name]]
    if parts:
        yield "shape", ", ".join(parts)
    rope = facts["rope"]
    if rope["base"] is not None:
        scaling = f"{rope['scaling']} scaling" if rope["scaling"] not in (None, "none") else "no scaling"
        factor = f" by {_number(rope['factor'])}" if rope["factor"] else ""
        original = f" from {_number(rope['original_context'])} tokens" if rope["original_context"] else ""
        yield "rope", f"base {_number(rope['base'])}, width {_number(rope['width'])}, {scaling}{factor}{original}"


def _counted(count: Any, word: str) -> str:
    return f"{_number(count)} {word}{'' if count == 1 else 's'}"


def _number(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(_number, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _tokenizer(facts: dict[str, Any]) -> str:
    if facts["model"] is None:
        return "none"
    pre = f" ({facts['pre']})" if facts["pre"] else ""
    parts = [f"{facts['model']}{pre}"]
    if facts["vocabulary"] is not None:
        parts.append(f"{facts['vocabulary']:,} tokens")
    if facts["bos"]:
        added = "" if facts["add_bos"] else ", not added to texts"
        parts.append(f"begins with {_token(facts['bos'])}{added}")
    return ", ".join(parts)


def _token(token: dict[str, Any]) -> str:
    return f"{token['text']} ({token['id']})"


def _embeds(facts: dict[str, Any]) -> str:
    parts = [f"pooling {facts['pooling']}"]
    parts += (
        [f"ranks documents{' by ' + '/'.join(facts['labels']) if facts['labels'] else ''}"] if facts["ranks"] else []
    )
    parts += [] if facts["writes_text"] else ["writes no text"]
    return ", ".join(parts)


def _template(source: str | None) -> str:
    if source is None:
        return "none: texts are completed as they are"
    beginning = " ".join(source.split())
    return f"{len(source):,} characters: {beginning[:SHOWN]}{'...' if len(beginning) > SHOWN else ''}"


def _size(count: int) -> str:
    if count >= 10**9:
        return f"{count / 1e9:,.2f} GB"
    return f"{count / 1e6:,.1f} MB" if count >= 10**6 else f"{count / 1e3:,.1f} kB"


def _printable(text: str) -> str:
    """A file's own words can't steer the terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
