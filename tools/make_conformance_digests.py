"""Digests of the built-in models: ``python -m tools.make_conformance_digests [--device reference] [NAME...]``.

Writes conformance/recipes/digests.json anew: what every recipe's file, logits and answers are, values of functions,
draws of samplers, and the tokens that tokenizers give. Every device gives the same; ``--device reference`` asks the
definition, which takes minutes. A digest that changes means that a recipe or the arithmetic changed; a change
of bits needs a new profile name.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from conformance.answers import tokens_digest
from conformance.cases import digests, embeddings, functions, quantised, samplers, tokenizers
from conformance.recipes import DIGESTS, MIXED
from conformance.recipes.encoders import ENCODERS
from conformance.setting import Setting
from conformance.suite import opened
from kinetic.types import PROFILE


def main(arguments: list[str] | None = None) -> int:
    """Write what changed; 1 if a digest that was there did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*", help="recipes to compute; all by default")
    options = parser.parse_args(arguments)
    before = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.is_file() else {}
    made = compute(options.device, options.names, before)
    DIGESTS.write_text(dump(made), encoding="utf-8")
    changed = _changed(before, made)
    for name in changed:
        print(f"{name} changed: a recipe or the arithmetic is another, and a change of bits needs a new profile name")
    print(f"conformance digests: {len(made['recipes'])} models, {len(changed)} changed")
    return 1 if changed else 0


def dump(table: dict[str, Any]) -> str:
    return json.dumps(table, indent=1, sort_keys=True) + "\n"


def compute(
    device: str, names: list[str] | None = None, before: dict[str, Any] | None = None, *, only_models: bool = False
) -> dict[str, Any]:
    """The whole table. With ``names`` the other recipes' digests are those of ``before``, and what is no model, too,
    with ``only_models``."""
    before = before or {}
    kept = before.get("recipes", {}) if names else {}
    with opened(level="full", device=device, threads=1) as setting:
        found = {
            subject.name: dict(digests.measure(subject)._asdict())
            for subject in setting.built_in
            if not names or subject.name in names
        }
        others = before if only_models else _others(setting, device)
        return others | {"profile": PROFILE, "recipes": kept | found}


def _others(setting: Setting, device: str) -> dict[str, Any]:
    """Digests of what is no model."""
    return {
        "functions": {name: functions.digest(functions.values(name, device)) for name in functions.FUNCTIONS},
        "samplers": {name: tokens_digest(samplers.draws(name, device)) for name in samplers.DRAWS},
        "quantised": {name: quantised.digest(setting, name, 1) for name in (*quantised.QUICK, *quantised.OTHERS)},
        "vectors": {name: embeddings.digest(setting, name) for name in ENCODERS},
        "texts": {
            subject.recipe.family: tokenizers.digest(subject)
            for subject in setting.built_in
            if subject.recipe is not None and subject.recipe.kind == MIXED
        },
    }


def _changed(before: dict[str, Any], made: dict[str, Any]) -> list[str]:
    return [
        f"{part}/{name}"
        for part in ("recipes", "functions", "samplers", "quantised", "texts", "vectors")
        for name, old in before.get(part, {}).items()
        if made[part].get(name) != old
    ]


if __name__ == "__main__":
    sys.exit(main())
