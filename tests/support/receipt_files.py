"""Receipt files for tests of the commands about them, and those commands run in this process."""

from __future__ import annotations

import json
from pathlib import Path

from kinetic.cli import main
from ktc.keys import write_key_pair
from ktc.signature import key_id, key_pair
from receipts.encode import write_receipt
from receipts.sign import sign_record
from receipts.withhold import opening_of, withhold, write_opening
from tests.support.sample_receipts import SEED, sample

OTHER_SEED = bytes(range(1, 33))
KEY, OTHER_KEY = (key_id(key_pair(seed).public) for seed in (SEED, OTHER_SEED))
SALT = bytes(range(32))


def arrive(folder, monkeypatch):
    """Go to a folder with the secret keys k and k2 (and k.pub, k2.pub); returns it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KINETIC_HOME", str(folder / "home"))
    write_key_pair("k", SEED)
    write_key_pair("k2", OTHER_SEED)
    return folder


def runner(capsys):
    """``run("show", "a.json", code=0)`` -> standard output and standard error of ``kinetic receipt``."""

    def run(*words, code=0):
        got = main(["receipt", *map(str, words)])
        shown = capsys.readouterr()
        assert got == code, (got, shown.out, shown.err)
        assert "Traceback" not in shown.err
        return shown.out, shown.err

    return run


def refuser(run, folder):
    """As ``run``, for what must be refused: one line that names why, and not a file is touched."""

    def refused(*words, code, name=None):
        before = contents(folder)
        out, err = run(*words, code=code)
        assert out == "" and err.startswith("kinetic: ") and err.count("\n") == 1, (out, err)
        assert name is None or f"({name})" in err, err
        assert contents(folder) == before
        return err

    return refused


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "home" not in path.parts}


def put(path, record=None, *seeds, form="json"):
    record = sample() if record is None else record
    write_receipt(path, record, [sign_record(record, seed) for seed in seeds], form=form)
    return Path(path)


def put_raw(path, record, signatures=()):
    """A file that says anything."""
    Path(path).write_text(json.dumps({"receipt": record, "signatures": list(signatures)}))
    return Path(path)


def put_forged(path="forged.json"):
    return put_raw(path, sample(text=" red"), [sign_record(sample(), SEED)])


def put_withheld(path="w.json", opening="w.opening.json"):
    record = withhold(sample(), SALT)
    write_opening(opening, opening_of(record, SALT, [3, 1, 4]))
    return put(path, record)


def answer(folder, path, *seeds, **options):
    """A true receipt of a model in m.gguf, which is made if it isn't there."""
    from kinetic.api.model import Model
    from tests.support.talking_model import write_talker

    if not (folder / "m.gguf").exists():
        write_talker(folder / "m.gguf")
    with Model(folder / "m.gguf", threads=1) as model:
        record = model.generate("x", **{"seed": 7} | options).receipt()
    return put(path, record, *seeds)
