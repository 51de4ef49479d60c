"""Nothing that could change a bit of an answer by accident: ``python -m tools.check_answer_path``.

On the answer path (see SCOPE) these are refused, each because it was seen to
give other bits on another processor, thread count or Python (docs/NUMERICS.md):

- ``fastmath``, fast-math flags and fusable or transcendental intrinsics in
  LLVM IR, compiler options that loosen arithmetic;
- transcendentals of NumPy, ``math`` and ``cmath``, and ``**`` of anything but constants;
- BLAS and everything that may call it;
- in the text of GPU kernels: fast, native and half functions, ``fma`` but as FMA, double (also by a number without f),
  directed rounding, atomics;
- sums of floats in an order that is not ours: ``sum``, ``mean``, ``cumsum``...
  A sum whose result can't depend on its order (integers, booleans) stands on a
  line that ends in ``# exact: <why>``;
- chance that is not ours (``numpy.random``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.source import Finding, Module, dotted, imported_names, modules, run

SCOPE = tuple(
    f"kinetic/{place}"
    for name in "layers models backends sampling samplers engine formats bits rng lanes softmax".split()
    for place in (name, f"{name}.py")
)

TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2 sin cos tan asin acos atan atan2 arcsin arccos arctan"
    " arctan2 sinh cosh tanh asinh acosh atanh arcsinh arccosh arctanh pow power float_power cbrt hypot sinc i0"
    " erf erfc gamma lgamma dist".split()
)
BLAS = frozenset(
    "dot vdot inner matmul matvec vecmat vecdot einsum einsum_path tensordot kron convolve correlate cov corrcoef"
    " linalg fft polyfit".split()
)
UNORDERED = frozenset(
    "sum nansum mean nanmean average std nanstd var nanvar prod nanprod cumsum nancumsum cumprod nancumprod"
    " trapezoid median nanmedian quantile nanquantile percentile nanpercentile interp".split()
)
REDUCING_METHODS = frozenset("sum mean std var prod cumsum cumprod".split())


def _any(words: str) -> str:
    return "(?:" + "|".join(words.split()) + ")"


_FAST = _any("fast reassoc contract arcp afn nnan ninf nsz")
_INTRINSICS = _any(r"fmuladd exp\d* log\d* sin cos tan tanh pow powi vector\.reduce\.f(?:add|mul)")
_OPENCL = _any(
    "fast-relaxed-math mad-enable unsafe-math-optimizations denorms-are-zero finite-math-only no-signed-zeros"
)
_NVCC = _any(r"-ffast-math --?use_fast_math --?fmad=true --?ftz=true --?prec-(?:div|sqrt)=false")
_DEVICE = _any("exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh pow powr erf")

IN_STRINGS = (
    (re.compile(rf"\bf{_any('add sub mul div rem neg cmp')}\s+{_FAST}\b"), "fast-math flag in LLVM IR"),
    (re.compile(rf"\bllvm\.{_INTRINSICS}\b"), "inexact LLVM intrinsic"),
    (re.compile(rf"-cl-{_OPENCL}|{_NVCC}"), "compiler option that loosens arithmetic"),
)
IN_KERNELS = (
    (re.compile(r"\b(?:native|half|fast)_\w+\s*\("), "native_, half_ or fast_ function"),
    (re.compile(rf"\b(?:__)?{_DEVICE}f?\s*\("), "transcendental of the device"),
    (re.compile(r"\b(?:mad|rsqrtf?|__frcp_\w+|__fdividef|dot)\s*\("), "inexact or fusable function"),
    (re.compile(r"\b__f\w+_r[dzu]\s*\("), "rounding other than to nearest"),
    (re.compile(r"^(?!#define FMA\(a, b, c\) ).*\b(?:fmaf?|__fmaf_\w+)\s*\("), "fma that isn't spelled FMA"),
    (re.compile(r"\bdouble\d*\b|\bfp64\b"), "double"),
    (re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?(?![\w.])"), "number without f is a double"),
    (re.compile(r"FP_CONTRACT\s+ON\b"), "contraction switched on"),
    (re.compile(r"\batom(?:ic)?(?:_\w+|[A-Z]\w*)\s*\("), "atomic: its order is not ours (integers: '// exact: ...')"),
)
EXACT = re.compile(r"#\s*exact:\s*\S")


def check(root: Path) -> list[Finding]:
    findings = [finding for module in modules(root, SCOPE) for finding in _Rules(module).findings()]
    for path in sorted((root / "kinetic" / "backends").rglob("*")):
        if path.suffix in (".cu", ".cuh", ".cl", ".h"):
            findings += _kernel(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    return findings


def _kernel(name: str, text: str) -> Iterator[Finding]:
    code = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(code.splitlines(), 1):
        statement, _, comment = line.partition("//")
        for pattern, what in IN_KERNELS:
            if pattern.search(statement) and not re.search(r"exact:\s*\S", comment):
                yield Finding(name, number, what)


class _Rules:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.names = imported_names(module.tree)
        self.docstrings = {id(node) for node in _docstrings(module.tree)}

    def findings(self) -> Iterator[Finding]:
        for node in ast.walk(self.module.tree):
            for message in self.messages(node):
                yield Finding(self.module.name, getattr(node, "lineno", 1), message)

    def messages(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.keyword(arg="fastmath"):
                yield "fastmath"
            case ast.Constant(value=str(text)) if id(node) not in self.docstrings:
                yield from _text_messages(text)
            case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
                yield "@ may call BLAS"
            case ast.BinOp(left=left, op=ast.Pow(), right=right) if not (_constant(left) and _constant(right)):
                yield "** of floats is a library pow; shift, multiply, or use decimal"
            case ast.AugAssign(op=ast.Pow()):
                yield "** of floats is a library pow; shift, multiply, or use decimal"
            case ast.Call(func=ast.Name(id="pow")):
                yield "pow() of floats is a library pow"
            case ast.Call(func=ast.Attribute(attr="dot")):
                yield ".dot() may call BLAS"
            case ast.Call() if self.unordered(node) and not self.is_exact(node):
                yield "a sum whose order is the library's; if it is exact, say why in a trailing '# exact: ...'"
            case ast.Attribute() | ast.Name():
                yield from self.library_messages(node)

    def library_messages(self, node: ast.Attribute | ast.Name) -> Iterator[str]:
        library, _, name = self.full_name(node).partition(".")
        if library in ("numpy", "math", "cmath") and name in TRANSCENDENTAL:
            yield f"{library}.{name} is not the same on every machine; use the functions of docs/NUMERICS.md"
        if name.startswith("random.") and library == "numpy":
            yield "numpy.random: draws come from kinetic.rng"
        if library == "numpy" and name.partition(".")[0] in BLAS:
            yield f"numpy.{name} may call BLAS"

    def full_name(self, node: ast.AST) -> str:
        """``np.exp`` -> ``numpy.exp``; "" if it does not start at an imported name."""
        first, dot, rest = dotted(node).partition(".")
        return self.names[first] + dot + rest if first in self.names else ""

    def unordered(self, call: ast.Call) -> bool:
        name = self.full_name(call.func)
        if name.startswith("numpy."):
            return name.partition(".")[2] in UNORDERED or name.endswith((".reduce", ".accumulate", ".reduceat"))
        if isinstance(call.func, ast.Name):
            return call.func.id == "sum"
        return isinstance(call.func, ast.Attribute) and call.func.attr in REDUCING_METHODS

    def is_exact(self, node: ast.Call) -> bool:
        lines = self.module.lines[node.lineno - 1 : node.end_lineno]
        return any(EXACT.search(line) for line in lines)


def _text_messages(text: str) -> Iterator[str]:
    if text == "fastmath":
        yield "fastmath"
    if re.search(r"\bDEVICE\b", text):  # what a weight format is read by on a GPU
        yield from (finding.message for finding in _kernel("", text))
    for pattern, what in IN_STRINGS:
        if pattern.search(text):
            yield what


def _constant(node: ast.AST) -> bool:
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant)


def _docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """Bare strings: docstrings, and the strings that explain a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


if __name__ == "__main__":
    raise SystemExit(run("answer path", check))
