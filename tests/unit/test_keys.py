"""Key files: the bytes openssl writes, modes and links, and every file that is no Ed25519 key."""

import base64
import os
import shutil
import stat
import subprocess

import pytest

from ktc import keys, limits, signature
from ktc.errors import FileProblem, KtcError, LimitExceeded, SignatureProblem

SEED = bytes(range(32))
PAIR = signature.key_pair(SEED)
SECRET = """\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
"""
PUBLIC = """\
-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=
-----END PUBLIC KEY-----
"""

OTHER_DER = {  # DER that begins like a PKCS#8 or SPKI structure of another algorithm
    "RSA": "30820122300d06092a864886f70d01010105000382010f00",
    "ECDSA": "3059301306072a8648ce3d020106082a8648ce3d03010703420004",
    "DSA": "308201b73082012c06072a8648ce3804013082011f02818100",
    "X25519": "302a300506032b656e032100" + "11" * 32,
    "X448": "3042300506032b656f033900" + "11" * 56,
    "Ed448": "3043300506032b6571033a00" + "11" * 57,
}


def pem(label, der):
    text = base64.b64encode(der).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def put(path, text, mode=0o600):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def refused(call, *arguments, **options):
    with pytest.raises(KtcError) as caught:
        call(*arguments, **options)
    assert str(caught.value).count("\n") == 0
    return type(caught.value), caught.value.name, str(caught.value)


# --- writing


def test_the_bytes_of_both_files(tmp_path):
    assert keys.write_key_pair(tmp_path / "k", SEED) == PAIR
    assert (tmp_path / "k").read_text() == SECRET and (tmp_path / "k.pub").read_text() == PUBLIC
    assert sorted(os.listdir(tmp_path)) == ["k", "k.pub"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes(tmp_path, umask):
    before = os.umask(umask)
    try:
        keys.write_key_pair(tmp_path / "k")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "k.pub").stat().st_mode) == 0o666 & ~umask


def test_the_secret_is_never_readable_in_between(tmp_path, monkeypatch):
    modes, really = {}, os.open

    def watched(path, *rest, **options):
        handle = really(path, *rest, **options)
        modes[os.path.basename(path)] = stat.S_IMODE(os.fstat(handle).st_mode)
        return handle

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(0)
    try:
        keys.write_key_pair(tmp_path / "k")
    finally:
        os.umask(before)
    assert modes["k"] == 0o600 and modes["k.pub"] == 0o666


def test_each_pair_is_new_and_reads_back(tmp_path):
    pairs = [keys.write_key_pair(tmp_path / name) for name in "ab"]
    assert pairs[0].seed != pairs[1].seed
    for name, pair in zip("ab", pairs, strict=True):
        assert keys.read_secret_key(tmp_path / name) == pair == signature.key_pair(pair.seed)
        assert keys.read_public_key(tmp_path / f"{name}.pub") == pair.public


@pytest.mark.parametrize("there", ["k", "k.pub"])
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_nothing_is_overwritten(tmp_path, there, kind):
    place = tmp_path / there
    if kind == "file":
        place.write_text("mine")
    elif kind == "link":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.mkdir()
    before = sorted(os.listdir(tmp_path))
    assert refused(keys.write_key_pair, tmp_path / "k")[:2] == (FileProblem, "EXISTS")
    assert sorted(os.listdir(tmp_path)) == before
    assert kind != "file" or place.read_text() == "mine"


@pytest.mark.parametrize("fails", [1, 2])
def test_no_half_pair(tmp_path, monkeypatch, fails):
    """A disk that is full at the first or at the second file."""
    calls, really = [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) == fails:
            raise OSError(28, "No space left on device")
        really(handle)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("ktc.files.sync_folder", lambda folder: None)
    assert refused(keys.write_key_pair, tmp_path / "k")[:2] == (FileProblem, "UNWRITABLE")
    assert len(calls) == fails and os.listdir(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(handle, data):
        os.close(handle)
        if b"PUBLIC" in data:
            raise KeyboardInterrupt

    monkeypatch.setattr("ktc.files._write_and_sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keys.write_key_pair(tmp_path / "k")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path):
    assert refused(keys.write_key_pair, tmp_path / "no" / "k")[:2] == (FileProblem, "UNWRITABLE")


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_seed_of_another_length(tmp_path, length):
    assert refused(keys.write_key_pair, tmp_path / "k", bytes(length))[:2] == (SignatureProblem, "BAD_KEY")
    assert os.listdir(tmp_path) == []


# --- openssl


@pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl program here")
def test_openssl_reads_what_is_written_and_writes_what_is_read(tmp_path):
    def openssl(*words):
        return subprocess.run(["openssl", *words], cwd=tmp_path, capture_output=True, check=True, timeout=60).stdout

    keys.write_key_pair(tmp_path / "k", SEED)
    assert openssl("pkey", "-in", "k", "-pubout") == PUBLIC.encode()
    assert openssl("pkey", "-in", "k") == SECRET.encode()
    openssl("genpkey", "-algorithm", "ed25519", "-out", "theirs")
    openssl("pkey", "-in", "theirs", "-pubout", "-out", "theirs.pub")
    (tmp_path / "theirs").chmod(0o600)
    assert keys.read_secret_key(tmp_path / "theirs").public == keys.read_public_key(tmp_path / "theirs.pub")
    for algorithm, option in (("RSA", "rsa_keygen_bits:1024"), ("EC", "ec_paramgen_curve:P-256"), ("X25519", "")):
        words = ["genpkey", "-algorithm", algorithm, *(["-pkeyopt", option] if option else [])]
        secret = put(tmp_path / algorithm, openssl(*words))
        public = put(tmp_path / f"{algorithm}.pub", openssl("pkey", "-in", algorithm, "-pubout"))
        assert refused(keys.read_secret_key, secret)[:2] == (SignatureProblem, "UNKNOWN_ALGORITHM")
        assert refused(keys.read_public_key, public)[:2] == (SignatureProblem, "UNKNOWN_ALGORITHM")
    locked = put(tmp_path / "locked", openssl("pkey", "-in", "k", "-aes256", "-passout", "pass:x"))
    assert "passphrase" in refused(keys.read_secret_key, locked)[2]


# --- what is no key of ours


@pytest.mark.parametrize(
    "text",
    [SECRET, SECRET.rstrip("\n"), SECRET.replace("\n", "\r\n"), SECRET.replace("GRobHB0e", "GRob\nHB0e")],
    ids=["openssl", "no newline at the end", "CRLF", "in two lines"],
)
def test_spellings_that_are_taken(tmp_path, text):
    assert keys.read_secret_key(put(tmp_path / "k", text)) == PAIR


FOREIGN = {  # text, name of the refusal, and what the sentence must say
    "empty": ("", "BAD_KEY", "no key file in PEM"),
    "binary": (bytes(range(256)), "BAD_KEY", "no key file in PEM"),
    "der": (keys.SECRET_PREFIX + SEED, "BAD_KEY", "no key file in PEM"),
    "raw seed": (SEED, "BAD_KEY", "no key file in PEM"),
    "hex": (SEED.hex(), "BAD_KEY", "no key file in PEM"),
    "two keys": ("{ours}{ours}", "BAD_KEY", "one PEM block"),
    "text before": ("hello\n{ours}", "BAD_KEY", "one PEM block"),
    "text after": ("{ours}hello\n", "BAD_KEY", "one PEM block"),
    "headers": ("{begin}\nProc-Type: 4\n\nAAAA\n{end}\n", "BAD_KEY", "one PEM block"),
    "two labels": ("{begin}\nAAAA\n-----END X-----\n", "BAD_KEY", "one PEM block"),
    "no end": ("{begin}\nAAAA\n", "BAD_KEY", "one PEM block"),
    "nothing in it": ("{begin}\n{end}\n", "BAD_KEY", "damaged"),
    "no base64": ("{begin}\nA=AA\n{end}\n", "BAD_KEY", "damaged"),
    "certificate": (pem("CERTIFICATE", b"0" * 99), "BAD_KEY", "certificate"),
    "encrypted": (pem("ENCRYPTED PRIVATE KEY", b"0" * 99), "BAD_KEY", "passphrase"),
    "unknown label": (pem("CAKE", b"0" * 99), "BAD_KEY", "'CAKE'"),
    "hostile label": ("-----BEGIN \x1b[2J-----\n", "BAD_KEY", "\\x1b"),
    "rsa": (pem("RSA PRIVATE KEY", b"0" * 99), "UNKNOWN_ALGORITHM", "an RSA key"),
    "ec": (pem("EC PARAMETERS", b"0") + pem("EC PRIVATE KEY", b"0" * 99), "UNKNOWN_ALGORITHM", "elliptic"),
    "openssh": (pem("OPENSSH PRIVATE KEY", b"0" * 99), "UNKNOWN_ALGORITHM", "OpenSSH"),
    "openssh public": ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me", "UNKNOWN_ALGORITHM", "OpenSSH"),
    "pgp": ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nAAAA\n", "UNKNOWN_ALGORITHM", "OpenPGP"),
}


@pytest.mark.parametrize("label", [keys.SECRET_LABEL, keys.PUBLIC_LABEL])
@pytest.mark.parametrize("case", FOREIGN)
def test_files_that_are_something_else(tmp_path, case, label):
    text, name, words = FOREIGN[case]
    if isinstance(text, str):
        ours = SECRET if label == keys.SECRET_LABEL else PUBLIC
        for mark, value in (
            ("{ours}", ours),
            ("{begin}", f"-----BEGIN {label}-----"),
            ("{end}", f"-----END {label}-----"),
        ):
            text = text.replace(mark, value)
    read = keys.read_secret_key if label == keys.SECRET_LABEL else keys.read_public_key
    kind, found, sentence = refused(read, put(tmp_path / "k", text))
    assert (kind, found) == (SignatureProblem, name) and words in sentence and sentence.isprintable()
    assert sentence.startswith(str(tmp_path / "k"))


@pytest.mark.parametrize("algorithm", OTHER_DER)
def test_other_algorithms_in_our_wrappings(tmp_path, algorithm):
    text = {label: pem(label, bytes.fromhex(OTHER_DER[algorithm])) for label in (keys.SECRET_LABEL, keys.PUBLIC_LABEL)}
    for label, read in ((keys.SECRET_LABEL, keys.read_secret_key), (keys.PUBLIC_LABEL, keys.read_public_key)):
        kind, name, sentence = refused(read, put(tmp_path / "k", text[label]))
        assert (kind, name) == (SignatureProblem, "UNKNOWN_ALGORITHM")
        assert algorithm in sentence and "kinetic keygen" in sentence


def test_one_for_the_other(tmp_path):
    secret, public = put(tmp_path / "k", SECRET), put(tmp_path / "k.pub", PUBLIC)
    kind, name, sentence = refused(keys.read_public_key, secret)
    assert (kind, name) == (SignatureProblem, "BAD_KEY") and f"name {public}" in sentence
    kind, name, sentence = refused(keys.read_secret_key, public)
    assert (kind, name) == (SignatureProblem, "BAD_KEY") and "without .pub" in sentence


def test_der_is_exactly_the_one_form(tmp_path):
    """Every byte of the prefixes counts, and so does the length; PKCS#8's second version is another form."""
    for prefix, label, key, read in (
        (keys.SECRET_PREFIX, keys.SECRET_LABEL, SEED, keys.read_secret_key),
        (keys.PUBLIC_PREFIX, keys.PUBLIC_LABEL, PAIR.public, keys.read_public_key),
    ):
        whole = prefix + key
        forms = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(prefix))]
        forms += [whole[:-1], whole + b"\0", whole[1:], b"\0" + whole]
        forms.append(bytes.fromhex("3051020101300506032b657004220420") + SEED + bytes.fromhex("812100") + PAIR.public)
        for form in forms:
            kind, _, sentence = refused(read, put(tmp_path / "k", pem(label, form)))
            assert kind is SignatureProblem and str(tmp_path / "k") in sentence


def test_base64_has_one_spelling(tmp_path):
    for text in (
        PUBLIC.replace("Mbg=", "Mbh="),
        PUBLIC.replace("=", ""),
        PUBLIC.replace("/", "_"),
        PUBLIC.replace("=", "=="),
    ):
        assert text != PUBLIC
        assert refused(keys.read_public_key, put(tmp_path / "k", text))[:2] == (SignatureProblem, "BAD_KEY")


@pytest.mark.parametrize("point", ["01" + "00" * 31, "ee" + "ff" * 30 + "7f", "02" + "00" * 31, "ff" * 32])
def test_points_that_are_no_key(tmp_path, point):
    path = put(tmp_path / "k.pub", pem(keys.PUBLIC_LABEL, keys.PUBLIC_PREFIX + bytes.fromhex(point)))
    kind, name, sentence = refused(keys.read_public_key, path)
    assert (kind, name) == (SignatureProblem, "BAD_KEY") and str(path) in sentence and "prime-order" in sentence


# --- the file itself (attack 77)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o601, 0o620, 0o602, 0o644, 0o666])
def test_a_secret_key_that_others_may_use(tmp_path, mode):
    kind, name, sentence = refused(keys.read_secret_key, put(tmp_path / "k", SECRET, mode))
    assert (kind, name) == (SignatureProblem, "EXPOSED_KEY") and "chmod 600" in sentence and f"{mode:04o}" in sentence


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize(
    ("text", "said"), [(PUBLIC, "is a public key"), ('{"receipt": 1}', "is no key file"), ("", "is no key file")]
)
def test_what_is_no_secret_key_is_called_what_it_is(tmp_path, text, said, mode):
    kind, name, sentence = refused(keys.read_secret_key, put(tmp_path / "k", text, mode))
    assert (kind, name) == (SignatureProblem, "BAD_KEY") and said in sentence and "others" not in sentence


def test_a_file_too_large_for_a_key(tmp_path):
    kind, name, sentence = refused(keys.read_secret_key, put(tmp_path / "k", "x" * 20_000, 0o644))
    assert (kind, name) == (LimitExceeded, "FILE_TOO_LARGE") and "is no key file" in sentence


@pytest.mark.parametrize("text", [SECRET.replace("BEGIN", "begin"), pem("EC PRIVATE KEY", b"x")])
def test_any_secret_key_that_others_may_use(tmp_path, text):
    assert refused(keys.read_secret_key, put(tmp_path / "k", text, 0o644))[1] == "EXPOSED_KEY"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_modes_that_are_private(tmp_path, mode):
    assert keys.read_secret_key(put(tmp_path / "k", SECRET, mode)) == PAIR


def test_anybody_may_read_a_public_key(tmp_path):
    assert keys.read_public_key(put(tmp_path / "k.pub", PUBLIC, 0o644)) == PAIR.public


READERS = pytest.mark.parametrize("read", [keys.read_secret_key, keys.read_public_key])


@READERS
def test_a_link_is_not_followed(tmp_path, read):
    put(tmp_path / "real", SECRET if read is keys.read_secret_key else PUBLIC)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    read(tmp_path / "real")
    kind, name, sentence = refused(read, tmp_path / "link")
    assert (kind, name) == (SignatureProblem, "SYMLINK") and kind.exit_code == 12 and "symbolic link" in sentence
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert refused(read, tmp_path / "dangling")[:2] == (SignatureProblem, "SYMLINK")


@READERS
def test_what_is_no_regular_file(tmp_path, read):
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path, "/dev/null"):
        assert refused(read, path)[:2] == (FileProblem, "NOT_A_FILE")
    assert refused(read, tmp_path / "none")[:2] == (FileProblem, "UNREADABLE")


@READERS
def test_a_key_file_is_small(tmp_path, read):
    path = put(tmp_path / "k", b"0" * limits.MAX_KEY_FILE_BYTES)
    assert refused(read, path)[1] == "BAD_KEY"
    put(path, b"0" * (limits.MAX_KEY_FILE_BYTES + 1))
    assert refused(read, path)[:2] == (LimitExceeded, "FILE_TOO_LARGE")


def test_no_handle_stays_open(tmp_path):
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        pytest.skip("open handles can't be counted here")
    os.mkfifo(tmp_path / "fifo", 0o600)
    before = len(os.listdir(folder))
    for path in (tmp_path / "fifo", tmp_path, put(tmp_path / "open", SECRET, 0o644), put(tmp_path / "k", "")):
        refused(keys.read_secret_key, path)
    assert len(os.listdir(folder)) == before
