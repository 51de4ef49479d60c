"""The output layer with and without the shortlist, the two taking turns on the rows of greedy answers.

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
        begun = time.perf_counter()
        self._program._workers.run()
        taken = time.perf_counter() - begun
        table[tape.CODE], table[tape.LENGTH], table[tape.BEST] = address(self._code), len(self._code), 0
        return taken


def main(model: str, threads: int = 1, rounds: int = 9) -> None:
    with open_model_file(store.resolve(model)) as file:
        engine = Engine(file.gguf, file.weights, threads=threads)
        tokenizer, program = Tokenizer(file.gguf.metadata), engine._program
        assert isinstance(program, CpuProgram) and program._shortlist is not None, "this model has no shortlist"
        begun = time.perf_counter()
        program._shortlist._make()
        print(f"the copy took {time.perf_counter() - begun:.2f} s")
        layer, times, left = OutputLayer(program), [], []
        for text in TEXTS:
            tokens = tokenizer.encode(text, add_special=True, parse_special=True)
            program.truncate(0, 0)
            places = range(len(tokens))
            batch = Batch(tuple(tokens), tuple(places), (0,) * len(tokens), (len(tokens) - 1,))
            for _ in range(STEPS):
                best = int(program.run(batch)[0].argmax())
                times.append([[layer.seconds(0), layer.seconds(2)] for _ in range(rounds)])
                left.append(program._shortlist.left / program._shortlist._output.packed.groups)
                batch = Batch((best,), (batch.positions[-1] + 1,), (0,), (0,))
        engine.close()
    found = np.array(times) * 1000
    for name, of_rounds in (("fastest", found.min(axis=1)), ("median", np.median(found, axis=1))):
        plain, short = of_rounds.mean(axis=0)
        print(f"{name} of {rounds}: {plain:.2f} ms plain, {short:.2f} ms with the shortlist: {plain / short:.2f} times")
    quartiles = np.quantile(found[..., 0].sum(axis=0) / found[..., 1].sum(axis=0), [0.25, 0.5, 0.75])
    print(f"ratio of rounds over all rows: {quartiles[1]:.2f} ({quartiles[0]:.2f}-{quartiles[2]:.2f})")
    print(f"groups left: mean {np.mean(left):.3f}, median {np.median(left):.3f}, most {max(left):.3f}")


if __name__ == "__main__":
    main(sys.argv[1], *(int(word) for word in sys.argv[2:]))
