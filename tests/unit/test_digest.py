"""Domain strings, token digests, and the digests of files."""

import hashlib
import os

import pytest
from blake3 import blake3

from ktc import digest
from ktc.errors import FileProblem

DOMAINS = [value for name, value in vars(digest).items() if name.isupper() and isinstance(value, bytes)]


def test_no_domain_begins_another():
    assert len(DOMAINS) == 8
    assert all(domain.endswith(b"\0") and domain.count(b"\0") == 1 for domain in DOMAINS)
    assert len(set(DOMAINS)) == len(DOMAINS)


def test_digest_is_blake3_of_domain_and_parts():
    assert digest.digest(b"a\0", b"b", b"c") == blake3(b"a\0bc").digest()


def test_token_digest_holds_the_length():
    assert digest.token_bytes([1, 258]).hex() == "02000000000000000100000002010000"
    assert digest.token_digest([]) == blake3(b"kinetic tokens v1\0" + bytes(8)).hexdigest()
    assert digest.token_digest([0]) != digest.token_digest([0, 0])


def test_withheld_commitment_depends_on_the_salt():
    first, second = (digest.withheld_commitment(salt, [1, 2]) for salt in (bytes(32), bytes(31) + b"\1"))
    assert first != second
    assert first == blake3(digest.WITHHELD + digest.token_bytes([1, 2]), key=bytes(32)).hexdigest()


def test_a_row_of_logits_is_eight_bytes_keyed_by_the_salt():
    row, salt = bytes(range(64)), bytes(range(32))
    whole = blake3(b"kinetic logits v1\0" + row)
    assert digest.logits_digest(row) == digest.logits_digest(memoryview(row)) == whole.digest()[:8]
    assert digest.logits_digest(row, salt) == blake3(b"kinetic logits v1\0" + row, key=salt).digest()[:8]
    assert len({digest.logits_digest(row), digest.logits_digest(row, salt), digest.logits_digest(row, bytes(32))}) == 3


@pytest.mark.parametrize("size", [0, 1, digest._CHUNK - 1, digest._CHUNK, digest._CHUNK + 1])
def test_file_digests(tmp_path, size):
    data = bytes(index * 7 % 251 for index in range(size))
    path = tmp_path / "file"
    path.write_bytes(data)
    seen = []
    found = digest.file_digests(path, lambda done, total: seen.append((done, total)))
    assert found == (size, blake3(data).hexdigest(), hashlib.sha256(data).hexdigest())
    assert seen[-1:] == ([(size, size)] if size else [])


def test_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, name in [(tmp_path / "fifo", "NOT_A_FILE"), (tmp_path, "NOT_A_FILE"), (tmp_path / "no", "UNREADABLE")]:
        with pytest.raises(FileProblem) as caught:
            digest.file_digests(path)
        assert caught.value.name == name


def test_a_file_that_grows_is_noticed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * digest._CHUNK))

    def grow(done, total):
        with path.open("ab") as file:
            file.write(b"x")

    with pytest.raises(FileProblem) as caught:
        digest.file_digests(path, grow)
    assert caught.value.name == "FILE_CHANGED"
