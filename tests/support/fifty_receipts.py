"""Fifty receipts in a folder, what may be done to three of them, and the command that audits them."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode

from kinetic import store
from kinetic.api import Model
from kinetic.cli import main
from receipts.encode import write_receipt
from receipts.sign import sign_record
from tests.support.sample_receipts import SEED
from tests.support.talking_model import write_talker


def make(folder):
    """A folder ``r`` of fifty signed receipts, of two models, whose answers are a matter of chance."""
    (folder / "r" / "more").mkdir(parents=True)
    for half, answer in enumerate((b"one day", b"may be")):
        path = write_talker(folder / f"model{half}.gguf", answer, scale=0.02)
        with Model(path, threads=1) as model:
            for index in range(half, 50, 2):
                record = model.generate("x", seed=index, max_tokens=12).receipt()
                name = f"{'more/' if index > 40 else ''}a{index:02}.{'cbor' if index % 5 == 0 else 'json'}"
                form = name[-4:].lstrip(".")
                write_receipt(folder / "r" / name, record, [sign_record(record, SEED)], form=form)
    return folder


def arrive(made, folder, monkeypatch):
    """Go to a copy of them, with a home of its own where their models can be found; returns it."""
    monkeypatch.setenv("KINETIC_HOME", str(folder / "home"))
    monkeypatch.setattr(store, "RACY_NS", -(10**18))
    shutil.copytree(made, folder / "here")
    for model in (folder / "here").glob("*.gguf"):
        store.digests(model)
    monkeypatch.chdir(folder / "here")
    return folder / "here"


def audit(*words):
    return main(["audit", *map(str, words), "-t", "1"])


def states(tmp_path):
    """State files that were not asked for."""
    return list((tmp_path / "home" / "audits").iterdir())


def edit(path, change):
    envelope = json.loads(path.read_text())
    change(envelope)
    path.write_text(json.dumps(envelope))


def tamper(folder):
    """A token of one, the text of another, a bit of a signature of a third; the first two are signed anew."""

    def resign(envelope):
        envelope["signatures"] = [sign_record(envelope["receipt"], SEED)]

    def token(envelope):
        tokens = envelope["receipt"]["output"]["tokens"]
        tokens[2] = tokens[2] ^ 1
        resign(envelope)

    def text(envelope):
        envelope["receipt"]["text"] += "."
        resign(envelope)

    def signature(envelope):
        entry = envelope["signatures"][0]
        data = bytearray(b64decode(entry["signature"]))
        data[0] ^= 1  # of the bytes, so that the base64 stays in its one form
        entry["signature"] = b64encode(data).decode("ascii")

    edit(folder / "r" / "a07.json", token)
    edit(folder / "r" / "a18.json", text)
    edit(folder / "r" / "more" / "a43.json", signature)


BAD = {"r/a07.json": "DIFFERS", "r/a18.json": "MALFORMED", "r/more/a43.json": "SIGNATURE"}
