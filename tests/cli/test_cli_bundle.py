"""The commands about bundles as a user runs them, exit codes included; and the other commands, given a bundle."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kinetic.gguf import Gguf
from kinetic.loader import open_model_file
from ktc import keys
from ktc.reader import open_verified
from tests.cli.conftest import ROOT
from tests.support.gguf_writer import write_split
from tests.support.talking_model import TEMPLATE, write_talker
from tests.support.tiny_models import write_tiny_llama

SEED, OTHER = bytes(range(32)), bytes(range(1, 33))
GREEDY = ("--temp", "0", "-t", "1")


@pytest.fixture
def model(tmp_path):
    return write_talker(tmp_path / "tiny.gguf", template=TEMPLATE)


@pytest.fixture
def key(tmp_path):
    keys.write_key_pair(tmp_path / "k", SEED)
    return tmp_path / "k"


@pytest.fixture
def packed(kinetic, model, tmp_path):
    kinetic("pack", model, "-o", tmp_path / "t.ktc", "--chunks", "-q")
    return tmp_path / "t.ktc"


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def inside(path, tensor, byte=0):
    """Where in the bundle a byte of a tensor stands."""
    with open_model_file(path, check="none") as loaded:
        return loaded.bundle.gguf.offset + loaded.gguf.tensors[tensor].offset + byte


def says(done, *texts):
    """All of it is said on standard error, in one line of one sentence."""
    assert done.stdout == "" and done.stderr.startswith("kinetic: ") and done.stderr.count("\n") == 1
    for text in texts:
        assert text in done.stderr


# --- the way of a bundle ---


def test_pack_sign_verify_run_and_unpack(kinetic, model, key, tmp_path):
    bundle, second = tmp_path / "t.ktc", tmp_path / "k2"
    done = kinetic("pack", model, "-o", bundle, "--sign", key, "--chunks", "--release", "4", "--name", "tiny-one")
    digest = done.stdout.split()[-1]
    assert done.stdout.startswith(f"{bundle}: tiny-one, release 4, ") and done.stderr == ""
    done = kinetic("verify", bundle, "--key", f"{key}.pub")
    assert (
        "INTACT: every section and 1 leaf, SHA-256 not checked" in done.stdout
        and "; valid signature by k " in done.stdout
    )
    assert digest in done.stdout and done.stderr == ""
    keys.write_key_pair(second, OTHER)
    assert kinetic("sign", bundle, "--key", second).stdout.count("key ") == 2
    says(kinetic("sign", bundle, "--key", second, check=12), f"{bundle}: ", "signed the bundle already")
    done = kinetic("verify", bundle, "--key", f"{second}.pub", "--sha256")
    assert "SHA-256 too" in done.stdout and digest in done.stdout
    done = kinetic("run", bundle, "Hi", *GREEDY)
    assert done.stdout == "one day\n" and "kinetic: bundle t.ktc: signatures consistent, signers unknown" in done.stderr
    kinetic("unpack", bundle, "-o", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == model.read_bytes()


def test_who_must_have_signed(kinetic, packed, key, tmp_path):
    assert "; unsigned" in kinetic("verify", packed).stdout
    done = kinetic("verify", packed, "--key", f"{key}.pub", check=12)
    assert done.stdout == "" and done.stderr.startswith(f"{packed}: SIGNATURE (UNSIGNED): ")
    kinetic("sign", packed, "--key", key)
    done = kinetic("verify", packed)
    assert "signature consistent, signer unknown" in done.stdout and "valid" not in done.stdout
    keys.write_key_pair(tmp_path / "k2", OTHER)
    assert "(UNTRUSTED_KEY)" in kinetic("verify", packed, "--key", tmp_path / "k2.pub", check=12).stderr
    trust = tmp_path / "trust.toml"
    entry = kinetic("keygen", "-o", tmp_path / "k3", "--json").stdout
    trust.write_text(
        'format = "kinetic-trust"\nversion = 1\nmode = "enforce"\nrevoked = []\n[bundle]\nthreshold = 1\n'
        f'[[keys]]\nname = "eve"\npublic_key = "{json.loads(entry)["public_key"]}"\nscopes = ["bundle"]\n'
    )
    kinetic("verify", packed, "--trust", trust, check=12)
    kinetic("sign", packed, "--key", tmp_path / "k3")
    assert "valid signature by eve" in kinetic("verify", packed, "--trust", trust).stdout
    says(kinetic("verify", packed, "--trust", trust, "--key", f"{key}.pub", check=2), "give one of them")
    assert "(OLD_RELEASE)" in kinetic("verify", packed, "--min-release", "1", check=12).stderr


def test_verify_says_how_each_of_several_ends(kinetic, model, packed, tmp_path):
    bad, other = tmp_path / "bad.ktc", tmp_path / "other.ktc"
    bad.write_bytes(packed.read_bytes())
    flip(bad, inside(packed, "token_embd.weight", 5))
    other.write_bytes(b"GGUF")
    done = kinetic("verify", packed, bad, other, tmp_path / "none.ktc", check=11)
    assert done.stdout.count("\n") == 2 and done.stdout.startswith(f"{packed}: INTACT")
    first, second, third = done.stderr.splitlines()
    assert first.startswith(
        f"{bad}: MALFORMED (LEAF_DIGEST): leaf 0 of section 'gguf' (its bytes 0 to {model.stat().st_size})"
    )
    assert second.startswith(f"{other}: MALFORMED (NOT_A_BUNDLE): ")
    assert third.startswith(f"{tmp_path}/none.ktc: UNREADABLE (NO_FILE): ")
    rows = [json.loads(line) for line in kinetic("verify", packed, bad, "--json", check=11).stdout.splitlines()]
    assert [(row["file"], row["verdict"], row["exit_code"]) for row in rows] == [
        (str(packed), "INTACT", 0),
        (str(bad), "MALFORMED", 11),
    ]
    assert (rows[0]["bundle_name"], rows[0]["sha256_checked"], rows[1]["damage"]["leaves"]) == ("tiny", False, [0])
    assert kinetic("verify", packed, "-q").stdout == ""
    kinetic("verify", tmp_path / "none.ktc", check=3)


def test_info_tells_what_a_bundle_says(kinetic, model, packed, key, tmp_path):
    kinetic("sign", packed, "--key", key)
    lines = kinetic("info", packed).stdout.splitlines()
    facts = {line[:12].strip(): line[14:] for line in lines if line[:12].strip()}
    sizes = [f"{path.stat().st_size / 1e3:,.1f} kB" for path in (packed, model)]
    assert facts["size"] == f"{sizes[0]}; the model in it {sizes[1]}, GGUF version 3"
    assert facts["file"] == "t.ktc" and facts["bundle"] == "tiny, release 0, holds tiny.gguf"
    assert facts["signature"].startswith("signature consistent, signer unknown (key ")
    assert facts["checks"] == "each of 1 leaf when first used" and facts["runs here"] == "yes"
    bare, facts = (json.loads(kinetic("info", path, "--json").stdout) for path in (model, packed))
    with open_verified(packed, check="none") as bundle:
        assert facts["bundle"]["manifest_digest"] == bundle.manifest_digest
    assert bare["bundle"] is None and facts["bundle"]["file"] == "tiny.gguf"
    different = {name for name in bare if bare[name] != facts[name]}
    assert different == {"bundle", "files"}


def test_profiles_and_derivations_are_packed_and_shown(kinetic, model, tmp_path):
    digest = "0" * 64
    (tmp_path / "p.toml").write_text(
        '[[profile]]\ndevice = "cpu"\nisa = "plain"\ncores = 9\nthreads = 3\nprompt_rows = 64\n'
    )
    (tmp_path / "d.toml").write_text(
        'tool = "quantize"\ntool_version = "1"\nsettings = "Q8"\n'
        f'[[files]]\nname = "f16.gguf"\nsize = 1\nblake3 = "{digest}"\nsha256 = "{digest}"\n'
    )
    options = ("--profile", tmp_path / "p.toml", "--derivation", tmp_path / "d.toml")
    done = kinetic("pack", model, "-o", tmp_path / "a.ktc", *options)
    assert "profile: device cpu, isa plain, cores 9, threads 3, prompt_rows 64" in done.stdout
    shown = kinetic("info", tmp_path / "a.ktc").stdout
    assert "cpu (plain) with 9 cores: 3 threads, 64 rows of a prompt" in shown
    assert "quantize 1 Q8, from f16.gguf" in shown and "all of it before use" in shown
    assert "profile" not in kinetic("run", tmp_path / "a.ktc", "Hi", *GREEDY).stderr  # another machine's
    (tmp_path / "p.toml").write_text('[[profile]]\nlibrary = "/tmp/x.so"\n')
    says(kinetic("pack", model, "-o", tmp_path / "b.ktc", *options, check=11), "library")
    assert not (tmp_path / "b.ktc").exists()


def test_a_measured_profile_is_used_and_said(kinetic, model, tmp_path):
    done = kinetic("pack", model, "-o", tmp_path / "a.ktc", "--profile", "auto", "--json")
    (profile,) = json.loads(done.stdout)["profiles"]
    line = kinetic("run", tmp_path / "a.ktc", "Hi", "--temp", "0").stderr.splitlines()[-1]
    threads = f"{profile['threads']} thread{'' if profile['threads'] == 1 else 's'}"
    assert line.endswith(f"profile of the bundle: {threads}, {profile['prompt_rows']} rows of a prompt at once")
    assert "thread" not in kinetic("run", tmp_path / "a.ktc", "Hi", *GREEDY).stderr


def test_what_pack_refuses_before_it_begins(kinetic, model, packed, tmp_path):
    target = tmp_path / "x.ktc"
    says(kinetic("pack", model, "-o", target, "--name", "../x", check=2), "name")
    says(kinetic("pack", model, "-o", target, "--name", "", check=2), "name")
    says(kinetic("pack", model, "-o", tmp_path / "x.gguf", check=2), "x.gguf", "ends in .ktc")
    says(kinetic("pack", model, "-o", target, "--release", "-1", check=2), "release")
    says(kinetic("pack", packed, "-o", target, check=2), "is a bundle already")
    says(kinetic("pack", model, "-o", packed, check=3), "is not overwritten")
    says(kinetic("pack", model, "-o", tmp_path / "no" / "x.ktc", check=3), "cannot write")
    says(kinetic("pack", tmp_path / "none.gguf", "-o", target, check=3), "there is no file")
    says(kinetic("pack", model, "-o", target, "--sign", tmp_path / "none", check=3), "none")
    (tmp_path / "link.gguf").symlink_to(model)
    says(kinetic("pack", tmp_path / "link.gguf", "-o", target, check=3), "symbolic link")
    assert not target.exists() and not (tmp_path / "x.gguf").exists()


def test_what_is_no_bundle_is_called_what_it_is(kinetic, model, packed, key, tmp_path):
    kinetic("run", model, "Hi", *GREEDY, "--receipt", tmp_path / "a.json")
    kinetic("run", model, "Hi", *GREEDY, "--receipt", tmp_path / "a.cbor")
    (tmp_path / "void.ktc").write_bytes(b"")
    (tmp_path / "text.ktc").write_bytes(b"some text")
    for name, said in {
        model.name: "`kinetic pack` makes a bundle of it",
        "a.json": "`kinetic verify-receipt`",
        "a.cbor": "`kinetic verify-receipt`",
        "void.ktc": "the file is empty",
        "text.ktc": "it begins with",
    }.items():
        path, target = tmp_path / name, tmp_path / "o"
        assert said in kinetic("verify", path, check=11).stderr
        for words in (
            ("sign", path, "--key", key),
            ("unpack", path, "-o", target),
            ("repair", path, "--from", model, "-o", target),
            ("export", "intoto", path, "--sign", key, "-o", target),
        ):
            says(kinetic(*words, check=11), f"{path}: this is not a bundle: ", said)
    assert "name the bundle in it" in kinetic("verify", tmp_path, check=3).stderr
    says(kinetic("sign", tmp_path, "--key", key, check=3), "name the bundle in it")
    (tmp_path / "bundles").mkdir()
    says(kinetic("sign", "bundles", "--key", key, check=3, cwd=tmp_path), "name the bundle in it")
    says(kinetic("pack", model, "-o", tmp_path / "b.ktc", "--sign", tmp_path / "a.json", check=12), "is no key file")


def test_repair_with_another_copy(kinetic, model, packed, tmp_path):
    whole, fixed = packed.read_bytes(), tmp_path / "fixed.ktc"
    assert "nothing is damaged" in kinetic("repair", packed, "--from", model, "-o", fixed).stdout
    flip(packed, inside(packed, "token_embd.weight"))
    done = kinetic("repair", packed, "--from", model, "-o", fixed)
    assert done.stdout == f"{fixed}: mended 1 leaf from {model}\n" and fixed.read_bytes() == whole
    says(kinetic("repair", packed, "--from", model, "-o", fixed, check=3), "is not overwritten")
    other = write_talker(tmp_path / "other.gguf", b"not")
    says(kinetic("repair", packed, "--from", other, "-o", tmp_path / "no.ktc", check=11), "cannot repair")
    assert not (tmp_path / "no.ktc").exists()


# --- what is given a bundle ---


def test_receipts_are_good_for_the_bundle_and_for_the_bare_model(kinetic, model, packed, tmp_path):
    bare, inner = tmp_path / "bare.json", tmp_path / "inner.json"
    kinetic("run", model, "Hi", *GREEDY, "--receipt", bare)
    kinetic("run", packed, "Hi", *GREEDY, "--receipt", inner)
    records = [json.loads(path.read_text())["receipt"] for path in (bare, inner)]
    with open_verified(packed) as bundle:
        assert [record["bundle"] for record in records] == ["", bundle.manifest_digest]
    assert records[0]["model"] == records[1]["model"] and records[0]["output"] == records[1]["output"]
    for receipt in (bare, inner):
        for given in (model, packed):
            assert kinetic("verify-receipt", receipt, "--model", given).stdout.startswith("IDENTICAL")
    flip(packed, inside(packed, "token_embd.weight", 5))
    done = kinetic("verify-receipt", inner, "--model", packed, check=13)
    assert done.stderr.startswith("UNVERIFIABLE (LEAF_DIGEST): ")


def test_a_model_is_found_in_a_bundle_by_the_hashes_of_a_receipt(kinetic, model, packed, tmp_path):
    receipt = tmp_path / "a.json"
    kinetic("run", model, "Hi", *GREEDY, "--receipt", receipt)
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True, exist_ok=True)
    packed.rename(models / "t.ktc")
    model.unlink()
    assert kinetic("verify-receipt", receipt).stdout.startswith("IDENTICAL")
    assert "t.ktc " in kinetic("models").stdout
    assert kinetic("run", "t.ktc", "Hi", *GREEDY, "-q").stdout == kinetic("run", "t", "Hi", *GREEDY, "-q").stdout
    kinetic("verify", "t.ktc")


def big(folder):
    """A model with weights far behind what is read when it is opened, and the name of a tensor there."""
    path = write_tiny_llama(folder / "big.gguf", width=1024, ffn=4096, layers=2, types={"": "Q8_0"})
    with Gguf.open(path) as model:
        far = [name for name, tensor in model.tensors.items() if tensor.offset > 10 << 20]
        return path, far[-1]


def test_a_flipped_bit_is_found_before_a_token_is_made_of_it(kinetic, tmp_path):
    (model, far), bundle, receipt = big(tmp_path), tmp_path / "big.ktc", tmp_path / "a.json"
    kinetic("pack", model, "-o", bundle, "--chunks")
    words = ("run", bundle, "Hi", *GREEDY, "-n", "4", "-q")
    assert kinetic(*words).stdout == kinetic("run", model, *words[2:]).stdout != ""
    for tensor in ("token_embd.weight", far):
        at = inside(bundle, tensor, 100)
        with open_model_file(bundle) as loaded:
            leaf = (at - loaded.bundle.gguf.offset) >> 20
        flip(bundle, at)
        for flags in ((), ("--check", "lazy"), ("--check", "full")):
            done = kinetic(*words, *flags, "--receipt", receipt, check=11)
            says(done, f"big.ktc: leaf {leaf} of section 'gguf'")
            assert not receipt.exists()
        flip(bundle, at)
    flip(bundle, inside(bundle, far, 100))
    kinetic("info", bundle)  # reads no weights
    assert "its weights are not checked" in kinetic(*words[:-1], "--check", "none").stderr
    done = kinetic(*words, "--check", "none", "--receipt", receipt, check=11)
    assert "does not have the digests that its manifest names" in done.stderr and not receipt.exists()


def test_one_line_says_what_is_checked(kinetic, model, packed, tmp_path):
    kinetic("pack", model, "-o", tmp_path / "flat.ktc")
    lazily, whole = "each part is checked when first used", "all of it was checked"
    for bundle, flags, said in (
        (packed, (), lazily),
        (packed, ("--check", "full"), whole),
        (tmp_path / "flat.ktc", (), whole),
    ):
        first = kinetic("run", bundle, "Hi", *GREEDY, *flags).stderr.splitlines()[0]
        assert first == f"kinetic: bundle {bundle.name}: unsigned; {said}"
    assert kinetic("run", packed, "Hi", *GREEDY, "-q").stderr == ""
    assert "bundle" not in kinetic("run", model, "Hi", *GREEDY).stderr
    kinetic("run", packed, "Hi", "--check", "some", check=2)


def test_a_receipt_never_replaces_a_bundle(kinetic, packed):
    before = packed.read_bytes()
    kinetic("run", packed, "Hi", *GREEDY, "--receipt", packed, check=2)
    assert packed.read_bytes() == before


def test_a_damaged_bundle_is_refused_by_every_command(kinetic, packed, tmp_path):
    flip(packed, 100)
    for words in (
        ("run", packed, "Hi"),
        ("info", packed),
        ("unpack", packed, "-o", tmp_path / "o"),
        ("repair", packed, "--from", packed, "-o", tmp_path / "o"),
    ):
        says(kinetic(*words, check=11), "manifest")
    assert not (tmp_path / "o").exists()


# --- split models ---


def test_a_split_model_is_joined_and_answers_as_before(kinetic, tmp_path):
    whole = write_talker(tmp_path / "whole.gguf", template=TEMPLATE)
    with Gguf.open(whole) as model:
        metadata = {
            name: value if isinstance(value, (str, int, float)) else list(value)
            for name, value in model.metadata.items()
        }
        tensors = {
            name: model.data(name).view(np.float32).reshape(tensor.shape) for name, tensor in model.tensors.items()
        }
    names = list(tensors)
    parts = [{name: tensors[name] for name in group} for group in (names[:1], names[1:5], names[5:])]
    paths = write_split(tmp_path, "Tiny", metadata, parts)
    kinetic("pack", paths[1], "-o", tmp_path / "t.ktc", "--chunks")
    assert kinetic("run", tmp_path / "t.ktc", "Hi", *GREEDY, "-q").stdout == "one day\n"
    shown = kinetic("info", tmp_path / "t.ktc").stdout
    assert "tiny, release 0, holds Tiny.gguf" in shown and all(path.name in shown for path in paths)
    kinetic("unpack", tmp_path / "t.ktc", "-o", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == whole.read_bytes()
    paths[2].unlink()
    says(kinetic("pack", paths[0], "-o", tmp_path / "u.ktc", check=11), "missing")


# --- for other tools ---


def test_export_intoto(kinetic, packed, key, tmp_path):
    done = kinetic("export", "intoto", packed, "--sign", key, "-o", tmp_path / "s.json")
    assert done.stdout == f"{tmp_path / 's.json'}\n"
    assert json.loads((tmp_path / "s.json").read_text())["payloadType"] == "application/vnd.in-toto+json"
    for target in (packed, key, tmp_path / "k.pub"):
        kinetic("export", "intoto", packed, "--sign", key, "-o", target, check=2)
    flip(packed, inside(packed, "token_embd.weight"))
    says(kinetic("export", "intoto", packed, "--sign", key, "-o", tmp_path / "t.json", check=11), "leaf 0")
    assert not (tmp_path / "t.json").exists()


def test_export_oms_is_what_model_signing_accepts(kinetic, model, tmp_path):
    pytest.importorskip("cryptography")
    pytest.importorskip("model_signing")
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    secret, public, folder = tmp_path / "ec.pem", tmp_path / "ec.pub", tmp_path / "folder"
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", secret], check=True)
    subprocess.run(["openssl", "ec", "-in", secret, "-pubout", "-out", public], check=True, stderr=subprocess.DEVNULL)
    folder.mkdir()
    model.rename(folder / "tiny.gguf")
    kinetic("export", "oms", folder, "--ec-key", secret, "-o", tmp_path / "model.sig")
    words = ["verify", "key", folder, "--signature", tmp_path / "model.sig", "--public_key", public]
    judge = [sys.executable, "-m", "model_signing", *map(str, words)]
    assert subprocess.run(judge, capture_output=True).returncode == 0
    flip(folder / "tiny.gguf", 9_000)
    assert subprocess.run(judge, capture_output=True).returncode != 0


def test_without_cryptography_it_says_what_to_install(tmp_path, model, key):
    code = "import sys; sys.modules['cryptography'] = None; from kinetic.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["export", "oms", str(model), "--ec-key", str(key), "-o", str(tmp_path / "s")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "KINETIC_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "pip install kinetic-engine[oms]" in done.stderr
    assert not Path(tmp_path / "s").exists()
