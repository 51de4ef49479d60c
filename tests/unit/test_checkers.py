"""Each checker of `make check` catches what it is for, and lets the right way through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import check_answer_path, check_docs, check_imports, check_sizes
from tools.source import Finding

WriteFile = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    def put(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    return put


def places(findings: list[Finding]) -> list[tuple[str, int]]:
    return [(finding.path, finding.line) for finding in sorted(findings)]


REFUSED = [
    "@njit(fastmath=True)\ndef f(): ...",
    "options = {'fastmath': True}",
    "import numpy as np\ny = np.exp(x)",
    "import numpy\ny = numpy.power(x, 2)",
    "from numpy import tanh as squash\ny = squash(x)",
    "import math\ny = math.log(x)",
    "y = x ** 0.5",
    "y = pow(x, 3)",
    "x **= 2",
    "y = a @ b",
    "a @= b",
    "y = a.dot(b)",
    "import numpy as np\ny = np.einsum('ij,jk', a, b)",
    "import numpy as np\ny = np.linalg.norm(a)",
    "import numpy as np\ny = np.sum(a)",
    "import numpy as np\ny = np.add.reduce(a)",
    "y = a.sum(axis=-1)",
    "y = a.sum(axis=-1)  # exact:",
    "y = a.mean()",
    "y = sum(a)",
    "import numpy as np\ny = np.random.default_rng()",
    "ir = '%s = fadd fast float %a, %b'",
    "ir = f'{x} = fmul contract <16 x float> {a}, {b}'",
    "ir = 'declare float @llvm.fmuladd.f32(float, float, float)'",
    "options = ['-cl-mad-enable']",
    "options = ('--fmad=true',)",
]

ALLOWED = [
    '"""Never fastmath, never np.exp."""',
    "import numpy as np\ny = np.sqrt(x) / np.abs(x)",
    "import math\ny = math.sqrt(x) + math.floor(x)",
    "limit = 2.0**-90 + 2**23 + (-1) ** 3",
    "y = a.sum(axis=-1)  # exact: integers",
    "y = sum(\n    lengths\n)  # exact: integers",
    "ir = 'declare float @llvm.fma.f32(float, float, float)'",
    "options = ['--fmad=false', '-cl-fp32-correctly-rounded-divide-sqrt']",
    "def exp(x): ...\ny = exp(x)",
]


@pytest.mark.parametrize("source", REFUSED)
def test_answer_path_refuses(tmp_path: Path, write: WriteFile, source: str) -> None:
    write("kinetic/layers/new.py", source)
    assert check_answer_path.check(tmp_path), source


@pytest.mark.parametrize("source", ALLOWED)
def test_answer_path_allows(tmp_path: Path, write: WriteFile, source: str) -> None:
    write("kinetic/layers/new.py", source)
    assert check_answer_path.check(tmp_path) == []


@pytest.mark.parametrize("name", ["sampling.py", "bits.py", "backends/cpu/deep/tile.py", "engine/engine.py"])
def test_answer_path_covers_files_and_folders(tmp_path: Path, write: WriteFile, name: str) -> None:
    write(f"kinetic/{name}", "\ny = a @ b\n")
    assert places(check_answer_path.check(tmp_path)) == [(f"kinetic/{name}", 2)]


def test_answer_path_leaves_the_rest_alone(tmp_path: Path, write: WriteFile) -> None:
    write("kinetic/perplexity.py", "import math\ny = math.log(2)\n")
    assert check_answer_path.check(tmp_path) == []


IN_KERNELS = [
    "y = native_exp(x);",
    "y = fast_length(x);",
    "y = expf(x);",
    "y = mad(a, b, c);",
    "y = fma(a, b, c);",
    "y = __fmaf_rn(a, b, c);",
    "y = __fadd_rz(a, b);",
    "double y = 1.0f;",
    "y = x * 0.5;",
    "y = x * 5e-1;",
    "atomicAdd(p, x);",
    "atomic_xchg(p, x);",
]


@pytest.mark.parametrize("line", IN_KERNELS)
def test_answer_path_reads_kernels(tmp_path: Path, write: WriteFile, line: str) -> None:
    kernel = f"/* exp(x) by\n   hand */\n{line}\ny = k_exp(x) * 0x1p-2f + FMA(x, 1.5e-1f, .5f); // not exp(x)\n"
    kernel += "#define FMA(a, b, c) fma(a, b, c)\natomicAdd(p, i); // exact: integers\n"
    write("kinetic/backends/gpu/kernels/norm.cu", kernel)
    assert places(check_answer_path.check(tmp_path)) == [("kinetic/backends/gpu/kernels/norm.cu", 3)]
    write("kinetic/backends/gpu/kernels/norm.cu", "")
    write("kinetic/formats/q9.py", f'GPU = """\nDEVICE float f(x)\n{{ {line} }}\n"""\n')
    assert [finding.path for finding in check_answer_path.check(tmp_path)] == ["kinetic/formats/q9.py"]


@pytest.mark.parametrize(
    "source", ["import importlib", "from importlib import import_module", "import importlib.util", "f = __import__"]
)
def test_imports_by_name(tmp_path: Path, write: WriteFile, source: str) -> None:
    write("kinetic/models/__init__.py", source)
    write("kinetic/models/llama.py", "from importlib.resources import files\nimport importlib.metadata\n")
    assert list(check_imports.check(tmp_path)) == []
    write("kinetic/engine/engine.py", source)
    assert places(list(check_imports.check(tmp_path))) == [("kinetic/engine/engine.py", 1)]


SIZES = [
    ("kinetic/loader.py", "#\n", check_sizes.MODULE),
    ("kinetic/models/llama.py", "#\n", check_sizes.FAMILY),
    ("kinetic/models/__init__.py", "#\n", check_sizes.MODULE),
    ("kinetic/formats/q8_0.py", "#\n", check_sizes.FORMAT),
    ("kinetic/server/openai.py", "#\n", check_sizes.DIALECT),
    ("kinetic/server/app.py", "#\n", check_sizes.MODULE),
    ("tests/unit/test_x.py", "#\n", check_sizes.MODULE),
    ("kinetic/loader.py", "def f():\n", check_sizes.FUNCTION),
    ("kinetic/loader.py", "class A:\n  @b\n  async def f(self):\n", check_sizes.FUNCTION),
    ("kinetic/cli/run.py", "def main():\n", check_sizes.COMMAND),
]


@pytest.mark.parametrize(("name", "start", "budget"), SIZES)
def test_sizes(tmp_path: Path, write: WriteFile, name: str, start: str, budget: int) -> None:
    body = "#\n" if start == "#\n" else "    1\n"
    write(name, start + body * (budget - 1))
    assert list(check_sizes.check(tmp_path)) == []
    write(name, start + body * budget)
    (finding,) = check_sizes.check(tmp_path)
    assert f"{budget + 1} lines, {budget} allowed" in finding.message


def test_size_exceptions_need_a_reason_and_a_need(tmp_path: Path, write: WriteFile) -> None:
    write("kinetic/a.py", "def f():\n" + "    1\n" * 60)
    entry = '[[exception]]\nkey = "kinetic/a.py::f"\nlines = {}\nreason = "{}"\n'
    write(check_sizes.EXCEPTIONS, entry.format(61, "one table"))
    assert list(check_sizes.check(tmp_path)) == []
    write(check_sizes.EXCEPTIONS, entry.format(60, "one table"))
    assert [finding.path for finding in check_sizes.check(tmp_path)] == ["kinetic/a.py"]
    write(check_sizes.EXCEPTIONS, entry.format(61, " "))
    assert "gives no reason" in next(check_sizes.check(tmp_path)).message
    write(check_sizes.EXCEPTIONS, entry.format(61, "one table"))
    write("kinetic/a.py", "def f():\n    1\n")
    assert "needs no exception" in next(check_sizes.check(tmp_path)).message


HELP = {"": "usage: kinetic\n  --version\n", "run": "usage: kinetic run\n  --temp T, -n N\n"}


@pytest.fixture
def docs(tmp_path: Path, write: WriteFile, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A project whose documents agree, with some files replaced: what the checker says of it."""
    monkeypatch.setattr(check_docs, "help_text", lambda command="": HELP.get(command, ""))

    def messages(**files: str) -> list[str]:
        good = {
            "README.md": readme("kinetic run m 'a -q' --temp 0 -n 5"),
            "CHANGELOG.md": "# Changelog\n\n## 1.2\n\n## 1.1\n",
            "kinetic/_version.py": '__version__ = "1.2"\n',
        }
        for name, text in (good | files).items():
            write(name, text)
        return [f"{finding.path}:{finding.line} {finding.message}" for finding in check_docs.check(tmp_path)]

    return messages


def readme(command: str, shown: str = HELP[""]) -> str:
    return f"# K\n\n```sh\n{command}\n```\n\n<!-- kinetic --help -->\n```text\n{shown}```\n"


def test_docs_that_agree(docs: Callable[..., list[str]]) -> None:
    assert docs() == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("kinetic fly m", "README.md:4 there is no command 'kinetic fly'"),
        ("kinetic run m --temperature 1", "README.md:4 'kinetic run' has no flag --temperature"),
        ("kinetic run m --tem 1", "README.md:4 'kinetic run' has no flag --tem"),
        ("kinetic --help", "README.md:4 'kinetic ' has no flag --help"),
        ("make x\n\nkinetic run m \\\n  -q", "README.md:6 'kinetic run' has no flag -q"),
        ("$ kinetic run m\nkinetic says so\n$ kinetic fly", "README.md:6 there is no command 'kinetic fly'"),
    ],
)
def test_readme_commands(docs: Callable[..., list[str]], command: str, said: str) -> None:
    assert docs(**{"README.md": readme(command)}) == [said]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("README.md", readme("make", "usage: old\n"), "README.md:7 'kinetic --help' has changed"),
        ("README.md", "# K\n", "README.md:1 the block of 'kinetic --help' is missing"),
        ("CHANGELOG.md", "# Changelog\n\n## 1.1\n", "CHANGELOG.md:1 kinetic/_version.py says 1.2"),
        ("docs/A.md", "see [b](b.md) and [c](https://c/d)\n", "docs/A.md:1 link to nothing: b.md"),
        ("kinetic/a.py", "\nPATH = '/wo" + "rk/main'\n", "kinetic/a.py:2 path of one machine"),
    ],
)
def test_documents(docs: Callable[..., list[str]], name: str, text: str, said: str) -> None:
    (message,) = docs(**{name: text})
    assert message.startswith(said)
