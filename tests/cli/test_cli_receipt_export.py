"""``kinetic receipt export``, and where the commands about receipts do not write."""

import base64
import hashlib
import json
import os
import socket
from pathlib import Path

import cbor2
import pytest

from ktc import trust
from ktc.digest import token_digest
from ktc.keys import read_public_key
from receipts.audit_state import State
from receipts.encode import read_receipt
from receipts.identity import canonical_bytes, receipt_id
from receipts.withhold import opening_of, withhold, write_opening
from tests.support.receipt_files import (
    KEY,
    OTHER_KEY,
    OTHER_SEED,
    SALT,
    answer,
    put,
    put_raw,
    put_withheld,
)
from tests.support.sample_receipts import SEED, changed, sample
from tests.support.talking_model import write_talker

# Where output may not go


@pytest.mark.parametrize("command", ["sign", "convert", "export"])
def test_places_that_are_not_written_to(refused, place, command):
    put("a.json", sample(), SEED)
    put_withheld()
    write_talker(place / "m.gguf")
    (place / "folder").mkdir()
    os.mkfifo("fifo")
    Path("trust.toml").write_text('# whom we trust\nformat="kinetic-trust"\nversion = 1\nmode = "enforce"\n')
    (place / "link").symlink_to("trust.toml")
    with State("state"):
        pass
    with socket.socket(socket.AF_UNIX) as special:
        special.bind("special")
    words = {
        "sign": ("sign", "a.json", "--key", "k2", "-o"),
        "convert": ("convert", "a.json", "--to", "json", "-o"),
        "export": ("export", "dsse", "a.json", "--sign", "k2", "-o"),
    }[command]
    for output, code in (
        ("", 2),
        ("-", 2),
        ("k2", 2),
        ("k2.pub", 2),
        ("m.gguf", 2),
        ("w.opening.json", 2),
        ("trust.toml", 2),
        ("state", 2),
        ("link", 2),
        ("folder", 3),
        ("fifo", 3),
        ("/dev/null", 3),
        ("special", 3),
        ("absent/b.json", 3),
    ):
        err = refused(*words, output, code=code)
        assert ("is no regular file" in err) == (output in ("folder", "special", "fifo", "/dev/null"))
    assert (place / "special").is_socket() and (place / "fifo").is_fifo(), "not replaced by a file"


def test_an_export_never_replaces_its_receipt(refused, place):
    put("a.json", sample(), SEED)
    (place / "link").symlink_to("a.json")
    for output in ("a.json", "./a.json", "link"):
        refused("export", "dsse", "a.json", "-o", output, code=2)


def test_hostile_file_names_steer_no_terminal(run, place):
    for number, name in enumerate(("\x1b[31mred\n", "\u202ecod.", "\x9b31m")):
        put(f"{name}a.json", sample())
        outputs = [
            run("sign", f"{name}a.json", "--key", "k2"),
            run("convert", f"{name}a.json", "--to", "json", "-o", f"{name}b"),
            run("export", "dsse", f"{name}a.json", "-o", f"{name}c"),
            run("diff", f"{name}a.json", f"{name}b"),
            run("show", f"{name}absent", code=3),
            run("sign", f"{name}a.json", "--key", "k2", code=12),
            run("export", "dsse", f"{name}a.json", "-o", f"{name}c", "--sign", "k2", code=12),
        ]
        put(f"{name}d.json", sample(clock="noon"))
        outputs.append(run("diff", f"{name}a.json", f"{name}d.json"))
        put_withheld(f"{name}w{number}", f"{name}o{number}")
        outputs.append(run("open", f"{name}w{number}", f"{name}o{number}"))
        outputs.append(run("open", f"{name}w{number}", f"{name}a.json", code=11))
        for text in "".join(out + err for out, err in outputs).split("\n"):
            assert text.isprintable(), text


# export


def test_export_dsse(run, refused, place):
    put("a.json", sample(), SEED)
    assert run("export", "dsse", "a.json", "-o", "a.dsse")[0] == f"a.dsse: dsse, receipt {receipt_id(sample())}\n"
    table = json.loads((place / "a.dsse").read_text())
    assert base64.b64decode(table["payload"]) == canonical_bytes(sample())
    assert [one["keyid"] for one in table["signatures"]] == [KEY]
    run("export", "dsse", "a.json", "-o", "b.dsse", "--sign", "k2")
    assert [one["keyid"] for one in json.loads((place / "b.dsse").read_text())["signatures"]] == [KEY, OTHER_KEY]
    refused("export", "dsse", "a.json", "-o", "c.dsse", "--sign", "k", code=12, name="REPEATED_KEY")


def test_export_dsse_of_an_unsigned_receipt_needs_a_key(run, refused, place):
    put("a.json")
    assert "add a signature with --sign KEY" in refused(
        *("export", "dsse", "a.json", "-o", "a.dsse"), code=12, name="UNSIGNED"
    )
    run("export", "dsse", "a.json", "-o", "a.dsse", "--sign", "k")
    assert len(json.loads((place / "a.dsse").read_text())["signatures"]) == 1


@pytest.mark.parametrize("kind", ["intoto", "cose", "vsa"])
def test_other_exports_need_a_key(refused, place, kind):
    put("a.json", sample(), SEED)
    assert "--sign" in refused("export", kind, "a.json", "-o", "b", code=2)
    refused("export", kind, "a.json", "-o", "b", "--sign", "k.pub", code=12)


def test_export_intoto_and_cose(run, place):
    put("a.json", sample(), SEED)
    run("export", "intoto", "a.json", "-o", "a.intoto", "--sign", "k2")
    statement = json.loads(base64.b64decode(json.loads((place / "a.intoto").read_text())["payload"]))
    assert statement["predicate"]["receiptId"] == receipt_id(sample())
    run("export", "cose", "a.json", "-o", "a.cose", "--sign", "k2", "--issuer", "https://example.org")
    header = cbor2.loads(cbor2.loads((place / "a.cose").read_bytes()).value[0])
    assert header[4].hex() == OTHER_KEY and header[15][1] == "https://example.org"


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("dsse", ("--issuer", "x")),
        ("intoto", ("--sign", "k", "--issuer", "x")),
        ("cose", ("--sign", "k", "--model", "x")),
        ("dsse", ("--key", "k.pub")),
        ("intoto", ("--sign", "k", "--trust", "x")),
        ("cose", ("--sign", "k", "-t", "0")),
        ("dsse", ("--model", "")),
        ("dsse", ("-q",)),
        ("cose", ("--sign", "k", "--issuer", "")),
        ("cose", ("--sign", "k", "--issuer", " ")),
        ("cose", ("--sign", "k", "--issuer", "https://\udcff")),
        ("cose", ("--sign", "k", "--issuer", "https://example.org\n")),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(refused, place, kind, flags):
    put("a.json", sample(), OTHER_SEED)
    refused("export", kind, "a.json", "-o", "b", *flags, code=2)


# export vsa: from a rerun


VSA = ("-t", "1", "-q", "--sign", "k2", "--model", "m.gguf")


def summary(path):
    envelope = json.loads(Path(path).read_text())
    assert [one["keyid"] for one in envelope["signatures"]] == [OTHER_KEY]
    return json.loads(base64.b64decode(envelope["payload"]))


def test_vsa_of_a_true_receipt_is_passed(run, place):
    data = answer(place, "a.json").read_bytes()
    out, _ = run("export", "vsa", "a.json", "-o", "a.vsa", *VSA)
    assert out.startswith("a.vsa: vsa, receipt ") and ": PASSED: all 8 tokens" in out
    predicate = summary("a.vsa")["predicate"]
    assert (predicate["verificationResult"], predicate["verifiedLevels"]) == ("PASSED", ["KINETIC_RERUN_IDENTICAL"])
    assert predicate["inputAttestations"][0]["digest"] == {"sha256": hashlib.sha256(data).hexdigest()}
    assert "valid" not in json.dumps(predicate), "no key was pinned"


def test_vsa_of_an_edited_receipt_is_failed_and_exits_10(run, place):
    record = read_receipt(answer(place, "a.json")).record
    tokens = [record["output"]["tokens"][0] ^ 1, *record["output"]["tokens"][1:]]
    put("b.json", changed(changed(record, "output.tokens", tokens), "output.digest", token_digest(tokens)))
    put_raw("c.json", changed(record, "output.tokens", tokens))  # the digest tells too, but the token comes first
    for name in ("b", "c"):
        out, _ = run("export", "vsa", f"{name}.json", "-o", f"{name}.vsa", *VSA, code=10)
        assert ": FAILED: token 0: receipt says" in out
        assert summary(f"{name}.vsa")["predicate"]["verificationResult"] == "FAILED"


def test_vsa_of_an_interrupted_receipt_says_so(run, place):
    record = read_receipt(answer(place, "a.json")).record
    tokens = record["output"]["tokens"][:3]
    part = changed(changed(record, "stop.reason", "interrupt"), "text", "one")
    put("b.json", changed(part, "output", {"tokens": tokens, "digest": token_digest(tokens)}))
    run("export", "vsa", "b.json", "-o", "b.vsa", *VSA)
    assert summary("b.vsa")["predicate"]["verifiedLevels"] == ["KINETIC_RERUN_IDENTICAL_PREFIX"]


def test_vsa_says_whose_signature_was_asked_for(run, refused, place):
    answer(place, "a.json", SEED)
    run("export", "vsa", "a.json", "-o", "a.vsa", *VSA, "--key", "k.pub")
    predicate = summary("a.vsa")["predicate"]
    assert predicate["policy"]["annotations"] == {"pinnedKeys": [KEY]}
    refused("export", "vsa", "a.json", "-o", "b.vsa", *VSA, "--key", "k2.pub", code=12, name="UNTRUSTED_KEY")
    refused("export", "vsa", "a.json", "-o", "b.vsa", *VSA, "--key", "k", code=12)
    refused("export", "vsa", "a.json", "-o", "b.vsa", *VSA, "--trust", "absent.toml", code=3)
    Path("t.toml").touch()
    refused("export", "vsa", "a.json", "-o", "t.toml", *VSA, "--trust", "t.toml", code=2)


def test_vsa_tells_the_digest_of_the_very_bytes_that_decided(run, place, monkeypatch):
    answer(place, "a.json", SEED)
    shown = base64.b64encode(read_public_key("k.pub")).decode()
    file = Path("t.toml")
    file.write_text(
        'format = "kinetic-trust"\nversion = 1\nmode = "enforce"\nrevoked = []\n[receipt]\nthreshold = 1\n'
        f'[[keys]]\nname = "alice"\npublic_key = "{shown}"\nscopes = ["receipt"]\n'
    )
    data, real = file.read_bytes(), trust.parse_trust

    def parse(read):
        file.write_bytes(b"# changed\n" + data)
        return real(read)

    monkeypatch.setattr(trust, "parse_trust", parse)
    run("export", "vsa", "a.json", "-o", "a.vsa", *VSA, "--trust", "t.toml")
    predicate = summary("a.vsa")["predicate"]
    assert predicate["policy"]["digest"] == {"sha256": hashlib.sha256(data).hexdigest()}
    assert "valid signature by alice" in json.dumps(predicate)


def test_vsa_of_what_cannot_be_judged_is_not_written(refused, run, place):
    record = read_receipt(answer(place, "a.json")).record
    put("other.json", changed(record, "model.files.0.sha256", "00" * 32))
    assert "nothing is written" in refused("export", "vsa", "other.json", "-o", "b", *VSA, code=13, name="MODEL")
    put("text.json", changed(record, "text", "two days"))
    refused("export", "vsa", "text.json", "-o", "b", *VSA, code=11, name="TEXT")
    write_opening("o.json", opening_of(withhold(record, SALT), SALT, record["prompt"]["tokens"]))
    put("w.json", withhold(record, SALT))
    refused("export", "vsa", "w.json", "-o", "b", *VSA, code=13, name="WITHHELD")
    run("export", "vsa", "w.json", "-o", "w.vsa", *VSA, "--opening", "o.json")
    assert summary("w.vsa")["predicate"]["verificationResult"] == "PASSED"
