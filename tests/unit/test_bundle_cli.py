"""``python -m ktc``: exit codes, and what it says."""

import json

import pytest

from ktc.__main__ import WORDS, main
from ktc.keys import write_key_pair
from tests.support.sample_bundles import LEAF, OTHER_SEED, SEED, forge, gguf, parts


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "a.ktc"
    place.write_bytes(forge(seeds=[SEED]))
    return place


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def keys(tmp_path):
    write_key_pair(tmp_path / "k", SEED)
    write_key_pair(tmp_path / "other", OTHER_SEED)
    return tmp_path


def test_a_sound_bundle(run, path):
    code, out = run("verify", path)
    assert code == 0
    assert out.startswith(f"{path}: INTACT: every section intact, 1 leaf intact, SHA-256 not checked; signature cons")
    assert "valid" not in out
    assert "SHA-256 intact" in run("verify", "--sha256", path)[1]


def test_keys_and_trust(run, path, keys):
    code, out = run("verify", path, "--key", keys / "k.pub")
    assert (code, "valid signature by k (key" in out) == (0, True)
    code, out = run("verify", path, "--key", keys / "other.pub")
    assert (code, "SIGNATURE (UNTRUSTED_KEY)" in out) == (12, True)
    assert run("verify", path, "--key", keys / "other.pub", "--key", keys / "k.pub")[0] == 0
    assert run("verify", path, "--key", keys / "none.pub")[0] == 3
    assert run("verify", path, "--trust", path)[0] == 11
    assert run("verify", path, "--min-release", 4)[0] == 12
    assert run("verify", path, "--at", "2026-01-01", "--key", keys / "k.pub")[0] == 0


@pytest.mark.parametrize(
    "arguments", [[], ["verify"], ["verify", "a", "--at", "yesterday"], ["verify", "a", "--key", "k", "--trust", "t"]]
)
def test_flags_that_make_no_sense(arguments):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2


def test_a_damaged_bundle_names_the_place(run, tmp_path):
    data = bytearray(forge(parts(gguf(data=bytes(3 * LEAF)))))
    for at in (4096 + LEAF, 4096 + 2 * LEAF, 4000):
        data[at] ^= 1
    (tmp_path / "a.ktc").write_bytes(data)
    code, out = run("verify", tmp_path / "a.ktc")
    assert code == 11
    assert out.endswith(
        "MALFORMED (PADDING): byte 4000, in the padding after the manifest, is not zero; 2 more places are damaged\n"
    )
    code, out = run("verify", "--json", tmp_path / "a.ktc")
    report = json.loads(out)
    assert (code, report["exit_code"], report["name"]) == (11, 11, "PADDING")
    assert report["damage"]["leaves"] == [1, 2]
    assert report["damage"]["sections"] == ["gguf"]


def test_of_several_files_the_gravest_counts(run, path, tmp_path):
    (tmp_path / "model.gguf").write_bytes(gguf())
    (tmp_path / "new.ktc").write_bytes(forge(header={"major": 2}))
    assert run("verify", path, tmp_path / "none")[0] == 3
    assert run("verify", path, tmp_path / "none", tmp_path / "model.gguf")[0] == 11
    assert run("verify", tmp_path / "new.ktc")[0] == 13
    out = run("verify", "--json", path, tmp_path / "new.ktc")[1]
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["INTACT", "VERSION"]


def test_json_says_what_was_checked_and_what_was_not(run, path):
    report = json.loads(run("verify", "--json", path)[1])
    assert (report["sha256_checked"], report["leaves_checked"], report["trusted"]) == (False, 1, False)
    assert report["bundle_name"] == "tiny"
    assert len(report["manifest_digest"]) == 64


def test_info(run, path, tmp_path):
    code, out = run("info", path)
    assert code == 0
    assert "tiny, release 3" in out
    assert "digests not checked" in out
    assert json.loads(run("info", "--json", path)[1])["manifest"]["file"] == "tiny.gguf"
    (tmp_path / "optional.ktc").write_bytes(forge(manifest=lambda table: table.update(file="a\u202eb.gguf")))
    assert "\u202e" not in run("info", tmp_path / "optional.ktc")[1]
    assert run("info", tmp_path)[0] == 3


def test_a_fault_of_this_program_is_no_verdict(run, path, monkeypatch):
    from ktc import verify

    monkeypatch.setattr(verify, "_check_keys", lambda bundle, keys, **how: 1 / 0)
    code, out = run("verify", path)
    assert (code, "FAULT" in out) == (1, True)


def test_every_code_has_a_word():
    assert set(WORDS) == {0, 1, 3, 11, 12, 13, 14}
