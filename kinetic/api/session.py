"""A conversation with a model, or a text, whose next prompt is computed while it is still being written.

    with model.session(system="Be brief.") as session:
        session.prefill("Name three")
        session.prefill("Name three rivers")
        print(session.generate("Name three rivers.").text)

Whatever was prefilled, an answer has the tokens that it would have without: the prompt is made into tokens anew, and
what is there of it is kept as far as the tokens are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from kinetic.engine.warm.blocks import common
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from kinetic import store
    from kinetic.api.answer import Completion, Stream
    from kinetic.api.model import Model
    from kinetic.api.options import Message, Options

ENDINGS = ("", " x", "x")
"""What may come behind a draft: tokens that are the same before all of them are likely to stay."""


class Session:
    """Not thread-safe. ``messages`` are those so far, and may be changed; "" as a chat needs a model with a template.

    ``options`` are those of ``Model.generate``, for all prompts of the session.
    """

    def __init__(self, model: Model, messages: Sequence[Message], options: Options) -> None:
        self._model, self._options = model, options
        self.messages: list[Message] = list(messages)

    def prefill(
        self,
        draft: str,
        should_stop: Callable[[], bool] | None = None,
        on_progress: store.Progress | None = None,
    ) -> int:
        """Computes the prompt that ends with ``draft`` ahead, as far as it is likely to stay when the text goes on.

        Of what was computed before, that stays which is before the first edit. Returns how many tokens of the prompt
        are there; 0 where warm starts are off. ``should_stop`` is asked between passes; an answer that another thread
        is being given is waited for. Raises what ``Model.generate`` raises of a prompt.
        """
        tokens = self._tokens(draft)
        if not tokens:
            return 0
        with self._model._held() as engine:
            return engine.prefill(tokens, should_stop, on_progress)

    def stream(self, text: str, **options: Unpack[Options]) -> Stream:
        """The answer to ``text`` piece by piece. It is for the caller to put both into ``messages``."""
        return self._model.stream(self._prompt(text), **self._with(options))

    def generate(self, text: str, **options: Unpack[Options]) -> Completion:
        """The whole answer to ``text``. In a conversation both are then in ``messages``."""
        completion = self._model.generate(self._prompt(text), **self._with(options))
        if self._is_chat():
            self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": completion.text}]
        return completion

    def _tokens(self, draft: str) -> list[int]:
        """Those that stay whatever is written behind the draft, as far as a few endings tell."""
        found: list[int] | None = None
        for ending in ENDINGS:
            if not draft and not ending and not self._is_chat():
                return []
            tokens, _ = self._model._encode(self._prompt(draft + ending), self._options)
            found = tokens if found is None else found[: common(found, tokens)]
        return (found or [])[: self._model.context - 1]

    def _is_chat(self) -> bool:
        return self._model.has_template and not self._options.get("raw")

    def _prompt(self, text: str) -> str | Sequence[Message]:
        if self._is_chat():
            return [*self.messages, {"role": "user", "content": text}]
        if self.messages:
            raise UsageError("this model has no chat template, so there can be no messages", name="NO_TEMPLATE")
        return text

    def _with(self, options: Mapping[str, Any]) -> Options:
        return cast("Options", {**self._options, **options})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is to be closed: the model keeps what was computed."""


class Sessions:
    """What ``Model`` offers of this."""

    def session(self, messages: Sequence[Message] = (), **options: Unpack[Options]) -> Session:
        """A conversation that goes on from ``messages``, or a text to complete where there is no chat template."""
        return Session(cast("Model", self), messages, options)
