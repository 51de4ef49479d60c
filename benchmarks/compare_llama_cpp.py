"""Prompt and decode speed beside llama.cpp's, on the same file, the two taking turns in one run.

    python -m benchmarks.compare_llama_cpp MODEL.gguf --llama-bench PATH [--threads 1 2] [--rounds 5]

The same as ``kinetic bench MODEL --compare``, for whoever runs it from a checkout; nothing is
kept in the bench store.
"""

from __future__ import annotations

import argparse
import sys

from kinetic.cli import main as kinetic


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    threads = ",".join(map(str, options.threads))
    words = ["bench", options.model, "--compare", "--no-record", "-t", threads, "-r", str(options.rounds)]
    return kinetic([*words, *(["--llama-bench", options.llama_bench] if options.llama_bench else [])])


if __name__ == "__main__":
    sys.exit(main())
