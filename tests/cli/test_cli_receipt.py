"""``kinetic receipt``: exit codes, what is written, and that nothing is where something is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from receipts.encode import read_receipt
from receipts.identity import question_id, receipt_id
from receipts.sign import sign_record
from receipts.withhold import opening_of, withhold, write_opening
from tests.support.receipt_files import (
    KEY,
    OTHER_KEY,
    OTHER_SEED,
    SALT,
    answer,
    put,
    put_forged,
    put_raw,
    put_withheld,
)
from tests.support.sample_receipts import SEED, changed, full_sample, sample
from tests.support.talking_model import write_talker

ROOT = Path(__file__).resolve().parents[2]


# The group


def test_help_names_every_command(run):
    out, _ = run("--help")
    for command in ("show", "sign", "convert", "export", "diff", "open"):
        assert f"\n    {command} " in out
        assert run(command, "--help")[0].startswith(f"usage: kinetic receipt {command} ")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nothing",),
        ("show",),
        ("show", "a", "b"),
        ("show", "a", "--jso"),
        ("sign", "a"),
        ("sign", "a", "--key"),
        ("convert", "a"),
        ("convert", "a", "-ob.json"),
        ("diff", "a"),
        ("export", "pdf", "a", "-o", "b"),
        ("export", "dsse", "a"),
        ("export", "vsa", "a", "-o", "b", "--sign", "k", "--key", "x", "--trust", "y"),
        ("open", "a"),
    ],
)
def test_misuse_is_2(refused, words):
    refused(*words, code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("show", "{}"),
        ("sign", "{}", "--key", "k"),
        ("convert", "{}", "-o", "b.json"),
        ("diff", "{}", "{}"),
        ("diff", "sound.json", "{}"),
        ("diff", "{}", "sound.json"),
        ("open", "{}", "none.json"),
        *(("export", kind, "{}", "-o", "b", "--sign", "k2") for kind in ("dsse", "intoto", "cose", "vsa")),
    ],
)
def test_what_is_no_sound_receipt_is_refused_by_all(refused, place, words):
    put("sound.json")
    (place / "broken.json").write_bytes(b"{}")
    put_raw("old.json", changed(sample(), "version", 2))
    (place / "deep.json").write_bytes(b"[" * 100)
    for file, code, name in (
        ("absent.json", 3, None),
        ("broken.json", 11, "MISSING_FIELD"),
        ("old.json", 13, "VERSION"),
        ("deep.json", 14, "TOO_DEEP"),
    ):
        err = refused(*(word.format(file) for word in words), code=code, name=name)
        assert file in err, "the message says which file"


@pytest.mark.parametrize(
    "words",
    [
        ("sign", "forged.json", "--key", "k2"),
        ("sign", "forged.json", "--key", "k"),
        ("convert", "forged.json", "-o", "b.cbor"),
        ("diff", "sound.json", "forged.json"),
        ("open", "forged.json", "w.opening.json"),
        *(("export", kind, "forged.json", "-o", "b", "--sign", "k2") for kind in ("dsse", "intoto", "cose", "vsa")),
    ],
)
def test_a_broken_signature_is_12_for_all(refused, place, words):
    put("sound.json")
    put_withheld()
    put_forged()
    assert "forged.json: the signature does not match" in refused(*words, code=12, name="BAD_SIGNATURE")


# show


def test_show(run, place):
    put("a.json", sample(), SEED)
    out, err = run("show", "a.json")
    rows = dict(line.split(None, 1) for line in out.splitlines() if line[0] != " ")
    assert rows["receipt"] == receipt_id(sample()) and rows["question"] == question_id(sample())
    assert rows["prompt"] == "3 tokens" and rows["seed"] == "7"
    assert rows["settings"] == "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05"
    assert rows["answer"] == "4 tokens, ended by an end token" and rows["text"] == "red blue green"
    assert rows["signed"] == f"signature consistent, signer unknown (key {KEY})"
    assert rows["model"].startswith("tiny.gguf (llama, 123,456 bytes, BLAKE3 abab")
    assert "valid" not in out and err == ""


def test_show_of_everything_that_can_be_attached(run, place):
    put("a.json", full_sample(), form="cbor")
    out, _ = run("show", "a.json")
    for said in (
        "adapter     lora.gguf (scale 0.5",
        "logit_bias of 2 tokens",
        "rope_scaling yarn, rope_freq_base 10000, yarn_ext_factor 1",
        "stops at    ' yellow'",
        "grammar     0202",
        "digests of the logits of 4 tokens",
        "commitment trace 0404",
        "extension note: 'for a test'",
        "clock 2026-03-14T15:09:26",
        "signed      unsigned",
    ):
        assert said in out, said


def test_show_of_greedy_withheld_and_interrupted(run, place):
    record = sample(sampling={}, output=[], text="", stop_reason="interrupt", max_tokens=9, completion_index=2)
    put("a.json", withhold(record, SALT))
    out, _ = run("show", "a.json")
    assert "\nsettings    temperature 0 (the highest logit)\n" in out
    assert "\nprompt      withheld (commitment " in out and "\nlimit       9 tokens\n" in out
    assert "\nanswer      0 tokens, interrupted: the beginning of a longer one\n" in out
    assert "\nindex       answer 2 to this question and seed" in out


def test_show_lets_no_text_steer_the_terminal_or_pass_for_a_row(run, place):
    put("a.json", sample(text="\x1b[2J\x9b1m\u202ex\rz\nsigned      valid signature by alice\u2028", claims={}))
    out, _ = run("show", "a.json")
    assert not set(out) & set("\x1b\x9b\u202e\r\u2028") and "\\x1b[2J\\x9b1m\\u202ex\\rz" in out
    assert [line for line in out.splitlines() if line.startswith("signed")] == ["signed      unsigned"]
    assert "\n            signed      valid signature by alice\\u2028\n" in out, (
        "a line of the text, which has no label"
    )


def test_show_tells_faults_after_what_is_said(run, place):
    put_forged()
    out, err = run("show", "forged.json", code=12)
    assert "signed      signature not consistent: the signature does not match" in out
    assert err == "kinetic: SIGNATURE (BAD_SIGNATURE): the signature does not match what was signed\n"
    put_raw("a.json", changed(sample(), "output.tokens.0", 5))
    out, err = run("show", "a.json", code=11)
    assert "text         red blue green" in out and "(OUTPUT_DIGEST)" in err
    record = changed(sample(), "output.digest", "00" * 32)
    put_raw("both.json", record, [sign_record(sample(), SEED)])
    faults = json.loads(run("show", "both.json", "--json", code=12)[0])["faults"]
    assert [fault["exit_code"] for fault in faults] == [12, 11]


def test_show_json(run, place):
    put("a.cbor", full_sample(), SEED, OTHER_SEED, form="cbor")
    table = json.loads(run("show", "a.cbor", "--json")[0])
    assert (table["receipt_id"], table["question_id"]) == (receipt_id(full_sample()), question_id(full_sample()))
    assert table["key_ids"] == [KEY, OTHER_KEY] and table["receipt"] == full_sample() and table["faults"] == []
    assert table["file"] == "a.cbor" and "valid" not in table["signature"]


def test_show_starts_at_once_and_without_numpy(place):
    put("a.json", sample(), SEED)
    program = "import sys; from kinetic.cli import main; main(['receipt', 'show', 'a.json']); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert not modules & {"numpy", "numba", "jinja2", "kinetic.api", "kinetic.gguf", "asyncio", "tempfile"}


# sign


@pytest.mark.parametrize("form", ["json", "cbor"])
def test_sign_in_place_keeps_the_encoding_and_the_receipt(run, place, form):
    path = put("a", full_sample(), form=form)
    out, _ = run("sign", "a", "--key", "k")
    assert out == f"a: receipt {receipt_id(full_sample())} signed by key {KEY}\n"
    run("sign", "a", "--key", "k2")
    assert (path.read_bytes()[:1] == b"{") == (form == "json")
    receipt = read_receipt(path)
    assert receipt.record == full_sample()
    assert receipt.signatures == [sign_record(full_sample(), seed) for seed in (SEED, OTHER_SEED)]


def test_sign_elsewhere_leaves_the_file_alone(run, place):
    before = put("a.json").read_bytes()
    run("sign", "a.json", "--key", "k", "-o", "b.json")
    assert (place / "a.json").read_bytes() == before and len(read_receipt("b.json").signatures) == 1


def test_sign_twice_is_refused(refused, run, place):
    put("a.json", sample(), SEED)
    err = refused("sign", "a.json", "--key", "k", code=12, name="REPEATED_KEY")
    assert f"{KEY} has signed this receipt already" in err


@pytest.mark.parametrize(("key", "code"), [("k.pub", 12), ("absent", 3), ("a.json", 12)])
def test_sign_needs_a_secret_key(refused, place, key, code):
    put("a.json")
    refused("sign", "a.json", "--key", key, "-o", "b.json", code=code)


def test_sign_refuses_an_answer_that_contradicts_itself(refused, place):
    put_raw("a.json", changed(sample(), "output.digest", "00" * 32))
    refused("sign", "a.json", "--key", "k", code=11, name="OUTPUT_DIGEST")


def test_sign_refuses_a_secret_key_that_others_can_read(refused, place):
    put("a.json")
    (place / "k").chmod(0o644)
    refused("sign", "a.json", "--key", "k", code=12, name="EXPOSED_KEY")


def test_one_signature_too_many_is_a_limit(refused, place):
    put("a.json", sample(), *(bytes([number]) * 32 for number in range(64)))
    refused("sign", "a.json", "--key", "k", code=14, name="TOO_MANY_ENTRIES")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_what_few_may_read_is_written_for_no_others(run, place):
    path = put("a.json")
    path.chmod(0o600)
    umask = os.umask(0o022)
    try:
        run("sign", "a.json", "--key", "k")
        run("convert", "a.json", "-o", "b.cbor")
        run("export", "dsse", "a.json", "-o", "c.json")
        assert [(place / name).stat().st_mode & 0o777 for name in ("a.json", "b.cbor", "c.json")] == [0o600] * 3
        put("open.json").chmod(0o666)
        for name in ("new.cbor", "b.cbor"):
            run("convert", "open.json", "-o", name)
        assert (place / "new.cbor").stat().st_mode & 0o777 == 0o644, "as the umask says"
        run("sign", "open.json", "--key", "k")
        assert [(place / name).stat().st_mode & 0o777 for name in ("b.cbor", "open.json")] == [0o600, 0o666]
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)


def test_a_link_is_written_through(run, place):
    put("a.json")
    (place / "link.json").symlink_to("a.json")
    run("sign", "link.json", "--key", "k")
    assert (place / "link.json").is_symlink() and len(read_receipt("a.json").signatures) == 1


# convert


def test_convert_there_and_back_is_the_same_receipt(run, place):
    before = put("a.json", full_sample(), SEED).read_bytes()
    assert run("convert", "a.json", "-o", "b.cbor")[0] == f"b.cbor: cbor, receipt {receipt_id(full_sample())}\n"
    assert run("convert", "b.cbor", "-o", "c.json")[0] == f"c.json: json, receipt {receipt_id(full_sample())}\n"
    assert (place / "c.json").read_bytes() == before and (place / "b.cbor").read_bytes()[0] >= 0xA0


def test_convert_in_place_and_by_flag(run, place):
    put("a.json", sample(), SEED)
    run("convert", "a.json", "-o", "a.json", "--to", "cbor")
    assert (place / "a.json").read_bytes()[0] >= 0xA0 and read_receipt("a.json").record == sample()
    run("convert", "a.json", "-o", "B.CBOR", "--to", "json")
    assert (place / "B.CBOR").read_bytes()[:1] == b"{"


def test_convert_must_know_the_form(refused, place):
    put("a.json")
    assert "--to json or --to cbor" in refused("convert", "a.json", "-o", "b.txt", code=2)
    refused("convert", "a.json", "-o", "b.json", "--to", "yaml", code=2)


# diff


def test_diff_exit_codes(run, place):
    put("a.json", sample(), SEED)
    put("b.cbor", changed(sample(), "claims.time", ""), form="cbor")
    put("c.json", sample(output=[1, 5, 0], text=" red?"))
    put("d.json", sample(prompt=[1]))
    put("e.json", sample(prompt=[1], output=[0], text=""))
    assert run("diff", "a.json", "b.cbor")[0].startswith("IDENTICAL: one question, one answer: 4 tokens")
    assert "token 1: id 2 in a.json, id 5 in c.json" in run("diff", "a.json", "c.json", code=10)[0]
    for name in ("d.json", "e.json"):
        out, _ = run("diff", "a.json", name, code=13)
        assert out.startswith("UNVERIFIABLE (QUESTION): two questions") and "prompt.tokens" in out


def test_diff_json(run, place):
    put("a.json")
    put("b.json", sample(output=[1, 5, 0], text=" red?"))
    table = json.loads(run("diff", "--json", "a.json", "b.json", code=10)[0])
    assert (table["first_file"], table["second_file"], table["name"]) == ("a.json", "b.json", "DIFFERS")
    assert (table["position"], table["first_token"], table["second_token"]) == (1, 2, 5)


def test_diff_tells_the_graver_fault(refused, place):
    put_forged()
    put_raw("broken.json", {})
    for pair in (("broken.json", "forged.json"), ("forged.json", "broken.json"), ("absent.json", "forged.json")):
        assert "forged.json" in refused("diff", *pair, code=12)
    refused("diff", "absent.json", "broken.json", code=11)


# open


def test_open(run, place):
    put_withheld()
    out, _ = run("open", "w.json", "w.opening.json")
    assert out == (
        "the opening is this receipt's; its prompt has 3 tokens:\n  3 1 4\n"
        "rerun it with: kinetic verify-receipt w.json --opening w.opening.json\n"
    )
    table = json.loads(run("open", "w.json", "w.opening.json", "--json")[0])
    assert (table["tokens"], table["text"]) == ([3, 1, 4], None)
    assert table["receipt_id"] == receipt_id(withhold(sample(), SALT))


def test_the_command_it_names_can_be_pasted(run, place):
    put_withheld("a b.json", "o'.json")
    assert run("open", "a b.json", "o'.json")[0].endswith("""verify-receipt 'a b.json' --opening 'o'"'"'.json'\n""")


def test_open_refuses_what_does_not_belong(refused, place):
    put_withheld()
    put("shown.json")
    put("other.json", withhold(sample(prompt=[9]), SALT))
    for file in ("shown.json", "other.json"):
        refused("open", file, "w.opening.json", code=11, name="OPENING")
    text = (place / "w.opening.json").read_text()
    (place / "edited.json").write_text(text.replace("[3, 1, 4]", "[3, 1, 5]"))
    refused("open", "w.json", "edited.json", code=11, name="OPENING")
    assert "w.json: " in refused("open", "w.json", "w.json", code=11, name="NOT_AN_OPENING")
    refused("open", "w.json", "absent.json", code=3)


def test_open_with_the_model_shows_the_text(run, refused, place):
    record = read_receipt(answer(place, "a.json")).record
    write_opening("o.json", opening_of(withhold(record, SALT), SALT, record["prompt"]["tokens"]))
    put("w.json", withhold(record, SALT))
    assert "\nas text:\n  <begin>x\nrerun it with: " in run("open", "w.json", "o.json", "--model", "m.gguf")[0]
    assert json.loads(run("open", "w.json", "o.json", "--model", "m.gguf", "--json")[0])["text"] == "<begin>x"
    write_talker(place / "n.gguf", b"two")
    refused("open", "w.json", "o.json", "--model", "n.gguf", code=13, name="MODEL")
    refused("open", "w.json", "o.json", "--model", "absent.gguf", code=3)


def test_open_loads_no_engine(place):
    record = read_receipt(answer(place, "a.json")).record
    write_opening("o.json", opening_of(withhold(record, SALT), SALT, record["prompt"]["tokens"]))
    put("w.json", withhold(record, SALT))
    words = ["receipt", "open", "w.json", "o.json", "--model", "m.gguf"]
    program = f"import sys; from kinetic.cli import main; main({words!r}); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert "as text:" in done.stdout
    assert not set(done.stdout.splitlines()[-1].split()) & {"numba", "kinetic.engine", "kinetic.backends"}
