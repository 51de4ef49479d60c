"""Every weight format beside llama.cpp, on models of 0.47 billion weights: decoding, and prompts where asked.

    python -m benchmarks.formats [FORMAT...] --llama-bench PATH [-t 2] [-r 3] [-n 64] [-p 0] [--folder DIR]

Each model is qwen3 with 30 layers 1,024 wide, all its matrices of one format: blocks of random bytes with small
scales, the same 64 rows again and again, since no speed depends on what weights are. The two programs take turns; the
table has medians of tokens a second, and what share of the file each reads a second. A file is removed once measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from conformance.recipes import gguf_file, numbers
from conformance.recipes.model import Model as Recipe
from conformance.recipes.model import Sizes, Tensor, layer, matrix, norm, settings
from conformance.recipes.tokenizers import byte_level
from kinetic.api import Model, bench, bench_llama
from kinetic.api.probe import formats

SIZES = Sizes(30, 1024, 16, 8, 128, 3072)
ROWS = 64
"""Rows of a matrix that differ."""

HEAD = "| format | MB | tokens/s | GB/s | llama.cpp | GB/s | ratio |\n| --- | --: | --: | --: | --: | --: | --: |"


def recipe(kind: str, sizes: Sizes = SIZES) -> Recipe:
    tokenizer = byte_level()
    tensors = [matrix("token_embd", len(tokenizer["tokenizer.ggml.tokens"]), sizes.width, 3.0)]
    tensors.append(norm("output_norm", sizes.width))
    for number in range(sizes.layers):
        tensors += layer(number, sizes, ("attn_norm", "ffn_norm"), normed_heads=True)
    return Recipe(settings("qwen3", sizes) | tokenizer, tensors, {"": kind}, seed=31)


def write(kind: str, path: Path, sizes: Sizes = SIZES) -> Path:
    """A model file whose matrices are all of format ``kind``."""
    model = recipe(kind, sizes)
    return gguf_file.write(
        path, gguf_file.to_bytes(model.metadata, [_stored(tensor, kind) for tensor in model.tensors])
    )


def _stored(tensor: Tensor, kind: str) -> gguf_file.Stored:
    if len(tensor.shape) == 1:
        return gguf_file.Stored(tensor.name, tensor.shape, 0, np.ones(tensor.shape, "<f4").tobytes())
    fmt = formats()[kind]
    rows, columns = tensor.shape
    part = numbers.matrix(fmt, ROWS, columns, 31, 1, tensor.spread)
    whole = np.resize(part, (rows, part.shape[1]))
    return gguf_file.Stored(tensor.name, tensor.shape, fmt.TYPE_ID, whole.tobytes())


def measure(path: Path, options: argparse.Namespace, peer: bench.Peer) -> list[bench.Result]:
    tests = bench.tests_of([options.n_prompt], [options.n_gen], [0])
    with Model(path, threads=options.threads, pack_cache=False) as model:
        return bench.measure(model, tests, options.repetitions, peer)


def row(kind: str, size: int, result: bench.Result) -> str:
    ours, theirs, ratio = (bench.spread(x) for x in (result.speeds, result.peer, result.ratios))
    rates = [speed.median * size / 1e9 for speed in (ours, theirs)]
    name = kind if result.test.kind == "tg" else f"{kind} {result.test.name}"
    return (
        f"| {name} | {size / 1e6:.0f} | {ours.median:.1f} | {rates[0]:.1f} | {theirs.median:.1f} | {rates[1]:.1f} "
        f"| {ratio.median:.2f} ({ratio.q1:.2f}-{ratio.q3:.2f}) |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", help="all by default")
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("-n", "--n-gen", type=int, default=64)
    parser.add_argument("-p", "--n-prompt", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    peer = bench_llama.find(options.llama_bench)
    print(HEAD, flush=True)
    for kind in options.formats or formats():
        path = write(kind, options.folder / f"kinetic-bench-{os.getpid()}-{kind}.gguf")
        try:
            for result in measure(path, options, peer):
                print(row(kind, path.stat().st_size, result), flush=True)
        finally:
            path.unlink()
    print(f"\n{peer.name}, {options.threads} threads, {options.repetitions} rounds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
