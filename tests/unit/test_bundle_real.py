"""Bundles of real models: the file that comes out, and bits that are turned over."""

import os
import random

import pytest

from ktc.digest import file_digests
from ktc.errors import KtcError
from ktc.inputs import ModelFile
from ktc.signature import key_pair
from ktc.unpack import unpack
from ktc.verify import verify
from ktc.writer import write_bundle
from tests.support.sample_bundles import SEED

pytestmark = pytest.mark.slow

FLIPS = 2000


@pytest.fixture(scope="module")
def bundle(smollm2_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("real") / "smollm2.ktc"
    with ModelFile(smollm2_path) as model:
        write_bundle(path, model, name="smollm2", file=smollm2_path.name, sign=[key_pair(SEED)])
    return path


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_there_and_back(name, request, tmp_path):
    source = request.getfixturevalue("smollm2_path" if name == "smollm2" else "gemma3_path")
    with ModelFile(source) as model:
        written = write_bundle(tmp_path / "a.ktc", model, name=name, file=source.name)
    assert verify(tmp_path / "a.ktc", sha256=True).manifest_digest == written.manifest_digest
    section = unpack(tmp_path / "a.ktc", tmp_path / "a.gguf")
    found = file_digests(tmp_path / "a.gguf")
    assert found == file_digests(source)
    assert (section.length, section.blake3, section.sha256) == found


def test_random_bits(bundle):
    chance = random.Random(1)
    size = bundle.stat().st_size
    handle = os.open(bundle, os.O_RDWR)
    for _ in range(FLIPS):
        at, bit = chance.randrange(size), chance.randrange(8)
        byte = os.pread(handle, 1, at)
        os.pwrite(handle, bytes([byte[0] ^ 1 << bit]), at)
        with pytest.raises(KtcError, match=r"leaf|section|byte|slot") as refused:
            verify(bundle)
        assert refused.value.exit_code in (11, 12), (at, bit)
        os.pwrite(handle, byte, at)
    os.close(handle)
    verify(bundle)
