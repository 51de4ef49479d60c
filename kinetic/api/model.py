"""A model that answers: the place where text, engine and attest meet."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kinetic import packs, sampling, store
from kinetic.api import profiles, speed_ups
from kinetic.api.answer import Completion, Question, Stats, Stream
from kinetic.api.embedder import Embeds
from kinetic.api.opening import Asked, choose_device, choose_kernel_folder, close_all, open_adapters, rope_overrides
from kinetic.api.opening import open_engine as _open_engine
from kinetic.api.opening import open_file as _open_file
from kinetic.api.options import (
    Message,
    Options,
    as_messages,
    fresh_salt,
    require_count,
    require_messages,
    settings,
    stop_strings,
)
from kinetic.api.session import Sessions
from kinetic.errors import ContextOverflow, KineticError, UsageError
from kinetic.loader import Check, LoadedFile
from kinetic.text import load_template, load_tokenizer
from kinetic.text.breakers import breaker_runs
from kinetic.types import AdapterFile, ModelIdentity, Request, RopeOverrides, Step

if TYPE_CHECKING:
    from kinetic.attest import Attested
    from kinetic.engine import Engine
    from kinetic.engine.engine import Digest


class Model(Embeds, Sessions):
    """A model file or bundle, ready to answer. One answer at a time; threads take turns.

    ``model`` is a path, a name from ``kinetic models``, a pulled file's name, or
    an open file (which this then closes). ``device`` is 'cpu', 'cuda[:N]',
    'opencl[:N]', 'auto' or 'reference'; ``gpu_layers`` is how many layers, the
    last ones, are on it: a number, 'all', or 'auto' for as many as fit. Of the
    first ``cpu_moe`` layers, 'all', or 'auto' if not all fit, it has only those
    experts that are in use. ``threads`` 0 is as many as the bundle's profile for
    this machine says, else one per core; ``context`` 0 is the model's own.
    ``check`` says when a bundle's bytes are checked: "lazy", when they are first
    used, "full", beforehand, or "none". ``pack_cache`` keeps packed weights for
    the next start, and uses those that were kept: no bit depends on it.
    ``adapters`` are files of them, each alone or with its scale, in the order in
    which they act. ``rope`` takes the place of the file's settings of rotary
    positions (types.RopeOverrides, or its fields by name). ``off`` names speed-ups
    to do without (types.SPEED_UPS), ``draft_model`` is a smaller model that guesses
    what comes, ``draft_max`` bounds the guesses, ``cache_ram`` and ``cache_disk`` are bytes for what was computed of
    earlier prompts: no bit depends on these. ``progress`` gets news of a line. Raises FileProblem, Malformed,
    UnsupportedModel or OutOfMemory, and of a bundle SignatureProblem, Unverifiable or LimitExceeded.
    """

    _identity: ModelIdentity | None = None
    _adapter_files: tuple[AdapterFile, ...] | None = None

    def __init__(
        self,
        model: str | os.PathLike[str] | LoadedFile,
        *,
        device: str = "cpu",
        gpu_layers: int | str = "auto",
        cpu_moe: int | str = 0,
        threads: int = 0,
        context: int = 0,
        check: Check = "lazy",
        pack_cache: bool = True,
        adapters: Iterable[Asked] = (),
        rope: RopeOverrides | Mapping[str, Any] | None = None,
        off: Collection[str] = (),
        draft_model: str | os.PathLike[str] | None = None,
        draft_max: int | None = None,
        cache_ram: int | None = None,
        cache_disk: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        device, layers = choose_device(device, progress, gpu_layers)
        require_count("the number of threads", threads, "one per core")
        require_count("the context size", context, "the model's own")
        self._rope = rope_overrides(rope)
        self._speed_ups = speed_ups.wishes(off, draft_model, draft_max, cache_ram, cache_disk, keeps=pack_cache)
        self._adapters = open_adapters(adapters)
        try:
            self._loaded = model if isinstance(model, LoadedFile) else _open_file(model, check, progress)
        except BaseException:
            close_all(self._adapters)
            raise
        self.path = self._loaded.gguf.paths[0]
        self.device, self._gpu_layers, self._pack_cache = device, gpu_layers, pack_cache
        self._turn, self._hashing, self._holder, self._closed = threading.Lock(), threading.Lock(), 0, False
        try:
            self._plan = profiles.plan(self._loaded.profiles, device, threads)
            metadata = self._loaded.gguf.metadata
            self.tokenizer = load_tokenizer(metadata, store.writable("tokenizers") if pack_cache else None)
            self._template = load_template(metadata, self.tokenizer)
            keeps = pack_cache and not self._adapters  # a pack is of the model's weights alone
            cache = packs.cache_of(self._loaded, lambda: self.identity) if keeps else None
            choose_kernel_folder(progress)
            changes = (self._adapters, self._rope, self._speed_ups, layers, cpu_moe)
            self._engine = _open_engine(self._loaded, device, self._plan.threads, context, cache, progress, *changes)
            self.device = device if self._engine.identity.device_class != "cpu" else "cpu"
            self._engine.prompt_rows = self._plan.prompt_rows
            self._loaded.gguf.release_all()
        except BaseException:
            self._close_files()
            raise

    # --- asking ---

    def generate(self, prompt: str | Sequence[Message], **options: Unpack[Options]) -> Completion:
        """The whole answer to a text or to a conversation.

        A text becomes the user's message where the model has a chat template,
        unless ``raw`` is set; elsewhere it is completed as it is. Raises
        ContextOverflow before anything runs, UsageError, TemplateError or NonFinite.
        """
        with self.stream(prompt, **options) as stream:
            for _ in stream:
                pass
        return stream.completion

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Completion:
        """The assistant's next message in a conversation; the model must have a chat template."""
        require_messages(messages)
        return self.generate(messages, **options)

    def stream(
        self,
        prompt: str | Sequence[Message],
        *,
        on_progress: store.Progress | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """As ``generate``, piece by piece. ``on_progress`` is told (prompt tokens done, in all)."""
        self._require_open()
        return Stream(self, self._question(prompt, options), on_progress)

    def _question(self, prompt: str | Sequence[Message], options: Options) -> Question:
        wanted = settings(options)
        ids, template_time = self._encode(prompt, options)
        if len(ids) >= self.context:
            raise ContextOverflow(
                f"the prompt has {len(ids)} token{'' if len(ids) == 1 else 's'}"
                f" and leaves no room in a context of {self.context}:"
                " shorten it or raise --ctx-size",
                name="PROMPT_TOO_LONG",
            )
        max_tokens = options.get("max_tokens", -1)
        salt = fresh_salt(options)
        canonical = sampling.validate(wanted, self.tokenizer.vocab_size)
        question = Question(
            Request(
                prompt=tuple(ids),
                sampling=canonical,
                max_tokens=max(max_tokens, -1),
                end_tokens=frozenset() if max_tokens == -2 else self.tokenizer.end_tokens,
                completion_index=options.get("completion_index", 0),
                breakers=breaker_runs(self.tokenizer, canonical.dry_sequence_breakers),
            ),
            stop=stop_strings(options.get("stop", ())),
            template_time=template_time,
            digest=_digest(salt) if options.get("commit_logits") else None,
            salt=salt,
            challenge=options.get("challenge", ""),
        )
        return self._seeded(question) if question.challenge else question

    def _seeded(self, question: Question) -> Question:
        """With the seed that the challenge gives. It depends on the model's digests, so files may be hashed here."""
        from kinetic import attest

        request = question.request
        seed = attest.challenge_seed(self._attested(question))
        return replace(question, request=replace(request, sampling=replace(request.sampling, seed=seed)))

    def _encode(self, prompt: str | Sequence[Message], options: Options) -> tuple[list[int], str]:
        """Token ids of the prompt, and the clock value that its template asked for."""
        if isinstance(prompt, str) and (options.get("raw") or not self.has_template):
            for key, what in (("system", "a system message"), ("tools", "tools"), ("template_vars", "variables")):
                if options.get(key):
                    why = "a raw prompt has none" if self.has_template else "this model has no chat template"
                    raise UsageError(f"there is no place for {what}: {why}", name="NO_TEMPLATE")
            special = options.get("parse_special", False)
            ids, used = self.tokenizer.encode(prompt, add_special=True, parse_special=special), ""
        else:
            ids, used = self._render(prompt, options)
        if not ids:
            raise UsageError("the prompt is empty", name="EMPTY_PROMPT")
        return ids, used

    def _render(self, prompt: str | Sequence[Message], options: Options) -> tuple[list[int], str]:
        if not isinstance(prompt, str):
            require_messages(prompt)
        if self._template is None:
            raise UsageError("this model has no chat template: give it a text to complete", name="NO_TEMPLATE")
        # The time is chosen out here, so that what renders a template knows no clock of its own.
        now = options.get("template_time") or datetime.now().isoformat(timespec="seconds")
        messages = as_messages(prompt, options.get("system", ""))
        tools, variables = options.get("tools") or None, options.get("template_vars")
        rendered = self._template.render(messages, tools=tools, clock=now, extra=variables)
        if options.get("parse_special"):
            ids = self.tokenizer.encode(rendered.text, add_special=False, parse_special=True)
        else:
            text, guard = rendered.text_with_guard, rendered.guard
            ids = self.tokenizer.encode(text, add_special=False, parse_special=True, guard=guard)
        if self.tokenizer.add_bos and self.tokenizer.bos is not None and ids[:1] != [self.tokenizer.bos]:
            ids = [self.tokenizer.bos, *ids]  # exactly one, whether or not the template writes it
        return ids, rendered.clock_used or ""

    def replay(
        self, record: Mapping[str, Any], on_progress: store.Progress | None = None, *, salt: bytes | None = None
    ) -> Iterator[Step]:
        """For each output position of a receipt, the token that this model draws there, given what stands before.

        ``on_progress`` is told (tokens done, in all), those of the prompt
        included. Where the receipt commits to logits the steps do too; of a
        prompt that was withheld, that takes the opening's ``salt``.
        """
        request, output = self._question_of(record), record["output"]["tokens"]
        digest = _digest(salt or b"") if record["logit_commit"] else None
        with self._held() as engine, contextlib.closing(engine.replay(request, output, on_progress, digest)) as steps:
            yield from steps

    def _question_of(self, record: Mapping[str, Any]) -> Request:
        """A receipt's question, as this model's tokenizer reads it."""
        from kinetic import attest

        request = attest.question_of(record)
        canonical = sampling.validate(request.sampling, self.tokenizer.vocab_size)
        runs = breaker_runs(self.tokenizer, canonical.dry_sequence_breakers)
        return replace(request, sampling=canonical, breakers=runs)

    @contextlib.contextmanager
    def _held(self) -> Iterator[Engine]:
        """The engine, for one answer at a time."""
        self._require_open()  # here too: of a closed model that counts more than a stream left open
        if self._is_mine():
            raise UsageError("this model is in the middle of an answer: finish or close that stream", name="BUSY")
        with self._turn:
            self._require_open()
            self._holder = threading.get_ident()
            try:
                yield self._engine
            finally:
                self._holder = 0

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError("this model is closed", name="CLOSED")

    def _completion(
        self,
        question: Question,
        *,
        tokens: tuple[int, ...],
        commits: tuple[bytes, ...],
        text: str,
        stop_reason: str,
        stats: Stats,
    ) -> Completion:
        finished = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

        def make_receipt() -> dict[str, Any]:
            from kinetic import attest  # Not at the top: most answers want no receipt, and need not wait for it.

            begun = self._attested(question)
            return attest.make_receipt(
                replace(begun, output=tokens, commits=commits, text=text, stop_reason=stop_reason, time=finished)
            )

        return Completion(
            text=text,
            tokens=tokens,
            prompt_tokens=question.request.prompt,
            stop_reason=stop_reason,
            sampling=question.request.sampling,
            stats=stats,
            commits=commits,
            _salt=question.salt,
            _decode=lambda ids: b"".join(self.tokenizer.piece(token) for token in ids),
            _make_receipt=make_receipt,
        )

    def _attested(self, question: Question) -> Attested:
        """What a receipt says of a question that was just begun: nothing came out so far."""
        from kinetic import attest

        engine = self._engine.identity
        return attest.Attested(
            identity=self.identity,
            request=question.request,
            output=(),
            text="",
            stop_reason="interrupt",
            stop_strings=question.stop,
            context=self.context,
            template_time=question.template_time,
            engine_id=engine.engine_id,
            device_class=engine.device_class,
            device_name=engine.device_name,
            time="",
            challenge=question.challenge,
            salt=question.salt,
            bundle=self._loaded.bundle_digest,
            adapters=self.adapters,
            rope=self._rope,
        )

    # --- about the model ---

    @property
    def identity(self) -> ModelIdentity:
        """Architecture, and the files with their sizes and digests; also of a closed model.

        The first call may hash the files. Raises FileProblem if they are no longer what was opened.
        """
        with self._hashing:
            if self._identity is None:
                self._identity = self._loaded.identity()
            self._loaded.check_unchanged()
            return self._identity

    @property
    def adapters(self) -> tuple[AdapterFile, ...]:
        """Files, digests and scales of the adapters, in their order; also of a closed model. May hash them."""
        with self._hashing:
            if self._adapter_files is None:
                self._adapter_files = tuple(adapter.identity() for adapter in self._adapters)
            for adapter in self._adapters:
                adapter.loaded.check_unchanged()
            return self._adapter_files

    def hash_ahead(self) -> None:
        """Hash the model's files beside what comes next, so that a receipt needn't wait for it."""
        threading.Thread(target=self._hash_quietly, daemon=True).start()

    def _hash_quietly(self) -> None:
        with contextlib.suppress(KineticError):  # whoever asks for the identity gets the error
            _ = self.identity, self.adapters

    @property
    def has_template(self) -> bool:
        """Whether the model brings a chat template, so that a text becomes a message by default."""
        return self._template is not None

    @property
    def context(self) -> int:
        """The most tokens that prompt and answer may have together."""
        return self._engine.context

    @property
    def device_name(self) -> str:
        """What computes, in words."""
        return self._engine.identity.device_name

    @property
    def profile_note(self) -> str:
        """What the bundle's profile for this machine decided, in a few words; "" without one."""
        return self._plan.note

    @property
    def bundle_digest(self) -> str:
        """Manifest digest of the bundle that the model comes from, hex; "" if it comes from none."""
        return self._loaded.bundle_digest

    def close(self) -> None:
        """Give up the file and its memory. Waits for an answer that another thread is being given."""
        self._closed = True
        with contextlib.nullcontext() if self._is_mine() else self._turn:
            self._close_embedders()
            self._engine.close()
            self._speed_ups.close(self._engine)
            self._close_files()

    def _close_files(self) -> None:
        self._loaded.close()
        close_all(self._adapters)

    def _is_mine(self) -> bool:
        """Whether a stream of this very thread, suspended between two pieces, has the turn."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _digest(salt: bytes) -> Digest:
    """Digest of a row of logits for a receipt; keyed by the salt, if there is one."""
    from ktc.digest import logits_digest

    return lambda row: logits_digest(row.astype("<f4", copy=False).view("u1").data, salt)


open_model = Model
"""The same under the name that other layers use."""
