"""llama.cpp's server under each condition: which settings it is started with, and how it is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.peer_conditions import GROUPS, PIECE, SLOTS, THREADS, Question, Tokens, Told, grouped
from conformance.peer_server import ANSWER_WITHIN, READY_WITHIN, Server
from kinetic.errors import FileProblem

NAME = "llama.cpp"

USUAL = {"-t": str(THREADS), "-tb": str(THREADS), "-b": "2048", "-ub": "512", "-fa": "on"}
"""Threads, batch and micro-batch (the server's own), flash attention."""

CHANGES: dict[str, dict[str, str]] = {
    "again": {},
    "neighbour": {},
    "neighbours": {},
    "prefix": {},
    "chunks": {"-ub": str(PIECE)},
    "thread": {"-t": "1", "-tb": "1"},
    "attention": {"-fa": "off"},
}
"""Settings that are other under a condition. One server serves all that have none, one after the other."""

REQUESTS = {
    "again": "asked twice",
    "neighbour": "two requests at the same time",
    "neighbours": "four requests at the same time",
    "prefix": "`cache_prompt`, after a question with the same first half",
}


class LlamaServer:
    """An ``Engine``. ``program`` is the path of llama-server. Close it when done."""

    def __init__(
        self,
        program: str,
        model: Path,
        *,
        ready_within: float = READY_WITHIN,
        answer_within: float = ANSWER_WITHIN,
        context: int = 512,
    ) -> None:
        self._program, self._model, self._context = program, model, context
        self._patience = {"ready_within": ready_within, "answer_within": answer_within}
        self._running: tuple[dict[str, str], Server] | None = None
        self.name = NAME
        self.reused = 0
        """Tokens of prompts that the server says it took from its cache under "prefix"."""

    def conditions(self) -> Mapping[str, str]:
        return {name: REQUESTS.get(name) or _words(changes) for name, changes in CHANGES.items()}

    def ask(self, condition: str, questions: Sequence[Question], count: int, told: Told) -> list[Tokens]:
        server = self._server(CHANGES.get(condition, {}))
        if condition == "prefix":
            return [self._after_related(server, question, count, told) for question in questions]
        answers: list[Tokens] = []
        for group in grouped(questions, GROUPS.get(condition, 1)):
            found = server.ask([_body(question.prompt, count) for question in group])
            answers += [_tokens(answer, count) for answer in found]
            told(len(found))
        return answers[: len(questions)]

    def _after_related(self, server: Server, question: Question, count: int, told: Told) -> Tokens:
        """In one slot: first the related question, whose beginning is then in the cache."""
        cached = {"cache_prompt": True, "id_slot": 0}
        server.ask([_body(question.related, 1) | cached])
        answer = server.ask([_body(question.prompt, count) | cached])[0]
        self.reused += int(answer.get("timings", {}).get("cache_n", 0))
        told(1)
        return _tokens(answer, count)

    def _server(self, changes: dict[str, str]) -> Server:
        if self._running is None or self._running[0] != changes:
            self.close()
            server = Server(self._command(USUAL | changes), **self._patience)
            self._running = changes, server
            server.__enter__()
            build = server.facts().get("build_info")
            # A build from an archive says b0.
            self.name = f"{NAME} {build}" if isinstance(build, str) and not build.startswith("b0-") else NAME
        return self._running[1]

    def _command(self, settings: Mapping[str, str]) -> list[str]:
        words = [word for pair in settings.items() for word in pair]
        size = str(SLOTS * self._context)
        return [self._program, "-m", str(self._model), "-c", size, "--parallel", str(SLOTS), "-ngl", "0", *words]

    def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running[1].stop()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.close()


def _words(changes: Mapping[str, str]) -> str:
    return f"`{' '.join(word for pair in changes.items() for word in pair)}`"


def _body(prompt: Tokens, count: int) -> dict[str, Any]:
    """Greedy, to the whole length: an end token would make answers short. Nothing is kept from before."""
    settings = {"temperature": 0, "seed": 0, "ignore_eos": True, "cache_prompt": False, "stream": False}
    return {"prompt": prompt, "n_predict": count, "return_tokens": True, **settings}


def _tokens(answer: Mapping[str, Any], count: int) -> Tokens:
    """The token ids of an answer, ``count`` of them unless the server stopped before."""
    tokens: Any = answer.get("tokens")
    are_ids = isinstance(tokens, list) and all(type(token) is int for token in tokens)
    if not are_ids or not 0 < len(tokens) <= count:
        raise FileProblem(
            f"the server gave no ids of its {count} tokens: it may be too old to know `return_tokens`",
            name="PEER_FAILED",
        )
    ids: Tokens = tokens
    return ids
