"""``kinetic models``: what is on this machine, and what the catalog offers."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from kinetic.cli.parser import Subcommands

HELP = "list the models on this machine and those that can be pulled by name"


def add(commands: Subcommands) -> None:
    parser = commands.add_parser("models", help=HELP, description=HELP.capitalize() + ".")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(main=main)


def main(options: Namespace) -> int:
    rows = list_models()
    if options.json:
        import json

        print(json.dumps(rows, ensure_ascii=False))
        return 0
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        state = row["path"] if row["pulled"] else f"kinetic pull {row['name']}"
        print(f"{row['name']:{width}}  {row['size'] / 1e6:8.1f} MB  {state}")
    return 0


def list_models() -> list[dict[str, Any]]:
    """Pulled models first, then the rest of the catalog; each by name."""
    from kinetic import store

    entries = store.catalog()
    rows = []
    for model in store.pulled():
        entry = entries.pop(model.name, {"title": "", "license": ""})
        about = {"title": entry["title"], "license": entry["license"]}
        rows.append({"name": model.name, "size": model.size, "pulled": True, "path": str(model.path), **about})
    for name, entry in sorted(entries.items()):
        about = {"title": entry["title"], "license": entry["license"]}
        rows.append({"name": name, "size": entry["size"], "pulled": False, "path": "", **about})
    return rows
