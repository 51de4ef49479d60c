"""``kinetic keygen``: a pair of files that the rest of the program takes, and never one of them overwritten."""

import base64
import json
import os
import stat

import pytest

from kinetic.cli import main
from ktc import keys, signature


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_pair_where_it_is_wanted(kinetic, tmp_path):
    done = kinetic("keygen", "-o", "k", cwd=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["k", "k.pub"] and done.stderr == ""
    pair, public = keys.read_secret_key(tmp_path / "k"), keys.read_public_key(tmp_path / "k.pub")
    assert pair.public == public and mode(tmp_path / "k") == 0o600
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and lines[0] == f"key {signature.key_id(public)}"
    assert "--sign k " in lines[1] and "--key k.pub " in lines[2]
    assert f'public_key = "{base64.b64encode(public).decode()}"' in lines[2]
    assert base64.b64encode(pair.seed).decode() not in done.stdout


def test_the_keys_folder_without_a_name(kinetic, tmp_path):
    found = json.loads(kinetic("keygen", "--json").stdout)
    folder = tmp_path / "home" / "keys"
    secret, public = folder / "signing", folder / "signing.pub"
    assert (mode(folder), mode(secret)) == (0o700, 0o600)
    pair = keys.read_secret_key(secret)
    assert found == {
        "key_id": signature.key_id(pair.public),
        "public_key": base64.b64encode(keys.read_public_key(public)).decode(),
        "secret_file": str(secret),
        "public_file": str(public),
    }
    before = secret.read_bytes(), public.read_bytes()
    done = kinetic("keygen", check=3)
    assert done.stdout == "" and f"{secret} is already there" in done.stderr and done.stderr.count("\n") == 1
    assert (secret.read_bytes(), public.read_bytes()) == before


@pytest.mark.parametrize("there", ["k", "k.pub"])
def test_neither_file_is_overwritten(kinetic, tmp_path, there):
    (tmp_path / there).write_text("mine")
    done = kinetic("keygen", "-o", tmp_path / "k", check=3)
    assert f"{there} is already there" in done.stderr and done.stdout == ""
    assert os.listdir(tmp_path) == [there] and (tmp_path / there).read_text() == "mine"


def test_places_that_cannot_be_written(kinetic, tmp_path):
    (tmp_path / "home").write_text("a file where the home would be")
    assert "name a file with -o" in kinetic("keygen", check=3).stderr
    assert "cannot write" in kinetic("keygen", "-o", tmp_path / "none" / "k", check=3).stderr
    assert sorted(os.listdir(tmp_path)) == ["home"]


@pytest.mark.parametrize("output", ["", "-", "k.pub", "folder/", "."])
def test_names_that_are_none(kinetic, tmp_path, output):
    done = kinetic("keygen", f"--output={output}", check=2, cwd=tmp_path)
    assert done.stderr.count("\n") == 1 and os.listdir(tmp_path) == []


def test_no_other_words(kinetic):
    kinetic("keygen", "k", check=2)


def test_a_hostile_file_name_steers_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["keygen", "-o", "\x1b[31m\u202ek"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 3 and all(line.isprintable() for line in out.splitlines())
