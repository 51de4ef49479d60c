"""Receipts of real answers by a small model, changed and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetic.api.model import Model
from kinetic.api.verify import verify_receipt
from receipts.schema import Record
from receipts.verify import Verdict


def answered(model_file: Path, path: Path, **options: Any) -> Path:
    """The file of a receipt: what the model answers to "x"."""
    with Model(model_file, threads=1) as model:
        model.generate("x", **options).save_receipt(path)
    return path


def check(receipt: Path, model: Path | None = None, **options: Any) -> Verdict:
    return verify_receipt(receipt, model, threads=1, **options)


def edit(receipt: Path, change: Callable[[Record], object]) -> Path:
    """The same file, after a change of its record."""
    envelope = json.loads(receipt.read_text())
    change(envelope["receipt"])
    receipt.write_text(json.dumps(envelope))
    return receipt
