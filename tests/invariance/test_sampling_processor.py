"""What a processor offers, and what other libraries did to it, changes no draw."""

import hashlib
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from kinetic.backends.reference.candidates import candidates
from kinetic.sampling import Sampler
from kinetic.types import Sampling

ANSWERS = """
import hashlib, numpy as np
from kinetic.backends.reference.candidates import candidates
from kinetic.sampling import Sampler
from kinetic.types import Sampling
state = np.arange(1, 262_145, dtype=np.uint32)
for _ in range(3):  # xorshift: the same numbers everywhere
    state ^= state << 13; state ^= state >> 17; state ^= state << 5
spread = (state >> 8).astype(np.float32) * np.float32(2**-20) - np.float32(8)
rows = [spread, np.zeros_like(spread), np.where(state & 1, np.float32(-0.0), np.float32(0))]
rows.append(np.where(state % 3 == 0, np.float32(-np.inf), spread))
SETTINGS = (
    Sampling(temperature=0), Sampling(), Sampling(top_k=0, top_p=0.99, min_p=0.0, repeat_penalty=1.1),
    Sampling(top_k=4000, typ_p=0.7, xtc_probability=1.0, xtc_threshold=1e-4, dynatemp_range=0.5),
    Sampling(top_k=4000, top_n_sigma=1.1, dry_multiplier=0.8, dry_allowed_length=0, dry_sequence_breakers=()),
)
digest = hashlib.sha256()
for row in rows:
    for settings in SETTINGS:
        digest.update(repr(Sampler(settings, 1, row.size).draw(row, range(5), candidates)).encode())
    ids, values = candidates(row, 0, 28.0)
    digest.update(ids.tobytes() + values.tobytes())
print(digest.hexdigest())
"""


def _dispatched():
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]


def test_answers_do_not_depend_on_what_the_processor_offers():
    found = _dispatched()
    choices = {"", " ".join(found), " ".join(found[len(found) // 2 :]), " ".join(found[-1:])}
    digests = set()
    for disabled in choices:
        environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled}
        done = subprocess.run([sys.executable, "-c", ANSWERS], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop().strip()) == hashlib.sha256().digest_size * 2


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="sets the control word through glibc on x86-64"
)
def test_a_foreign_rounding_mode_changes_nothing():
    import ctypes

    library = ctypes.CDLL("libm.so.6")
    upward, nearest = 0x800, 0x000
    row = (np.random.default_rng(1).standard_normal(4000) * 4).astype(np.float32)
    sampler = Sampler(Sampling(repeat_penalty=1.1, repeat_last_n=-1), 0, row.size)
    # The gap shows every bit of the two largest logits, most of which the penalty has rounded.
    expected = [sampler.draw(row, range(position), candidates) for position in range(3900, 3920)]
    library.fesetround(upward)
    try:
        drawn = [sampler.draw(row, range(position), candidates) for position in range(3900, 3920)]
        still = library.fegetround()
    finally:
        library.fesetround(nearest)
    assert still == upward
    assert drawn == expected
