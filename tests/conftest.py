"""Where tests find what is not made by the tests themselves, and which tests run when.

``KINETIC_GOLDEN``        folder of golden data; else ../shared/golden beside the project
``KINETIC_TEST_MODELS``   folder with the two real models; else the models folder of the store
``KINETIC_TEST_REQUIRE``  names (golden, smollm2, gemma3, pocl, nvrtc, oclgrind, chromium) whose absence fails a test

Only the standard library is imported here, so that the tests of ``receipts`` and
``ktc`` run where nothing else is installed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tests never write below the user's home; `make` sets the same folder.
os.environ.setdefault("KINETIC_HOME", str(ROOT / ".kinetic"))
# One folder of compiled kernels for all runs, also where a test has a home of its own.
os.environ.setdefault("KINETIC_KERNELS", str(Path(os.environ["KINETIC_HOME"]) / "kernels"))
# Tests pack weights anew, or a fault of packing would hide; those of packs say otherwise.
os.environ.setdefault("KINETIC_PACK_CACHE", "0")
# Nor does a test take up what another one computed; those of warm starts say otherwise.
os.environ.setdefault("KINETIC_PREFIX_CACHE", "0")
os.environ.setdefault("POCL_CACHE_DIR", str(Path(os.environ["KINETIC_HOME"]) / "pocl"))
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

# Taken now: a test may set KINETIC_HOME for itself.
MODELS = Path(os.environ.get("KINETIC_TEST_MODELS") or Path(os.environ["KINETIC_HOME"]) / "models")

with contextlib.suppress(ImportError):
    from hypothesis import settings

    # The same examples every time: a test that fails once fails always.
    settings.register_profile("kinetic", derandomize=True, deadline=None, database=None)
    settings.load_profile("kinetic")


def absent(name: str, reason: str) -> NoReturn:
    """Skip, or fail where ``KINETIC_TEST_REQUIRE`` names it."""
    if name in os.environ.get("KINETIC_TEST_REQUIRE", "").split(","):
        pytest.fail(f"{name} is required here: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of golden data computed by llama.cpp."""
    path = Path(os.environ.get("KINETIC_GOLDEN") or ROOT.parent / "shared" / "golden")
    if not path.is_dir():
        absent("golden", f"no golden data at {path}: set KINETIC_GOLDEN to its folder")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return _model("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "make test")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M. A test that uses it is marked ``full``."""
    return _model("gemma3", "gemma-3-270m-q4_k_m.gguf", "make test-full")


def _model(name: str, file: str, command: str) -> Path:
    path = MODELS / file
    if not path.is_file():
        absent(name, f"{path} is not there: `{command}` fetches it, or set KINETIC_TEST_MODELS to its folder")
    return path


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # The second form finds tests that choose the model by a parameter and ask for the fixture as they run.
        if "gemma3_path" in getattr(item, "fixturenames", ()) or "gemma3-270m" in item.nodeid:
            item.add_marker(pytest.mark.full)
        if item.get_closest_marker("gpu") and not _gpu():
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))


def _gpu() -> bool:
    try:
        import cupy  # type: ignore[import-not-found, unused-ignore]

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # no CuPy, no driver, no device: cupy has an exception of its own for each
        return False
