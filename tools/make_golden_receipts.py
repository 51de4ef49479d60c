"""Golden receipts: ``python -m tools.make_golden_receipts`` writes conformance/golden/receipts anew,
and conformance/golden/gate.json, the baseline of them all.

Each is an answer of one model under this profile, signed with a key that
everybody knows. A receipt that changes means that the arithmetic, the sampling
or the text changed, and a change of bits needs a new profile name. What differs
from machine to machine (engine id, device name, time) is left out or fixed, so
that every machine writes the same bytes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conformance import gate_baseline
from conformance.attacks.from_vectors import public_pem
from kinetic import store
from kinetic.api.model import Model
from kinetic.errors import FileProblem
from ktc.signature import key_pair
from receipts.encode import Receipt, to_json
from receipts.schema import Record
from receipts.sign import sign_record
from receipts.withhold import Opening, opening_of, withhold, write_opening
from tests.support.tiny_models import write_tiny_gemma3, write_tiny_llama

FOLDER = Path(__file__).resolve().parent.parent / "conformance" / "golden" / "receipts"
BASELINE = FOLDER.parent / "gate.json"
SEED = bytes(range(32))
"""The secret key that signs them; ``key.pub`` in the folder is its public key."""

TIME = "2026-03-14T15:09:26Z"
CHALLENGE, SALT = "c0" * 16, bytes(range(100, 132))

Write = Callable[[Path], Path]

TINY: dict[str, Write] = {"tiny-llama": write_tiny_llama, "tiny-gemma3": write_tiny_gemma3}
"""Models written in a moment; what their answers say means nothing."""

REAL = ("smollm2", "gemma3-270m")


class Golden(NamedTuple):
    """One receipt: ``{model}-{kind}.json``."""

    model: str
    kind: str
    prompt: str
    options: dict[str, Any]
    """Of ``Model.generate``."""
    context: int = 0
    is_withheld: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}-{self.kind}"


SAMPLED: dict[str, Any] = {"seed": 7, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
PENALTIES: dict[str, Any] = {"repeat_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.1}
GREEDY: dict[str, Any] = {"seed": 0, "temperature": 0.0, "commit_logits": True}
RIVERS, STORY = "Name three rivers.", "Once upon a time"

CASES = (
    Golden("tiny-llama", "greedy", RIVERS, GREEDY | {"max_tokens": 24}),
    Golden("tiny-llama", "sampled", RIVERS, SAMPLED | {"max_tokens": 40, "commit_logits": True}),
    Golden("tiny-llama", "penalties", RIVERS, SAMPLED | PENALTIES | {"seed": 2**64 - 1, "max_tokens": 40}),
    Golden("tiny-llama", "biases", RIVERS, SAMPLED | {"logit_bias": {5: 3.0, 6: float("-inf")}, "max_tokens": 24}),
    Golden("tiny-llama", "stop", RIVERS, GREEDY | {"stop": [" is"], "max_tokens": 64}),
    Golden("tiny-llama", "context", RIVERS, GREEDY, context=30),
    Golden("tiny-llama", "second", RIVERS, SAMPLED | {"completion_index": 1, "max_tokens": 24}),
    Golden("tiny-llama", "challenge", RIVERS, {"temperature": 0.8, "challenge": CHALLENGE, "max_tokens": 24}),
    Golden("tiny-llama", "withheld", RIVERS, SAMPLED | {"max_tokens": 24}, is_withheld=True),
    Golden("tiny-gemma3", "greedy", STORY, GREEDY | {"raw": True, "max_tokens": 24}),
    Golden("tiny-gemma3", "sampled", RIVERS, SAMPLED | {"max_tokens": 120, "commit_logits": True}),
    Golden("smollm2", "greedy", RIVERS, GREEDY | {"max_tokens": 48}),
    Golden("smollm2", "sampled", "Tell me a story in two sentences.", SAMPLED | {"max_tokens": 64}),
    Golden("smollm2", "stop", RIVERS, GREEDY | {"stop": ["Nile:", "Amazon"], "max_tokens": 64}),
    Golden("smollm2", "end", "Say yes.", GREEDY | {"max_tokens": 64}),
    Golden("gemma3-270m", "greedy", STORY, GREEDY | {"raw": True, "max_tokens": 32}),
    Golden("gemma3-270m", "sampled", STORY, SAMPLED | {"raw": True, "max_tokens": 64}),
)


def main() -> int:
    """Write what changed; 1 if a file that was there did, or a model is missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    before = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    missing = [name for name in REAL if find(name) is None]
    kept = {name: data for name, data in before.items() if name.startswith(tuple(f"{model}-" for model in missing))}
    after = kept | dict(files())
    for name in before.keys() - after.keys():
        (FOLDER / name).unlink()
    for name, data in after.items():
        (FOLDER / name).write_bytes(data)
    BASELINE.write_bytes(baseline())
    for name in missing:
        print(f"{name} is not there, so its receipts stay as they are: kinetic pull {name}")
    changed = sorted(name for name in before if after.get(name) != before[name])
    for name in changed:
        print(f"{name} {'changed' if name in after else 'is no longer made'}")
    return 1 if changed or missing else 0


def baseline() -> bytes:
    """What `kinetic gate --write` gives for the receipts as they are."""
    return gate_baseline.to_json(gate_baseline.make(str(BASELINE), [str(FOLDER)], ())).encode("utf-8")


def files(models: tuple[str, ...] = (*TINY, *REAL)) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every file that these models give; those that are not there give none."""
    yield "key.pub", public_pem(key_pair(SEED).public).encode("ascii")
    with tempfile.TemporaryDirectory() as scratch:
        for name in models:
            path = TINY[name](Path(scratch) / f"{name}.gguf") if name in TINY else find(name)
            for golden in CASES:
                if golden.model == name and path is not None:
                    yield from _files(golden, path)


def find(name: str) -> Path | None:
    """The file of a real model, if it is here."""
    try:
        return store.resolve(name)
    except FileProblem:
        return None


def _files(golden: Golden, path: Path) -> Iterator[tuple[str, bytes]]:
    record = _answer(golden, path)
    if golden.is_withheld:
        tokens = record["prompt"]["tokens"]
        record = withhold(record, SALT)
        yield f"{golden.name}.opening.json", _opening(opening_of(record, SALT, tokens))
    entry = sign_record(record, SEED)
    yield f"{golden.name}.json", to_json(Receipt(record, [entry])).encode("utf-8")


def _answer(golden: Golden, path: Path) -> Record:
    """The receipt of an answer, with claims that are the same everywhere."""
    with Model(path, context=golden.context) as model:
        record = model.generate(golden.prompt, **golden.options).receipt()
    return record | {
        "claims": record["claims"] | {"engine_version": "", "engine_id": "", "device_name": "", "time": TIME}
    }


def _opening(opening: Opening) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "opening.json"
        write_opening(path, opening)
        return path.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
