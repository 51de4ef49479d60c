"""Every contract of .importlinter is broken by an import that breaks it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.source import PACKAGES

VIOLATIONS = {
    "kinetic/new_room.py": "",
    "kinetic/bits.py": "import kinetic.gguf",
    "kinetic/types.py": "def f():\n    import receipts.schema\n    import conformance",
    "receipts/schema.py": "import kinetic.types",
    "conformance/__init__.py": "import kinetic.engine",
    "kinetic/models/llama.py": "from kinetic.models import gemma3",
    "kinetic/backends/reference/ops.py": "from kinetic.backends import cpu",
    "kinetic/sampling.py": "import llvmlite\nimport time",
    "kinetic/gguf.py": "import cupy.cuda\nfrom rich import print\nimport starlette",
}


def verdicts(root: Path) -> dict[str, str]:
    """Contract -> KEPT or BROKEN."""
    pytest.importorskip("importlinter")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    shown = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout
    # A long name goes on in the next line.
    shown = re.sub(r" \n(?=\S.* (?:KEPT|BROKEN))", " ", shown)
    return dict(re.findall(r"^(.+) (KEPT|BROKEN)", shown, re.MULTILINE))


def test_each_contract_catches_its_violation(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    before = verdicts(tmp_path)
    assert len(before) == (ROOT / ".importlinter").read_text().count("[importlinter:contract:")
    assert set(before.values()) == {"KEPT"}, before
    for name, line in VIOLATIONS.items():
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    assert set(verdicts(tmp_path).values()) == {"BROKEN"}
