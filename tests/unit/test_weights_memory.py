"""A weight that was packed, or only looked at, does not stay in memory a second time."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from kinetic.backends.cpu import memory
from kinetic.gguf import MappedFile
from ktc.inputs import ModelFile
from ktc.writer import write_bundle

SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(not SMAPS.exists(), reason="this system does not say what of a map is in memory")


def resident(path):
    """Bytes of a mapped file that are in this process's memory."""
    entries = re.findall(rf"{re.escape(str(path))}\n.*?\nRss:\s+(\d+) kB", SMAPS.read_text(), re.DOTALL)
    assert entries
    return 1024 * sum(map(int, entries))


def test_whole_pages_go_and_their_content_stays(tmp_path):
    path, data = tmp_path / "pages", np.random.default_rng(5).bytes(65 << 12)
    path.write_bytes(data)
    source = MappedFile(path)
    assert bytes(source.buffer) == data
    before = resident(path)
    source.release(1, 64 << 12)  # the first page and the last are needed by others
    assert before - resident(path) == 63 << 12
    assert bytes(source.buffer) == data
    source.release(5, 17)
    source.close()


@pytest.mark.parametrize("kind", ["gguf", "ktc"])
def test_a_loaded_model_is_in_memory_once(smollm2_path, tmp_path, kind):
    from kinetic.api import Model

    path = smollm2_path
    if kind == "ktc":
        path = tmp_path / "smollm2.ktc"
        with ModelFile(smollm2_path) as source:
            write_bundle(path, source, name="smollm2", file="smollm2.gguf")
    with Model(path, threads=1, check="none") as model:
        assert resident(path) < 0.3 * path.stat().st_size
        assert model.generate("Hi", max_tokens=2, temperature=0).text
        assert resident(path) < 0.3 * path.stat().st_size


def test_pages_of_a_part_are_given_back():
    """And what stands before and behind them stays."""
    data = memory.allocate_huge(3 << 20)
    data[:] = 7
    part = data[5000 : (2 << 20) + 77]
    memory.give_back(part)
    first, last = 8192, 2 << 20
    assert (data[:first] == 7).all() and (data[last:] == 7).all()
    assert (data[first:last] == 0).all() or sys.platform != "linux"
    small = memory.allocate(9000)
    small[:] = 7
    memory.give_back(small)
    assert (small == 7).all()
