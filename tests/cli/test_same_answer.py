"""One question, one seed, ten processes, another run beside them all the time: one answer."""

import json
import subprocess

import pytest

from tests.cli.conftest import COMMAND, ROOT
from tests.support.talking_model import write_talker

RUNS = 10


@pytest.fixture
def chancy(tmp_path):
    """A model whose every token is a matter of chance."""
    return write_talker(tmp_path / "chancy.gguf", scale=0.003, context=2**20)


@pytest.fixture
def start(chancy):
    """``start("--seed", 1)`` begins a run in a process of its own; whatever still runs in the end is killed."""
    started = []

    def start(*words):
        command = [*COMMAND, "run", chancy, "x", "--json", "-q", "--temp", "0.8", *words]
        started.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def tokens(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return tuple(json.loads(output)["tokens"])


def test_ten_equal_answers_while_others_are_asked(start):
    start("--seed", 5, "-n", -2, "-t", 2)  # takes for ever
    answers = []
    for _ in range(RUNS // 2):
        pair = [start("--seed", 11, "-n", 24, "-t", threads) for threads in (1, 2)]
        answers += map(tokens, pair)
    assert len(answers) == RUNS and len(set(answers)) == 1, answers
    another = tokens(start("--seed", 12, "-n", 24, "-t", 1))
    assert len(answers[0]) == len(another) == 24 and answers[0] != another, "it was a matter of chance"
