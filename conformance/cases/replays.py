"""A receipt of an answer is identical when it is rerun, in both ways; changed, it is not."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from conformance.case import Case, Evidence, Skipped, require
from conformance.setting import Setting, Subject
from kinetic.api import Model
from kinetic.api.verify import Checker
from ktc.signature import key_pair
from receipts.verify import Verdict

PROPERTY = "A receipt of an answer verifies, token for token; a receipt that says anything else does not."
OF_MODELS = True

QUESTION = {"raw": True, "max_tokens": 16, "temperature": 0.8, "seed": 11, "commit_logits": True}
PROMPT = "the quick brown fox"

SIGNER = key_pair(bytes(range(32)))
"""Of these receipts alone."""

Record = dict[str, Any]


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.subjects:
        yield Case(f"{subject.name}/replay", partial(_run, setting, subject, "replay"))
        yield Case(f"{subject.name}/decode", partial(_run, setting, subject, "decode"))
        yield Case(f"{subject.name}/changed", partial(_changed, setting, subject))


def _answered(setting: Setting, subject: Subject, path: Path) -> list[int]:
    """Tokens of a signed answer, whose receipt is written to ``path``."""
    setting.close()  # one model in memory at a time
    with Model(subject.path, device=setting.device, threads=1, pack_cache=False, progress=setting.news) as model:
        completion = model.generate(PROMPT, **QUESTION)  # type: ignore[arg-type]
        completion.save_receipt(path, sign=SIGNER)
    return list(completion.tokens)


def _run(setting: Setting, subject: Subject, method: str) -> Evidence:
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        receipt = Path(folder) / "answer.json"
        tokens = _answered(setting, subject, receipt)
        with _checker(setting, subject, method) as checker:
            _expect(checker.verify(receipt), 0, "an honest receipt")
    return Evidence(f"{len(tokens)} tokens, identical when rerun by {method}")


def _changed(setting: Setting, subject: Subject) -> Evidence:
    """Under its old signature every change is refused; unsigned, one of the answer differs."""
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        receipt = Path(folder) / "answer.json"
        _answered(setting, subject, receipt)
        envelope = json.loads(receipt.read_text(encoding="utf-8"))
        with _checker(setting, subject, "replay") as checker:
            for name, change in CHANGES.items():
                forged = copy.deepcopy(envelope)
                change(forged["receipt"])
                _expect(checker.verify(_bytes(forged)), 12, f"a signed receipt with another {name}")
            forged = copy.deepcopy(envelope) | {"signatures": []}
            _other_token(forged["receipt"])
            _expect(checker.verify(_bytes(forged)), 10, "an unsigned receipt with another token")
    return Evidence(f"{len(CHANGES) + 1} changed receipts, each refused for what it is")


def _other_token(record: Record) -> None:
    """In the middle, and no end token: where the answer ended is another question."""
    tokens, ends = record["output"]["tokens"], record["stop"]["end_tokens"]
    if len(tokens) < 2:
        raise Skipped("the model ends its answer at once")
    place = (len(tokens) - 1) // 2
    tokens[place] = next(token for token in range(len(ends) + 2) if token != tokens[place] and token not in ends)


def _other_seed(record: Record) -> None:
    record["sampling"]["seed"] = "12"


def _other_engine(record: Record) -> None:
    record["claims"]["engine_id"] += "0"


CHANGES: dict[str, Callable[[Record], None]] = {"token": _other_token, "seed": _other_seed, "engine": _other_engine}


def _checker(setting: Setting, subject: Subject, method: str) -> Checker:
    return Checker(
        subject.path,
        device=setting.device,
        threads=setting.threads,
        pack_cache=False,
        method=method,
        progress=setting.news,
    )


def _bytes(envelope: Record) -> bytes:
    return json.dumps(envelope).encode()


def _expect(verdict: Verdict, code: int, what: str) -> None:
    require(verdict.exit_code == code, f"{what} gives {verdict.exit_code} {verdict.name}: {verdict.sentence}")
