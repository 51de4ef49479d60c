"""A program that takes llama-bench's flags and prints what llama-bench prints, with speeds made from the lengths."""

from __future__ import annotations

import sys
from pathlib import Path

LLAMA_BENCH = """#!{python}
import json, os, sys
words = sys.argv[1:]
value = dict(zip(words[::2], words[1::2]))
seen = {{"words": words, "library": os.environ["LD_LIBRARY_PATH"], "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}}
with open(os.environ["FAKE_LOG"], "w") as log:
    json.dump(seen, log)
mode = os.environ.get("FAKE_MODE", "")
if mode == "fail":
    print("main: error: failed to load model", file=sys.stderr)
    sys.exit(1)
if mode == "garbage":
    print("| model | size |")
    sys.exit(0)
rows = []
for depth in map(int, value["-d"].split(",")):
    lengths = [(int(n), 0) for n in value["-p"].split(",")] + [(0, int(n)) for n in value["-n"].split(",")]
    for n_prompt, n_gen in lengths:
        if n_prompt or n_gen:
            speed = 1000.0 * n_prompt + n_gen + depth / 100
            rows.append({{
                "build_commit": "0ddba11", "build_number": 11434, "cpu_info": "Some CPU", "gpu_info": "",
                "backends": "CPU", "model_filename": value["-m"], "model_type": "llama ?B all F32",
                "model_size": 1, "model_n_params": 1, "n_batch": 2048, "n_ubatch": 512,
                "n_threads": 9 if mode == "threads" else int(value["-t"]), "cpu_mask": "0x0", "n_gpu_layers": 0,
                "n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth, "test_time": "2026-11-29T00:00:00Z",
                "avg_ns": 1, "stddev_ns": 0, "avg_ts": 0.0 if mode == "zero" else speed, "stddev_ts": 0.0,
                "samples_ns": [1], "samples_ts": [speed],
            }})
print(json.dumps(rows[1:] if mode == "missing" else rows))
"""


def write_llama_bench(folder: Path) -> Path:
    """The program, with FAKE_LOG naming the file it tells of its call, and FAKE_MODE what goes wrong."""
    path = folder / "llama" / "bin" / "llama-bench"
    path.parent.mkdir(parents=True)
    path.write_text(LLAMA_BENCH.format(python=sys.executable))
    path.chmod(0o755)
    return path


GUESSING = """#!{python}
import os, sys
words = sys.argv[1:]
value = dict(zip(words, words[1:]))
mode = os.environ.get("FAKE_MODE", "")
if mode == "fail " + os.path.basename(sys.argv[0]):
    print("error: no such model", file=sys.stderr)
    sys.exit(1)
prompt = open(value["-f"]).read().removesuffix("\\n")
print("<s>\\033[36m" + prompt + "\\033[0m" + "{text}" + "\\n\\n")
print("0.01.234 I decoded", value["-n"], "tokens in    2.000 seconds, speed:  12.0 t/s", file=sys.stderr)
"""


def write_guessing(folder: Path, texts: dict[str, str]) -> None:
    """Programs of these names that write these texts behind a prompt, and that ``-n`` tokens took two seconds.
    FAKE_MODE may say ``fail`` and a name."""
    for name, text in texts.items():
        path = folder / name
        path.write_text(GUESSING.format(python=sys.executable, text=text))
        path.chmod(0o755)
