"""``kinetic models``: what is on this machine, and what the catalog offers."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kinetic.cli.parser import Subcommands

HELP = "list the models on this machine and those that can be pulled by name"


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("models", help=HELP, description=HELP.capitalize() + ".", epilog=SOURCES)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


SOURCES = """\
Each is listed with its name, its size, whose it is, and its file or how to get it. Models of Ollama, of LM Studio and
in the Hugging Face cache (hf) are run where they are, by the name shown; nothing of theirs is ever changed.
"""


def main(options: Namespace) -> int:
    rows = list_models()
    if options.json:
        import json

        print(json.dumps(rows, ensure_ascii=False))
        return 0
    from receipts.terminal import printable

    width = max(len(row["name"]) for row in rows)
    for row in rows:
        state = row["path"] or f"kinetic pull {row['name']}"
        print(printable(f"{row['name']:{width}}  {row['size'] / 1e6:8.1f} MB  {row['source']:8}  {state}"))
    return 0


def list_models() -> list[dict[str, Any]]:
    """Pulled models first, then those of other programs, then the rest of the catalog; each by name.

    ``pulled`` is true of what is in our own models folder; ``path`` is "" of what is not on this machine.
    """
    from kinetic import local_models, store

    entries = store.catalog()
    rows = []
    for model in store.pulled():
        entry = entries.pop(model.name, {})
        rows.append(_row(model.name, model.size, str(model.path), "kinetic", entry))
    for local in local_models.list_local():
        rows.append(_row(local.name, local.size, str(local.path), local.source, {}))
    for name, entry in sorted(entries.items()):
        rows.append(_row(name, entry["size"], "", "catalog", entry))
    return rows


def _row(name: str, size: int, path: str, source: str, entry: dict[str, Any]) -> dict[str, Any]:
    about = {"title": entry.get("title", ""), "license": entry.get("license", "")}
    return {"name": name, "size": size, "source": source, "pulled": source == "kinetic", "path": path, **about}
