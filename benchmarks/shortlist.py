"""The output layer with and without the shortlist, in turns on the rows of greedy answers. Plain is measured twice:
with the packed matrix as it is, and with halves that lie apart, as they do once there is a shortlist.

python -m benchmarks.shortlist MODEL [THREADS] [ROUNDS]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from kinetic import store
from kinetic.backends.cpu import tape
from kinetic.backends.cpu.memory import address
from kinetic.backends.cpu.program import CpuProgram
from kinetic.engine import Engine
from kinetic.loader import open_model_file
from kinetic.text.tokenizer import Tokenizer
from kinetic.types import Batch

TEXTS = (
    "The capital of France is Paris, and the river that flows through it is called the",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return ",
    "<start_of_turn>user\nWrite a short poem about the sea.<end_of_turn>\n<start_of_turn>model\n",
    "In 1969, astronauts landed on the moon. The mission",
)
STEPS = 12


class OutputLayer:
    """A program of which only the output layer runs again, for the row of the last pass."""

    def __init__(self, program: CpuProgram) -> None:
        self._program = program
        self._code = program._tape.code
        self._own = self._code[np.flatnonzero(self._code[:, 0] == tape.OUTPUT)[0] :]

    def seconds(self, best: int) -> float:
        table = self._program._program
        table[tape.CODE], table[tape.LENGTH], table[tape.BEST] = address(self._own), len(self._own), best
        clock = time.process_time if self._program._threads == 1 else time.perf_counter  # others wait for no thread
        begun = clock()
        self._program._workers.run()
        taken = clock() - begun
        table[tape.CODE], table[tape.LENGTH], table[tape.BEST] = address(self._code), len(self._code), 0
        return taken


def main(model: str, threads: int = 1, rounds: int = 9) -> None:
    with open_model_file(store.resolve(model)) as file:
        engines = [Engine(file.gguf, file.weights, threads=threads, off=("drafts",)) for _ in range(2)]
        tokenizer, (whole, program) = Tokenizer(file.gguf.metadata), [engine._program for engine in engines]
        assert isinstance(program, CpuProgram) and program._shortlist is not None, "this model has no shortlist"
        assert isinstance(whole, CpuProgram)
        begun = time.perf_counter()
        program._shortlist._make()
        print(f"the copy took {time.perf_counter() - begun:.2f} s")
        packed, layer, times, left = OutputLayer(whole), OutputLayer(program), [], []
        for text in TEXTS:
            tokens = tokenizer.encode(text, add_special=True, parse_special=True)
            program.truncate(0, 0)
            whole.truncate(0, 0)
            places = range(len(tokens))
            batch = Batch(tuple(tokens), tuple(places), (0,) * len(tokens), (len(tokens) - 1,))
            for _ in range(STEPS):
                best = int(program.run(batch)[0].argmax())
                whole.run(batch)
                three = [[packed.seconds(0), layer.seconds(0), layer.seconds(2)] for _ in range(rounds)]
                times.append(three)
                left.append(program._shortlist.left / program._shortlist._output.packed.groups)
                batch = Batch((best,), (batch.positions[-1] + 1,), (0,), (0,))
        for engine in engines:
            engine.close()
    found = np.array(times) * 1000
    for name, of_rounds in (("fastest", found.min(axis=1)), ("median", np.median(found, axis=1))):
        plain, halves, short = of_rounds.mean(axis=0)
        print(
            f"{name} of {rounds}: {plain:.2f} ms packed, {halves:.2f} ms in halves, {short:.2f} ms with the shortlist:",
            end="",
        )
        print(f" {plain / short:.2f} times; halves to packed {halves / plain:.3f}")
    quartiles = np.quantile(found[..., 0].sum(axis=0) / found[..., 2].sum(axis=0), [0.25, 0.5, 0.75])
    print(f"ratio of rounds over all rows: {quartiles[1]:.2f} ({quartiles[0]:.2f}-{quartiles[2]:.2f})")
    print(f"groups left: mean {np.mean(left):.3f}, median {np.median(left):.3f}, most {max(left):.3f}")


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
