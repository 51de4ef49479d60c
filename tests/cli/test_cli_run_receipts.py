"""``kinetic run --receipt`` with a key, a challenge, commitments or a withheld prompt; and when there is no receipt."""

import json
import os
import signal
import stat
import subprocess

import pytest

from kinetic.cli import main
from kinetic.engine import Engine
from kinetic.store import BUNDLE_MAGIC
from ktc import keys, signature
from ktc.digest import token_digest
from receipts.audit_state import State
from receipts.checks import check_record
from receipts.encode import canonical_bytes, challenge_seed, read_receipt, receipt_id
from receipts.errors import KtcError
from receipts.sign import check_signatures
from receipts.withhold import read_opening, write_opening
from tests.cli.conftest import COMMAND, ROOT
from tests.support.talking_model import TEMPLATE, write_talker

SEED = bytes(range(32))
CHALLENGE = "0f" * 32


@pytest.fixture(autouse=True)
def model(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return write_talker(tmp_path / "tiny.gguf", template=TEMPLATE)


@pytest.fixture
def key(tmp_path):
    (tmp_path / "keys").mkdir()
    keys.write_key_pair(tmp_path / "keys" / "k", SEED)
    return tmp_path / "keys" / "k"


@pytest.fixture
def out(tmp_path):
    """A folder for what the command writes, so that a test can say that nothing was."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def run(*words):
    return main(["run", *map(str, words), "-t", "1"])


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr("kinetic.api.model.Model.__init__", None)


def refused(capsys, code, *words):
    """One sentence and no answer; the sentence."""
    assert run(*words) == code
    answer, error = capsys.readouterr()
    assert answer == "" and error.startswith("kinetic: ") and error.count("\n") == 1
    return error


# --- what is refused before anything runs ---


@pytest.mark.parametrize(
    "flag", [("--sign", "k"), ("--challenge", CHALLENGE), ("--commit",), ("--withhold-prompt",), ("--opening", "o")]
)
def test_all_about_a_receipt_needs_a_receipt(model, capsys, nothing_runs, flag):
    assert f"{flag[0]} is about the receipt" in refused(capsys, 2, model, "x", *flag)


def test_an_opening_needs_a_withheld_prompt(model, capsys, out, nothing_runs):
    assert "--withhold-prompt" in refused(capsys, 2, model, "x", "--receipt", out / "a.json", "--opening", out / "o")
    assert os.listdir(out) == []


def test_an_opening_that_is_there_is_never_replaced(model, capsys, out, nothing_runs):
    for name, words in (("a.opening.json", ()), ("o", ("--opening", out / "o"))):
        (out / name).write_text("before")
        assert name in refused(capsys, 3, model, "x", "--receipt", out / "a.json", "--withhold-prompt", *words)
        assert (out / name).read_text() == "before" and os.listdir(out) == [name]
        (out / name).unlink()


@pytest.mark.parametrize(("name", "code"), [("a.json", 2), ("../out/a.json", 2), ("", 2), ("-", 2), ("no/o", 3)])
def test_an_opening_needs_a_place_of_its_own(model, capsys, out, nothing_runs, name, code):
    place = out / name if name not in ("", "-") else name
    refused(capsys, code, model, "x", "--receipt", out / "a.json", "--withhold-prompt", "--opening", place)
    assert os.listdir(out) == []


def test_keys_that_may_not_sign(model, capsys, out, key, nothing_runs):
    exposed, link, public = key.with_name("exposed"), key.with_name("link"), key.with_name("k.pub")
    exposed.write_bytes(key.read_bytes())
    exposed.chmod(0o644)
    link.symlink_to(key)
    for name, code in ((exposed, 12), (link, 12), (public, 12), (key.with_name("absent"), 3)):
        refused(capsys, code, model, "x", "--receipt", out / "a.json", "--sign", name)
    assert os.listdir(out) == []


def test_a_receipt_replaces_no_key_and_no_opening(model, capsys, out, key, nothing_runs):
    other, opening = key.with_name("other"), out / "o.json"
    keys.write_key_pair(other, bytes(32))
    write_opening(opening, read_opening(_opening_file()))
    before = {path: path.read_bytes() for path in (key, key.with_name("k.pub"), other, opening)}
    for path in before:
        refused(capsys, 2, model, "x", "--receipt", path, "--sign", key)
        refused(capsys, 2, model, "x", "--receipt", path)
    assert all(path.read_bytes() == data for path, data in before.items())


@pytest.mark.parametrize("name", ["fifo", "null", "trust.toml", "state", "m.ktc", "link"])
def test_a_receipt_replaces_nothing_special(model, capsys, out, nothing_runs, name):
    os.mkfifo(out / "fifo")
    (out / "null").symlink_to("/dev/null")
    (out / "trust.toml").write_text('format = "kinetic-trust"\nversion = 1\nmode = "enforce"\n')
    with State(out / "state"):
        pass
    (out / "m.ktc").write_bytes(BUNDLE_MAGIC)
    (out / "link").symlink_to("trust.toml")
    special = name in ("fifo", "null")
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    refused(capsys, 3 if special else 2, model, "x", "--receipt", out / name)
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert (out / "fifo").is_fifo() and (out / "null").is_char_device()


def _opening_file():
    table = {"type": "kinetic-opening", "version": 1, "receipt_id": "00" * 32, "salt": "11" * 32, "tokens": [1]}
    return json.dumps(table).encode()


@pytest.mark.parametrize("challenge", ["", "0f" * 15, "0f" * 65, "0f" * 16 + "0", "hello"])
def test_what_is_no_challenge_is_refused(model, capsys, out, challenge):
    refused(capsys, 2, model, "x", "--receipt", out / "a.json", "--challenge", challenge, "-q")
    assert os.listdir(out) == []


def test_a_challenge_may_be_spelled_as_for_the_verifier(model, out):
    challenge = "0F" * 8 + "aB" * 8
    assert run(model, "x", "--receipt", out / "a.json", "--challenge", challenge, "-q") == 0
    assert read_receipt(out / "a.json").record["challenge"] == challenge.lower()
    assert main(["verify-receipt", str(out / "a.json"), "--challenge", challenge, "-t", "1"]) == 0


def test_a_seed_beside_a_challenge_is_refused(model, capsys, out):
    words = (model, "x", "--receipt", out / "a.json", "--challenge", CHALLENGE, "-q")
    assert "seed" in refused(capsys, 2, *words, "--seed", "7")
    assert os.listdir(out) == []
    assert run(*words, "--seed", "-1") == 0, "-1 says that none is given"


# --- what is written ---


def test_everything_at_once(model, capsys, out, key):
    words = ["--sign", key, "--challenge", CHALLENGE, "--commit", "--withhold-prompt"]
    assert run(model, "hidden?", "--receipt", out / "a.json", *words, "--json") == 0
    answer, news = capsys.readouterr()
    answer = json.loads(answer)
    assert sorted(os.listdir(out)) == ["a.json", "a.opening.json"]
    record, signatures = read_receipt(out / "a.json")
    assert check_signatures(record, signatures) == [answer["key_id"]] == [signature.key_id(signature.key_pair(SEED)[1])]
    assert answer["receipt_id"] == receipt_id(record) and answer["seed"] == challenge_seed(record)
    assert len(record["logit_commit"]) == len(answer["tokens"]) == 8
    assert answer["opening"] == str(out / "a.opening.json") and answer["prompt_tokens"] == []
    stats = {name: value for name, value in answer["stats"].items() if name.startswith("prompt_")}
    nothing = {"prompt_tokens": 0, "prompt_tokens_reused": 0, "prompt_seconds": 0.0, "prompt_tokens_per_second": 0.0}
    assert stats == nothing
    assert "kinetic: prompt withheld, answer 8 tokens" in news and answer["stats"]["answer_tokens"] == 8
    assert [line for line in news.splitlines() if "a.opening.json" in line and "can read the prompt" in line]
    assert stat.S_IMODE((out / "a.opening.json").stat().st_mode) == 0o600


def test_without_flags_nothing_is_added(model, capsys, out):
    assert run(model, "x", "--receipt", out / "a.json", "--json", "--seed", "1") == 0
    answer = json.loads(capsys.readouterr().out)
    record, signatures = read_receipt(out / "a.json")
    assert signatures == [] and record["logit_commit"] == [] and record["challenge"] == ""
    assert record["prompt"]["tokens"] == answer["prompt_tokens"] and os.listdir(out) == ["a.json"]
    assert (answer["receipt_id"], answer["key_id"], answer["opening"]) == (receipt_id(record), "", "")
    assert run(model, "x", "--json", "--seed", "1") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["receipt_id"], answer["key_id"], answer["opening"]) == ("", "", "")


def test_two_runs_commit_to_the_same_logits(model, out):
    for name in ("1.json", "2.cbor"):
        assert run(model, "x", "--receipt", out / name, "--seed", "9", "--commit") == 0
    first, second = (read_receipt(out / name).record for name in ("1.json", "2.cbor"))
    assert first["logit_commit"] == second["logit_commit"]
    assert len(first["logit_commit"]) == len(first["output"]["tokens"]) == len(set(first["logit_commit"]))
    assert first | {"claims": {}} == second | {"claims": {}}


def test_a_withheld_receipt_shows_nothing_of_the_prompt(model, out):
    for name, words in (("plain", []), ("kept", ["--withhold-prompt", "--opening", out / "o"])):
        assert run(model, "hidden", "--receipt", out / name, "--seed", "9", "--commit", *words) == 0
    plain, kept = (read_receipt(out / name).record for name in ("plain", "kept"))
    tokens = plain["prompt"]["tokens"]
    assert list(read_opening(out / "o").tokens) == tokens and kept["prompt"]["tokens"] == []
    assert bytes.fromhex(token_digest(tokens)) not in canonical_bytes(kept)
    assert token_digest(tokens) not in (out / "kept").read_text()
    assert set(kept["logit_commit"]).isdisjoint(plain["logit_commit"])
    assert kept["output"] == plain["output"] and sorted(os.listdir(out)) == ["kept", "o", "plain"]


def test_quiet_is_quiet_about_the_opening_too(model, capsys, out):
    assert run(model, "x", "--receipt", out / "a.json", "--withhold-prompt", "-q") == 0
    assert capsys.readouterr() == ("one day\n", "") and (out / "a.opening.json").exists()


def test_the_seed_is_recomputed_from_the_challenge(model, out):
    assert run(model, "x", "--receipt", out / "a.json", "--challenge", CHALLENGE) == 0
    envelope = json.loads((out / "a.json").read_bytes())
    check_record(envelope["receipt"])
    for path, value in (("challenge", "0e" + CHALLENGE[2:]), ("challenge", CHALLENGE + "00"), ("max_tokens", 40)):
        with pytest.raises(KtcError) as caught:
            check_record(envelope["receipt"] | {path: value})
        assert (caught.value.exit_code, caught.value.name) == (11, "CHALLENGE_SEED")
    without = envelope["receipt"] | {"challenge": ""}
    assert check_record(without), "without a challenge any seed will do, and a verifier who sent one asks for it"


def test_a_full_context_keeps_the_challenges_seed(model, out):
    words = ["--challenge", CHALLENGE, "-n", "-2", "-c", "24"]
    assert run(model, "x", "--receipt", out / "a.json", *words) == 0
    record = read_receipt(out / "a.json").record
    assert record["stop"]["reason"] == "context" and record["overrides"]["context"] == 24


# --- interruption, and other processes ---


def test_control_c_keeps_the_receipt_its_signature_and_its_opening(model, capsys, out, key, monkeypatch):
    real = Engine.generate

    def generate(self, request, *rest, **options):
        for step in real(self, request, *rest, **options):
            if step.position - len(request.prompt) == 3:
                signal.raise_signal(signal.SIGINT)
            yield step

    monkeypatch.setattr(Engine, "generate", generate)
    words = ["--sign", key, "--commit", "--withhold-prompt", "--challenge", CHALLENGE]
    assert run(model, "x", "--receipt", out / "a.json", *words) == 130
    record, signatures = read_receipt(out / "a.json")
    assert record["stop"]["reason"] == "interrupt" and record["text"] == "one "
    assert len(record["logit_commit"]) == 4 and check_signatures(record, signatures)
    assert read_opening(out / "a.opening.json").receipt_id == receipt_id(record)
    assert "a.opening.json" in capsys.readouterr().err


def test_control_c_at_a_real_process(tmp_path, out, key):
    endless = write_talker(tmp_path / "endless.gguf", context=2**20)
    words = [
        "run",
        endless,
        "x",
        "-n",
        "-2",
        "--receipt",
        out / "a.json",
        "-t",
        "1",
        "--sign",
        key,
        "--withhold-prompt",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.read(30)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in errors, errors
    record, signatures = read_receipt(out / "a.json")
    assert record["stop"]["reason"] == "interrupt" and check_signatures(record, signatures)
    assert read_opening(out / "a.opening.json").receipt_id == receipt_id(record)


def test_as_another_process(model, kinetic, out, key):
    kinetic("run", model, "x", "--receipt", out / "a.json", "--sign", key, "--commit", "--challenge", CHALLENGE, "-q")
    record, signatures = read_receipt(out / "a.json")
    assert check_signatures(record, signatures) and len(record["logit_commit"]) == 8
    done = kinetic("verify-receipt", out / "a.json")
    assert done.stdout.startswith("IDENTICAL") and "valid" not in done.stdout
    refusal = kinetic("run", model, "x", "--commit", check=2)
    assert refusal.stdout == "" and refusal.stderr.count("\n") == 1
    key.chmod(0o640)
    refusal = kinetic("run", model, "x", "--receipt", out / "b.json", "--sign", key, check=12)
    assert refusal.stdout == "" and refusal.stderr.count("\n") == 1 and not (out / "b.json").exists()


def test_a_disk_that_is_full_leaves_neither_file(model, capsys, out, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ktc.files.os.replace", full)
    assert run(model, "x", "--receipt", out / "a.json", "--withhold-prompt", "-q") == 3
    assert "No space left" in capsys.readouterr().err and os.listdir(out) == []


def test_an_edited_commit_is_noticed(model, capsys, out):
    assert run(model, "x", "--receipt", out / "a.json", "--commit", "-q") == 0
    assert main(["verify-receipt", str(out / "a.json"), "-t", "1"]) == 0
    envelope = json.loads((out / "a.json").read_bytes())
    envelope["receipt"]["logit_commit"][4] = "00" * 8
    (out / "a.json").write_text(json.dumps(envelope))
    assert main(["verify-receipt", str(out / "a.json"), "-t", "1"]) == 10
