"""The compiled kernels: what their cache is named by, what may be loaded from it, and what LLVM is told to do."""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from kinetic.backends import cpu
from kinetic.backends.cpu import (
    activation_rows,
    attention,
    bounds,
    build,
    control,
    delta_rows,
    halves,
    native,
    objects,
    rows,
    scan,
    target,
)
from kinetic.backends.cpu.native import COMMON_UNITS, KERNEL_SOURCES, Kernels
from kinetic.backends.identity import engine_digest
from kinetic.errors import UsageError
from tests.support.backends import assert_same, compile_all, inputs, rows_of, run
from tests.support.blocks import FORMATS, QUANTISED, normals, random_weight

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(cpu.__file__).parent
COMMON = [f"{unit}.o" for unit in COMMON_UNITS]
F16_UNIT = f"{FORMATS['F16'].TYPE_ID}.o"
"""The unit that compiles fastest."""


def python(code: str, **environment: str) -> str:
    """What a new process prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# --- the digest that names the cache ---

WITHOUT_PACKAGE = """
import importlib, sys, types
import kinetic.backends
package = types.ModuleType("kinetic.backends.cpu")
package.__path__ = [{folder!r}]
sys.modules["kinetic.backends.cpu"] = package  # its own __init__ would load everything
for name in {names!r}:
    importlib.import_module(name)
print(*sorted(name for name in sys.modules if name.startswith("kinetic.")))
"""


def imported_by_build() -> list[str]:
    """Every module of ours that build.py names in an import, also inside a function."""
    names = ["kinetic.backends.cpu.build"]
    for node in ast.walk(ast.parse((PACKAGE / "build.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "kinetic.backends.cpu":
            names += [f"kinetic.backends.cpu.{alias.name}" for alias in node.names]
    return names


@pytest.fixture(scope="module")
def compiled_from() -> set[str]:
    """Modules of ours that the compiling process loads."""
    return set(python(WITHOUT_PACKAGE.format(folder=str(PACKAGE), names=imported_by_build())).split())


def test_the_digest_names_every_module_of_the_package_that_is_compiled(compiled_from):
    prefix = "kinetic.backends.cpu."
    found = {name.removeprefix(prefix) for name in compiled_from if name.startswith(prefix)}
    assert "core" in found
    assert found == set(KERNEL_SOURCES)


def test_the_digest_reads_all_that_lies_below(compiled_from, monkeypatch):
    """Constants come from other packages too."""
    read: list[Path] = []
    monkeypatch.setattr(native, "digest_of", lambda sources, facts: read.extend(sources) or "")
    native.kernel_digest.__wrapped__("avx2")
    names = {".".join(path.with_suffix("").relative_to(ROOT).parts).removesuffix(".__init__") for path in read}
    # These hold no number that a kernel is made of: records, errors, names of backends.
    harmless = {"kinetic.types", "kinetic.errors", "kinetic.backends", "kinetic.backends.reference", "kinetic._version"}
    harmless |= {"kinetic.backends.cpu", "kinetic.backends.control_word"}
    # Defined beside the constants, but not compiled: the reference's own operations.
    harmless |= {
        f"kinetic.backends.reference.{name}"
        for name in ("attention", "candidates", "delta", "experts", "linear", "ops", "recurrent")
    }
    harmless |= {"kinetic.backends.rope_tables", "kinetic.backends.identity", "kinetic.backends.states"}
    harmless |= {"kinetic.backends.checks", "kinetic.backends.program"}
    assert compiled_from - names - harmless == set()


@pytest.mark.parametrize("change", ["isa", "source", "version"])
def test_the_digest_changes_with_what_it_is_of(change, monkeypatch):
    before = native.kernel_digest.__wrapped__("avx2")
    if change == "isa":
        assert native.kernel_digest.__wrapped__("plain") != before
        return
    if change == "version":
        monkeypatch.setattr(native.importlib.metadata, "version", lambda name: "0")
    else:
        read = Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * (path.name == "dots.py"))
    assert native.kernel_digest.__wrapped__("avx2") != before


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_engine_id_changes_with_more_than_the_kernels(backend, monkeypatch):
    common = "llama.py sampling.py q4_0.py attention.py rope_tables.py rng.py engine.py quantise.py".split()
    before = engine_digest.__wrapped__(backend, "kernels")
    assert engine_digest.__wrapped__(backend, "other kernels") != before
    read = Path.read_bytes
    for name in common + (["plan.py", "program.py"] if backend == "cpu" else []):
        monkeypatch.setattr(Path, "read_bytes", lambda path, name=name: read(path) + b" " * (path.name == name))
        assert engine_digest.__wrapped__(backend, "kernels") != before, name


# --- what runs ---


def test_a_running_engine_never_imports_numba(tmp_path):
    compile_all(target.choose())
    code = f"""
import sys
from pathlib import Path
from tests.support.tiny_models import write_tiny_llama
from kinetic.loader import open_model_file
from kinetic.engine import Engine
from kinetic.types import Request
file = open_model_file(write_tiny_llama(Path({str(tmp_path / "tiny.gguf")!r})))
engine = Engine(file.gguf, file.weights, threads=2)
print(len(list(engine.generate(Request((1, 2, 3), max_tokens=3)))), "numba" in sys.modules)
engine.close()
"""
    assert python(code).split() == ["3", "False"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A copy of the cache, to spoil: (folder of the kernels, what was said while compiling)."""
    isa = target.choose()
    compile_all(isa)
    source = native.cache_folder(isa)
    monkeypatch.setenv(native.CACHE_ENVIRONMENT, str(tmp_path))
    folder = native.cache_folder(isa)
    for unit in (*COMMON, F16_UNIT):
        shutil.copy(source / unit, folder / unit)
    return folder


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE = {
    "one bit": flipped,
    "the end cut off": lambda content: content[:-100],
    "empty": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_object_is_compiled_again(cache, damage):
    """Native code is checked before it is loaded, whatever happened to the file."""
    (cache / F16_UNIT).write_bytes(damage((cache / F16_UNIT).read_bytes()))
    assert objects.read(cache / F16_UNIT) is None
    said: list[str] = []
    Kernels(target.choose(), [FORMATS["F16"].TYPE_ID], said.append)
    assert len(said) == 1
    assert "F16" in said[0]
    assert objects.read(cache / F16_UNIT)
    Kernels(target.choose(), [FORMATS["F16"].TYPE_ID], said.append)
    assert len(said) == 1
    assert sorted(path.name for path in cache.iterdir()) == sorted([*COMMON, F16_UNIT])


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(native.CACHE_ENVIRONMENT, str(tmp_path / "file"))
    folder = native.cache_folder(target.choose())
    assert folder.is_dir()
    assert tmp_path not in folder.parents
    assert folder == native.cache_folder(target.choose())


@pytest.mark.parametrize("wanted", ["vnni1024", "AVX2", "neon"])
def test_an_instruction_set_that_is_not_there_is_refused(wanted, monkeypatch):
    monkeypatch.setenv(target.ENVIRONMENT, wanted)
    with pytest.raises(UsageError) as caught:
        cpu.open_backend()
    assert caught.value.name == "UNAVAILABLE_INSTRUCTION_SET"
    message = str(caught.value)
    assert wanted in message and "plain" in message
    assert "\n" not in message


def test_an_instruction_set_of_another_machine_is_refused(monkeypatch):
    monkeypatch.setattr(target, "host_features", lambda: {"avx2": True, "fma": True, "f16c": True})
    assert target.available() == ["avx2", "plain"]
    monkeypatch.setenv(target.ENVIRONMENT, "vnni512")
    with pytest.raises(UsageError, match="avx2, plain"):
        target.choose()


@pytest.mark.parametrize("threads", [-1, 257])
def test_a_number_of_threads_beyond_sense_is_refused(threads):
    with pytest.raises(UsageError, match=str(threads)):
        cpu.open_backend(threads=threads)


# --- what LLVM is told, and what it makes of it ---

FAST_MATH = re.compile(r"= (?:tail |musttail |notail )?f?(?:add|sub|mul|div|rem|neg|cmp|call|fma)\w*\s.*?"
                       r"\b(fast|contract|reassoc|nnan|ninf|nsz|arcp|afn)\b")  # fmt: skip
LOOSENED = re.compile(r'"(unsafe-fp-math|no-nans-fp-math|no-infs-fp-math|approx-func-fp-math)"="true"'
                      r'|denormal-fp-math(-f32)?"?="?(preserve-sign|positive-zero)')  # fmt: skip
MULTIPLY_ADD = re.compile(r"\tv?fn?m(?:add|sub)\w*\t")
FMA_CALLS = re.compile(r"call .*@llvm\.fma\.(?:v(\d+))?f32\(")


def module_of(name: str, *emitters, triple: str = "") -> llvm.ModuleRef:
    module = ir.Module(name)
    module.triple = triple or llvm.get_process_triple()
    for emit in emitters:
        emit(module)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return parsed


def assembly(module: llvm.ModuleRef, processor: str, features: str = "", triple: str = "") -> str:
    """Optimised as ``build`` does it; ``module`` then holds the optimised form."""
    target.initialise()
    found = llvm.Target.from_triple(triple or llvm.get_process_triple())
    made = found.create_target_machine(cpu=processor, features=features, opt=3)
    made.set_asm_verbosity(True)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(made, options)
    passes.getModulePassManager().run(module, passes)
    return str(made.emit_assembly(module))


def vector_kernels(module: ir.Module, isa: str) -> None:
    for part in (rows, activation_rows, scan, control):
        part.emit(module)
    for part in (attention, bounds, delta_rows):
        part.emit(module, isa)
    halves.emit(module)


def units(isa: str):
    """(name, module) of all that is written as IR for an instruction set."""
    yield "vector", module_of("vector", lambda m: vector_kernels(m, isa))
    for name, fmt in FORMATS.items():
        yield name, module_of(name, lambda m, fmt=fmt: build.emit_tiles(m, fmt, isa))
    yield "halves", module_of("halves", lambda m: tiles_of("halves", m, isa))


def test_the_patterns_find_what_they_are_for():
    assert FAST_MATH.search("%x = fadd fast float %a, %b")
    assert FAST_MATH.search("%x = fmul reassoc contract <16 x float> %a, %b")
    assert FAST_MATH.search("%x = tail call contract float @llvm.fma.f32(float %a, float %b, float %c)")
    assert not FAST_MATH.search("%x = call float @llvm.fma.f32(float %a, float %b, float %c)")
    assert LOOSENED.search('attributes #0 = { "unsafe-fp-math"="true" }')
    assert LOOSENED.search('"denormal-fp-math"="preserve-sign,preserve-sign"')


def tiles_of(name, module, isa):
    """The kernels of a format, or those of halves that lie apart."""
    halves.emit_tiles(module, isa) if name == "halves" else build.emit_tiles(module, FORMATS[name], isa)


x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64")


@x86
@pytest.mark.parametrize("isa", ["avx2", "plain", "vnni256", "vnni512"])
def test_nothing_is_fused_or_loosened_unasked(isa):
    """In the machine code stand the fused operations that were asked for, a vector in as many parts as it takes."""
    for name, module in units(isa):
        assert not FAST_MATH.search(str(module))
        code = assembly(module, "x86-64-v3" if not isa.startswith("vnni") else "icelake-server")
        optimised = str(module)
        assert not FAST_MATH.search(optimised), name
        assert not LOOSENED.search(optimised), name
        assert "llvm.fmuladd" not in optimised
        widths = Counter(int(width or 1) for width in FMA_CALLS.findall(optimised))
        longest = 16 if isa.startswith("vnni") else 8
        # icelake-server prefers vectors of 8 unless told otherwise, but is free to take 16.
        least = sum(count * -(-width // 16 if longest == 16 else -(width // -8)) for width, count in widths.items())
        most = sum(count * -(-width // 8) for width, count in widths.items())
        assert least <= len(MULTIPLY_ADD.findall(code)) <= most, name
        assert widths, name


@pytest.mark.slow
def test_compiled_python_is_not_loosened_either():
    """The modules that Numba made, before and after they are linked."""
    code = """
import re
from kinetic.backends.cpu import build
from tests.unit.test_native import FAST_MATH, LOOSENED
for unit in (build.core_unit("plain"), build.attention_unit("plain"), build.format_unit(14, "plain")):
    text = str(unit)
    assert "fadd" in text or "fmul" in text
    assert not FAST_MATH.search(text) and not LOOSENED.search(text)
    assert "llvm.fmuladd" not in text
print("fine")
"""
    assert python(code, NUMBA_OPT="0").strip() == "fine"


# --- instruction sets that this machine may not have ---


DOTS = 8 * (1 + 2 + 16 + 1)
"""Of a block, where 16 output rows fit a register: one row, one row of two groups, 16 rows, one of any number."""


@x86
@pytest.mark.parametrize("processor", ["znver4", "icelake-server"])
@pytest.mark.parametrize("name", [*QUANTISED, "halves"])
def test_vnni512_compiles(name, processor):
    """Whole registers, eight dot products for each row and group of a block, few values parked in memory."""
    module = module_of(name, lambda m: tiles_of(name, m, "vnni512"))
    code = assembly(module, processor, "-prefer-256-bit")
    dots = re.findall(r"\tvpdpbusd\t.*", code)
    assert len(dots) == DOTS
    assert all("%zmm" in line for line in dots)
    assert len(re.findall(r"64-byte (?:Folded )?Spill", code)) <= 40
    assert "call" not in re.findall(r"\t(call)q?\t", code)


@x86
@pytest.mark.parametrize("name", [*QUANTISED, "halves"])
def test_vnni256_compiles(name):
    module = module_of(name, lambda m: tiles_of(name, m, "vnni256"))
    dots = re.findall(r"\tvpdpbusd\t.*", assembly(module, "icelake-server"))
    assert len(dots) == 2 * DOTS
    assert all("%ymm" in line for line in dots)


def test_the_plain_kernels_compile_for_arm(monkeypatch):
    """No instruction of another processor is asked for by name."""
    triple = "aarch64-unknown-linux-gnu"
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip("this llvmlite has no compiler for ARM")
    monkeypatch.setattr(control.platform, "machine", lambda: "aarch64")
    modules = [module_of("vector", lambda m: vector_kernels(m, "plain"), triple=triple)]
    modules += [module_of(n, lambda m, f=f: build.emit_tiles(m, f, "plain"), triple=triple) for n, f in FORMATS.items()]
    for module in modules:
        assert "llvm.x86" not in str(module)
        code = assembly(module, "generic", triple=triple)
        assert "fmla" in code or "fmadd" in code


@pytest.mark.slow
@x86
@pytest.mark.parametrize("isa", ["vnni512", "vnni256"])
def test_vnni_kernels_with_their_one_instruction_spelt_out(isa, tmp_path, monkeypatch):
    """Runs them where AVX-512 is missing: only ``vpdpbusd`` itself is replaced, by what its manual says it does."""
    from kinetic.backends.cpu import build, dots
    from kinetic.backends.cpu.objects import sealed

    monkeypatch.setattr(dots, "_vnni", dots._plain)
    compile_all(target.choose())
    usual = native.cache_folder(target.choose())
    monkeypatch.setenv(native.CACHE_ENVIRONMENT, str(tmp_path))
    folder = native.cache_folder(isa)
    for unit in COMMON:
        shutil.copy(usual / unit, folder / unit)
    for name in QUANTISED:
        unit = str(FORMATS[name].TYPE_ID)
        (folder / f"{unit}.o").write_bytes(sealed(build.compile_unit(unit, isa)))
    monkeypatch.setattr(target, "available", lambda: [isa])
    for name in QUANTISED:
        values = normals(150, 21, 768)
        weight = random_weight("w", name, 37, 768, 151)
        expected = run(lambda ops: ops.linear(inputs(ops, values), weight), rows_of(21), backend="reference")  # noqa: B023
        for count in (1, 2, 16, 17, 21):
            backend = cpu.open_backend(threads=2)
            assert backend.isa == isa
            program = backend.load(lambda ops: ops.linear(inputs(ops, values), weight), (), None)  # noqa: B023
            assert_same(program.run(rows_of(count)), expected[:count], f"{name} with {count} rows")
            program.close()
