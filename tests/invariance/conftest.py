"""The tiny models, and what each gives token by token on one thread: everything else must give the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinetic.bits import F32
from kinetic.loader import LoadedFile, open_model_file
from tests.support.whole_models import WRITERS, program_of, prompt_then_decode, tokens_of, write_all


@dataclass
class Tiny:
    """A model, a prompt with the tokens that follow it, and the logits of every row of both."""

    name: str
    path: Path
    file: LoadedFile
    tokens: list[int]
    expected: F32


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_all(folder)
    return folder


@pytest.fixture(scope="session", params=WRITERS)
def tiny(request: pytest.FixtureRequest, tiny_folder: Path) -> Iterator[Tiny]:
    path = tiny_folder / f"{request.param}.gguf"
    tokens = tokens_of(100)
    with open_model_file(path) as file:
        with program_of(file, threads=1) as program:
            expected = prompt_then_decode(program, tokens, [1])
        yield Tiny(request.param, path, file, tokens, expected)
