"""Warm starts of whole models: what they are keyed by, the user's folder, sessions, and who must not use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from kinetic import prefixes, store
from kinetic.api.model import Model
from kinetic.api.verify import Checker
from kinetic.cli import main
from kinetic.engine.warm import DiskStore, Warm
from kinetic.errors import UsageError
from receipts.encode import read_receipt
from tests.support.adapters import write_adapter
from tests.support.tiny_families import write_tiny_family
from tests.support.tiny_models import write_tiny_llama

SMALL = {"width": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn": 96, "types": {}}
RANKS = {f"blk.{i}.{name}.weight": 4 for i in range(2) for name in ("attn_q", "attn_v", "ffn_down")}
TEXT = "the quick brown fox jumps over the lazy dog, and " * 12
OPTIONS = {"max_tokens": 8, "seed": 7, "raw": True, "commit_logits": True}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(prefixes.ENVIRONMENT)
    monkeypatch.setattr(store, "RACY_NS", -(10**18))
    return tmp_path / "home"


@pytest.fixture
def model_file(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf", context=1024, **SMALL)


@pytest.fixture
def chatty(tmp_path):
    return write_tiny_family(tmp_path / "chatty.gguf", "smollm3")


def answer(model_file, text=TEXT, **changes):
    with Model(model_file, threads=1, **changes) as model:
        completion = model.generate(text, **OPTIONS)
    return completion.tokens, completion.commits, completion.stats.reused


def ways_of(tmp_path, model_file):
    one, two = (write_adapter(tmp_path / f"{i}.gguf", model_file, RANKS, seed=i) for i in (1, 2))
    return [
        {}, {"adapters": [one]}, {"adapters": [two]}, {"adapters": [(one, 0.5)]}, {"adapters": [one, two]},
        {"adapters": [two, one]}, {"rope": {"rope_freq_base": 5000.0}},
        {"rope": {"rope_scaling": "linear", "rope_scale": 2.0}},
    ]  # fmt: skip


def test_only_the_same_model_with_the_same_changes(tmp_path, model_file):
    """Each way of running a model knows nothing of the others, and its own prompt after a restart."""
    ways = ways_of(tmp_path, model_file)
    cold = [answer(model_file, off=["warm"], **way)[:2] for way in ways]
    assert len(set(cold)) == len(ways)
    count = 0
    for known in (False, True):
        for way, expected in zip(ways, cold, strict=True):
            *found, reused = answer(model_file, **way)
            assert tuple(found) == expected
            count = max(count, reused)
            assert (reused > 256) == known, way
    (tmp_path / "other").mkdir()
    other = write_tiny_llama(tmp_path / "other" / "tiny.gguf", seed=9, context=1024, **SMALL)
    assert answer(other)[2] == 0 and answer(other)[2] == count


def test_a_key_without_adapters(tmp_path, model_file, monkeypatch):
    """What the test above finds."""
    sound = prefixes._name
    monkeypatch.setattr(prefixes, "_name", lambda found, adapters, rope: sound(found[:1], (), rope))
    _, way, *_ = ways_of(tmp_path, model_file)
    cold = answer(model_file, off=["warm"], **way)
    for changes in ({}, way):  # once, so that the adapter's digest is known
        answer(model_file, **changes)
    assert answer(model_file, **way)[1] != cold[1]


def test_a_model_file_that_changed(tmp_path, model_file):
    assert answer(model_file)[2] == 0 < answer(model_file)[2]
    write_tiny_llama(model_file, seed=9, context=1024, **SMALL)
    assert answer(model_file)[::2] == (answer(model_file, off=["warm"])[0], 0)


def test_nothing_is_kept_where_nobody_wants_it(model_file, home, monkeypatch):
    for changes in ({"off": ["warm"]}, {"cache_disk": 0}, {"pack_cache": False}, {"cache_disk": 4096}):
        answer(model_file, **changes)
        assert prefixes.listed() == []
    monkeypatch.setenv(prefixes.ENVIRONMENT, "0")
    answer(model_file)
    assert prefixes.listed() == []
    monkeypatch.setenv(prefixes.ENVIRONMENT, "much")
    with pytest.raises(UsageError, match="KINETIC_PREFIX_CACHE is 'much'"):
        Model(model_file)
    monkeypatch.delenv(prefixes.ENVIRONMENT)
    with Model(model_file, threads=1) as model:
        model.generate(TEXT, **OPTIONS, withhold_prompt=True)
    assert prefixes.listed() == []
    with pytest.raises(UsageError, match="-1 bytes"):
        Model(model_file, cache_ram=-1)


def test_the_key_of_a_user(home):
    """Made once, whole, for the user alone; one that is cut off is made anew, one that others can read is not used."""
    folder = store.writable("prefixes")
    first = prefixes._secret(folder)
    assert len(first) == 32 and prefixes._secret(folder) == first
    assert (folder / "key").stat().st_mode & 0o777 == 0o600 and len(list(folder.iterdir())) == 1
    (folder / "key").chmod(0o644)
    assert prefixes._secret(folder) is None
    (folder / "key").chmod(0o600)
    (folder / "key").rename(folder / "elsewhere")
    (folder / "key").symlink_to(folder / "elsewhere")
    assert prefixes._secret(folder) is None
    (folder / "key").unlink()
    (folder / "key").write_bytes(first[:31])
    (folder / "key").chmod(0o600)
    assert prefixes._secret(folder) not in (None, first)
    assert prefixes._secret(home / "nowhere") is None


def test_checks_use_none(model_file, tmp_path, monkeypatch):
    """A receipt of a warm answer is that of a cold one, and is verified without anything that was kept."""
    records = []
    for name, changes in (("cold", {"off": ["warm"]}), ("first", {}), ("warm", {})):
        with Model(model_file, threads=1, **changes) as model:
            model.generate(TEXT, **OPTIONS).save_receipt(tmp_path / f"{name}.json")
        record = dict(read_receipt(tmp_path / f"{name}.json").record)
        records.append({key: value for key, value in record.items() if key not in ("time", "claims")})
    assert records[0] == records[1] == records[2]
    for place, name in ((Warm, "begin"), (DiskStore, "look"), (DiskStore, "load")):
        monkeypatch.setattr(place, name, lambda *_: pytest.fail("a check used what was kept"))
    for method in ("replay", "decode"):
        with Checker(model_file, threads=1, method=method) as checker:
            assert checker.verify(tmp_path / "warm.json").exit_code == 0
    assert main(["perplexity", "-m", str(model_file), "-f", str(_text(tmp_path)), "-c", "64", "-t", "1"]) == 0


def _text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


# --- sessions ---


def test_a_session(chatty):
    """What was typed ahead is there, edits go back as far as they reach, and answers are those of a fresh start."""
    typed = ["Name", "Name three", "Name three rivers", "Name four rivers", "Name four rivers."]
    options = {"max_tokens": 6, "seed": 3, "template_time": "2026-01-01T00:00:00", "system": "Be brief."}
    with Model(chatty, threads=1, off=["warm"]) as plain, Model(chatty, threads=1) as model:
        with model.session(**options) as session:
            before = 0
            for text in typed:
                there = session.prefill(text)
                assert there > 8 and model._engine.reused >= min(before, 8)
                before = there
            assert session.prefill(typed[-1]) == there == model._engine.reused
            first = session.generate(typed[-1])
            assert first.stats.reused >= there - 1
            expected = plain.generate([{"role": "user", "content": typed[-1]}], **options)
            assert (first.tokens, first.prompt_tokens) == (expected.tokens, expected.prompt_tokens)
            second = session.generate("And lakes?")
            assert second.stats.reused > there and len(session.messages) == 4
            expected = plain.generate([*session.messages[:2], {"role": "user", "content": "And lakes?"}], **options)
            assert (second.tokens, second.prompt_tokens) == (expected.tokens, expected.prompt_tokens)
        assert plain.session(**options).prefill("Name") == 0


def test_a_session_without_a_template(chatty):
    """A text that is completed; nothing is computed of an empty one."""
    with Model(chatty, threads=1) as model, model.session(raw=True, max_tokens=4, seed=1) as session:
        assert session.prefill("") == 0
        assert 0 < session.prefill("Once upon a") <= session.prefill("Once upon a time")
        assert session.generate("Once upon a time there").tokens == model.generate(
            "Once upon a time there", raw=True, max_tokens=4, seed=1
        ).tokens  # fmt: skip
        assert session.messages == []
        assert 0 < session.prefill("word " * 1200) < model.context


# --- the command ---


def run(model, *words):
    return ["run", str(model), TEXT, "--raw", "-n", "4", "-s", "5", "--json", "-q", "-t", "1", *words]


def test_the_command(model_file, capsys, home):
    assert main(["cache", "ls"]) == 0 and capsys.readouterr().out == ""
    found = []
    for words in ([], [], ["--off", "warm"], ["--cache-ram", "0", "--cache-disk", "5M"]):
        assert main(run(model_file, *words)) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert len({tuple(one["tokens"]) for one in found}) == 1
    reused = [one["stats"]["prompt_tokens_reused"] for one in found]
    assert reused == [0, found[0]["stats"]["prompt_tokens"] - 1, 0, reused[1]]
    assert main(["cache", "ls", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["model"] for row in rows} == {"tiny.gguf"}
    assert sum(row["tokens"] for row in rows) == found[0]["stats"]["prompt_tokens"] + 3
    assert all(0 <= row["age_seconds"] < 100 and row["bytes"] > 4096 for row in rows)
    (home / "prefixes" / "junk.prefix").write_bytes(b"\n")
    assert main(["cache", "ls"]) == 0
    assert f"tiny.gguf  {sum(row['tokens'] for row in rows)} tokens in {len(rows)} files" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert f"{len(rows) + 1} files removed" in capsys.readouterr().out
    assert os.listdir(home / "prefixes") == ["key"]
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 0, "bytes": 0}
    for words in (["cache"], ["cache", "sell"], run(model_file, "--cache-ram", "1.5G"), run(model_file, "-cram", "-1")):
        assert main(words) == 2


def test_two_processes(model_file, home):
    """Both begin without a key and without files, and write the same."""
    time.sleep(2.1)  # nothing is kept of a model file that was written just now
    command = [sys.executable, "-m", "kinetic", *run(model_file)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [json.loads(one.communicate(timeout=120)[0])["tokens"] for one in both]
    assert answers[0] == answers[1] and [one.returncode for one in both] == [0, 0]
    assert answer(model_file)[2] > 0
    assert not [name for name in os.listdir(home / "prefixes") if name.startswith("tmp-")]
