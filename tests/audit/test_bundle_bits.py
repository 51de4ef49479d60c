"""No bit of a bundle can change unnoticed, and none of a bundle can be missing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ktc.errors import KtcError
from ktc.verify import verify
from tests.support.sample_bundles import OTHER_SEED, SEED, SLOT, forge

ROOT = Path(__file__).resolve().parents[2]
PLACE = re.compile(r"header|manifest|section '|leaf [0-9]|byte [0-9]+|signature slot|signature [0-9]|it begins with")
"""A message names at least one of these."""

SIGNED = [pytest.param((), id="unsigned"), pytest.param((SEED, OTHER_SEED), id="signed twice")]


class Probe:
    """A bundle on the disk of which one bit at a time is turned over."""

    def __init__(self, path, data):
        path.write_bytes(data)
        self.path, self.data = path, data
        self.handle = os.open(path, os.O_RDWR)

    def flip(self, at, bit):
        """Exit code, name and message of the check with this bit turned over."""
        os.pwrite(self.handle, bytes([self.data[at] ^ 1 << bit]), at)
        try:
            verify(self.path, sha256=False)
        except KtcError as error:
            return error.exit_code, error.name, str(error)
        finally:
            os.pwrite(self.handle, self.data[at : at + 1], at)
        return 0, "", "nothing was noticed"

    def missed(self, places):
        """The flips that are not refused as they must be."""
        found = {(at, bit): self.flip(at, bit) for at, bit in places}
        return {
            place: outcome
            for place, outcome in found.items()
            if outcome[0] not in (11, 12) or not PLACE.search(outcome[2])
        }


@pytest.fixture(params=SIGNED)
def probe(request, tmp_path):
    made = Probe(tmp_path / "tiny.ktc", forge(seeds=request.param))
    verify(made.path, sha256=True)
    yield made
    os.close(made.handle)


def meaning(data):
    """Places of the bytes that are not zero, those around them included; the rest is padding."""
    used = {at for at, byte in enumerate(data) if byte}
    return sorted({near for at in used for near in (at - 1, at, at + 1) if 0 <= near < len(data)})


def is_signed(probe):
    return any(probe.data[-SLOT + 36 + 1 :])


def test_every_bit_of_what_means_something(probe):
    assert probe.missed((at, bit) for at in meaning(probe.data) for bit in range(8)) == {}


def test_every_byte_of_the_padding(probe):
    rest = sorted(set(range(len(probe.data))) - set(meaning(probe.data)))
    if is_signed(probe):
        rest = rest[::16]  # judging signatures each time takes long, and is no different
    assert probe.missed((at, at % 8) for at in rest) == {}


@pytest.mark.slow
def test_every_bit_of_the_padding(probe):
    """With ``test_every_bit_of_what_means_something`` every bit of the file, of a signed one every byte."""
    rest = sorted(set(range(len(probe.data))) - set(meaning(probe.data)))
    bits = [range(8) if not is_signed(probe) else (at % 8,) for at in rest]
    assert probe.missed((at, bit) for at, some in zip(rest, bits, strict=True) for bit in some) == {}


def test_every_truncation(probe):
    lengths = {*range(0, len(probe.data), 61), *range(200), *(len(probe.data) - SLOT + n for n in range(-9, 9))}
    for length in sorted(lengths | {len(probe.data) - 1}):
        os.truncate(probe.path, 0)
        os.pwrite(probe.handle, probe.data[:length], 0)
        with pytest.raises(KtcError) as refused:
            verify(probe.path)
        assert refused.value.name == ("FILE_LENGTH" if length >= 64 else "NOT_A_BUNDLE"), length


@pytest.mark.parametrize("extra", [b"\0", b"\1", b"PK\3\4", bytes(4096)])
def test_whatever_is_appended(probe, extra):
    os.pwrite(probe.handle, extra, len(probe.data))
    with pytest.raises(KtcError) as refused:
        verify(probe.path)
    assert refused.value.name == "FILE_LENGTH"


def run(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_nothing_slow_is_imported(tmp_path):
    (tmp_path / "tiny.ktc").write_bytes(forge())
    program = "import sys, ktc.__main__ as m; code = m.main(sys.argv[1:]); print(*sys.modules); sys.exit(code)"
    result = run(program, "verify", tmp_path / "tiny.ktc")
    assert (result.returncode, result.stderr) == (0, "")
    modules = set(result.stdout.splitlines()[-1].split())
    slow = {"numpy", "kinetic", "receipts", "nacl", "dataclasses", "inspect", "asyncio", "tempfile"}
    assert not modules & slow
