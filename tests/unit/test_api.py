"""The Python interface, around a real model that says "one day" to everything."""

import dataclasses
import os
import subprocess
import sys
import threading

import pytest

import kinetic
from kinetic.api.model import Model
from kinetic.engine import Engine
from kinetic.errors import ContextOverflow, MalformedGguf, NonFinite, UnsupportedModel, UsageError
from kinetic.loader import LoadedFile, open_model_file
from kinetic.text.stream import final_text
from receipts.checks import check_answer, check_record
from tests.support.gguf_writer import GgufWriter
from tests.support.talking_model import BEGIN, END, TEMPLATE, VOCABULARY, write_talker


def text_of(answer):
    """The prompt as text, its beginning token aside."""
    assert answer.prompt_tokens[0] == BEGIN
    return bytes(answer.prompt_tokens[1:]).decode()


# --- importing ---


def test_importing_kinetic_loads_nothing():
    program = (
        "import sys, kinetic; kinetic.__version__;"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] in ('kinetic', 'receipts', 'numpy', 'numba')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kinetic", "kinetic._version", "kinetic.errors"]


@pytest.mark.parametrize("module", [kinetic, kinetic.api])
def test_every_public_name_is_there(module):
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert module.Model is Model
    with pytest.raises(AttributeError):
        _ = module.nothing


# --- prompts ---


def test_a_model_without_template_completes_the_text(make):
    answer = make().generate("Rivers:")
    assert text_of(answer) == "Rivers:" and answer.text == "one day"


def test_a_model_with_template_gets_a_message_unless_raw(make):
    model = make(TEMPLATE)
    assert text_of(model.generate("Rivers?", system="Be brief.")) == "system: Be brief.\nuser: Rivers?\n"
    assert text_of(model.generate("Rivers?", raw=True)) == "Rivers?"
    conversation = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    assert text_of(model.chat(conversation)) == "user: A\nassistant: B\n"


def test_a_template_gets_tools_and_variables(make):
    model = make("{{ tools[0].name if tools is defined else '-' }} {{ thinking }}")
    assert text_of(model.generate("x", tools=[{"name": "f"}], template_vars={"thinking": False})) == "f False"
    assert text_of(model.generate("x", tools=[])) == "- "


@pytest.mark.parametrize(
    "options",
    [
        {"tools": {"name": "f"}},
        {"tools": ["f"]},
        {"template_vars": []},
        {"template_vars": {1: 2}},
        {"template_vars": {"tools": []}},
        {"template_vars": {"a": 1}, "raw": True},
        {"tools": [{"name": "f"}], "raw": True},
    ],
)
def test_what_a_template_cannot_be_given(make, options):
    with pytest.raises(UsageError):
        make(TEMPLATE).generate("x", **options)


@pytest.mark.parametrize("template", [TEMPLATE, "<begin>" + TEMPLATE])
def test_exactly_one_beginning_token(make, template):
    answer = make(template).generate("x")
    assert text_of(answer) == "user: x\n" and answer.prompt_tokens.count(BEGIN) == 1


@pytest.mark.parametrize("parse", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_spellings_of_control_tokens_are_text_unless_asked(make, parse, raw):
    answer = make(TEMPLATE).generate("<end>x", parse_special=parse, raw=raw)
    assert (END in answer.prompt_tokens) is parse
    assert parse or "<end>x" in text_of(answer)


def test_refused_prompts(make, monkeypatch):
    base, chat = make(), make(TEMPLATE)
    monkeypatch.setattr(Engine, "generate", None)
    for ask in (
        lambda: base.chat([{"role": "user", "content": "x"}]),
        lambda: base.generate("x", system="y"),
        lambda: chat.generate("x", raw=True, system="y"),
        lambda: base.generate("x", max_tokens=-3),
        lambda: base.generate("x", max_tokens=2**31),
        lambda: base.generate("x", stop=["", "a"]),
        lambda: base.generate("x", stop=[f"{number}" for number in range(65)]),
        lambda: base.generate("x", stop="x" * 1025),
        lambda: base.generate("x", temprature=1),
        lambda: base.generate("x", seed=2**64),
        lambda: base.generate("x", seed=-2),
        lambda: base.generate("x", logit_bias={VOCABULARY: 1.0}),
        lambda: base.generate("x", logit_bias={1: "x"}),
        lambda: base.generate("x", logit_bias=5),
        lambda: base.generate("x", temperature="x"),
        lambda: base.generate("x", top_p=None),
        lambda: base.generate("x", max_tokens="x"),
        lambda: base.chat("x"),
        lambda: base.chat([]),
        lambda: base.chat(["x"]),
    ):
        with pytest.raises(UsageError):
            ask()
    monkeypatch.undo()
    with pytest.raises(UsageError):
        base.generate("x", completion_index=2**32)


def test_an_empty_prompt_needs_a_beginning_token(make):
    model = make()
    assert model.generate("").prompt_tokens == (BEGIN,)
    model.tokenizer.add_bos = False
    with pytest.raises(UsageError) as caught:
        model.generate("")
    assert caught.value.name == "EMPTY_PROMPT"


def test_a_prompt_longer_than_the_context_is_refused_before_anything_runs(make, monkeypatch):
    model = make(context=8)
    assert model.generate("123456").stop_reason == "context"  # 7 tokens with BOS leave room for one
    monkeypatch.setattr(Engine, "generate", None)
    for prompt in ("1234567", "x" * 100):
        with pytest.raises(ContextOverflow) as caught:
            model.generate(prompt)
        assert caught.value.exit_code == 6


# --- seeds and settings ---


def test_no_seed_means_a_fresh_one_each_time_and_it_is_reported(make):
    model = make()
    answers = [model.generate("x", temperature=0.7, **asked) for asked in ({}, {}, {"seed": None}, {"seed": -1})]
    seeds = [answer.seed for answer in answers]
    assert len(set(seeds)) == 4 and all(0 <= seed < 2**64 for seed in seeds)
    assert seeds == [int(answer.receipt()["sampling"]["seed"]) for answer in answers]


def test_a_given_seed_is_used_every_time(make):
    model = make()
    answers = [model.generate("x", seed=seed) for seed in (42, 42, 43, 0, 2**64 - 1)]
    assert [answer.seed for answer in answers] == [42, 42, 43, 0, 2**64 - 1]
    assert answers[0].sampling.temperature == pytest.approx(0.8), "a seed changes no other setting"


def test_the_settings_of_an_answer_ask_for_the_same_again(make):
    model = make()
    first = model.generate("x", temperature=0.3, logit_bias={65: -1.5, 3: float("-inf")})
    again = model.generate("x", **dataclasses.asdict(first.sampling))
    assert again.sampling == first.sampling and first.sampling.logit_bias == ((3, float("-inf")), (65, -1.5))


def test_a_receipt_holds_the_settings_that_were_used_not_those_that_were_asked_for(make):
    model = make()
    asked = {"temperature": -1, "top_p": 0.7, "logit_bias": [(5, 1.0), (3, 1e-40), (5, 0.5)], "presence_penalty": -0.0}
    record = model.generate("x", **asked).receipt()
    used = record["sampling"]
    assert (used["temperature"], used["top_p"], used["presence_penalty"]) == ("0", "0.7", "0")
    assert used["logit_bias"] == [
        {"token": 3, "bias": "0." + "0" * 39 + "1"},
        {"token": 5, "bias": "1.5"},
    ]
    one = model.generate("x", top_p=0).receipt()["sampling"]
    assert (one["top_k"], one["top_p"]) == (1, "1"), "one candidate has one spelling"
    check_record(record)


# --- how answers end ---


@pytest.mark.parametrize(
    ("options", "text", "tokens", "reason"),
    [
        ({}, "one day", b"one day\0", "end"),
        ({"max_tokens": 3}, "one", b"one", "length"),
        ({"max_tokens": 0}, "", b"", "length"),
        ({"max_tokens": 8}, "one day", b"one day\0", "end"),
        ({"max_tokens": 7}, "one day", b"one day", "length"),
        ({"stop": "day"}, "one ", b"one day", "stop"),
        ({"stop": ["day", "da"]}, "one ", b"one da", "stop"),
        ({"stop": ["one day", "e"]}, "on", b"one", "stop"),  # what is complete first, not what begins first
        ({"stop": ["e", "ne"]}, "o", b"one", "stop"),  # both at once: the longer
        ({"stop": ["days"]}, "one day", b"one day\0", "end"),
        ({"stop": ["e"], "max_tokens": 3}, "on", b"one", "stop"),
    ],
)
def test_endings(make, options, text, tokens, reason):
    model = make()
    answer = model.generate("x", **options)
    ids = tuple(END if byte == 0 else byte for byte in tokens)
    assert (answer.text, answer.tokens, answer.stop_reason) == (text, ids, reason)
    record = answer.receipt()
    check_answer(check_record(record))
    assert record["text"] == final_text(model.tokenizer, answer.tokens, record["stop"]["strings"])[0]


def test_minus_two_fills_the_context(make):
    model = make()
    answer = model.generate("x", max_tokens=-2)
    assert answer.stop_reason == "context" and len(answer.tokens) + len(answer.prompt_tokens) == model.context
    assert answer.text.startswith("one dayone day"), "end tokens are no text"
    record = answer.receipt()
    assert record["stop"]["end_tokens"] == [] and record["overrides"]["context"] == model.context
    check_answer(record)
    assert model.generate("x").receipt()["overrides"]["context"] == 0, "recorded only where it matters"


def test_an_end_token_that_has_a_spelling_is_no_text(folder):
    path = write_talker(folder / "spelled.gguf", b"one day")
    with Model(path, threads=1) as model:
        model.tokenizer.end_tokens = frozenset(b"y")
        answer = model.generate("x")
    assert (answer.text, answer.stop_reason) == ("one da", "end") == (answer.receipt()["text"], answer.stop_reason)


def test_streams_show_whole_characters_and_never_a_stop_string(make):
    stream = make(answer="aï 😸 END".replace(" ", "", 1).encode()).stream("x", stop=["END"])
    pieces = list(stream)
    assert "".join(pieces) == "aï😸 " == stream.completion.text
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("count", range(1, 5))
def test_a_character_cut_by_the_limit_becomes_one_replacement_at_the_end(make, count):
    answer = make(answer="😸".encode()).generate("x", max_tokens=count)
    assert answer.text == ("😸" if count == 4 else "\ufffd") and answer.receipt()["text"] == answer.text


def test_half_a_character_is_no_reason_to_stop(make):
    answer = make(answer="😸".encode()).generate("x", max_tokens=2, stop="\ufffd")
    assert (answer.text, answer.stop_reason) == ("", "length") and answer.receipt()["text"] == ""


def test_stop_keeps_what_there_is(make):
    stream = make().stream("x")
    assert next(stream) + next(stream) == "on"
    stream.stop()
    assert list(stream) == [] and stream.completion.stop_reason == "interrupt"
    assert stream.completion.text == "on"
    check_answer(stream.completion.receipt())


def test_a_closed_or_abandoned_stream_frees_the_model(make):
    model = make()
    with model.stream("x") as stream:
        next(stream)
    assert stream.completion.text == "o" and stream.completion.stop_reason == "interrupt"
    for _ in model.stream("x"):
        break
    assert model.generate("x").text == "one day"


def test_an_unfinished_stream_has_no_completion(make):
    stream = make().stream("x")
    with pytest.raises(UsageError) as caught:
        _ = stream.completion
    assert caught.value.name == "NOT_FINISHED" and not stream.is_finished


def test_a_number_that_is_not_finite_gives_no_completion(make):
    model = make(answer=b"ab!")
    stream = model.stream("x")
    with pytest.raises(NonFinite):
        list(stream)
    assert not stream.is_finished
    assert model.generate("x", max_tokens=2).text == "ab"


def test_a_closed_model_answers_no_more(make):
    with make() as model:
        stream, later = model.stream("x"), model.stream("y")
        next(stream)
    for ask in (lambda: next(later), lambda: model.generate("x"), lambda: next(stream)):
        with pytest.raises(UsageError) as caught:
            ask()
        assert caught.value.name == "CLOSED"


def test_progress_of_a_prompt(make, monkeypatch):
    monkeypatch.setattr("kinetic.engine.engine.PROMPT_ROWS", 4)
    seen = []
    make().stream("123456789", on_progress=lambda *done: seen.append(done)).__next__()
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_stats_count_tokens_and_seconds(make):
    stats = make().generate("abc").stats
    assert (stats.prompt_tokens, stats.decode_tokens) == (4, 7)
    assert stats.prompt_seconds > 0 and stats.decode_seconds > 0 and stats.decode_speed > 0
    assert make().generate("abc", max_tokens=0).stats.decode_speed == 0


# --- taking turns ---


def test_one_thread_cannot_wait_for_itself(make):
    model = make()
    stream = model.stream("x")
    next(stream)
    with pytest.raises(UsageError) as caught:
        model.generate("y")
    assert caught.value.name == "BUSY"
    stream.close()


def test_threads_take_turns(make, monkeypatch):
    real, inside, most = Engine.generate, [], []

    def generate(self, *arguments, **options):
        inside.append(1)
        most.append(len(inside))
        try:
            yield from real(self, *arguments, **options)
        finally:
            inside.pop()

    monkeypatch.setattr(Engine, "generate", generate)
    model, answers = make(), []
    threads = [threading.Thread(target=lambda: answers.append(model.generate("x").text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["one day"] * 8 and most == [1] * 8


# --- opening ---


def test_unknown_device(make):
    with pytest.raises(UsageError) as caught:
        make(device="abacus")
    assert caught.value.name == "NO_DEVICE"


def test_a_model_that_cannot_be_opened_leaves_no_file_open(tmp_path, monkeypatch):
    closed, real = [], LoadedFile.close
    monkeypatch.setattr(LoadedFile, "close", lambda self: closed.append(1) or real(self))
    GgufWriter().key("general.architecture", "abacus").write(tmp_path / "a.gguf")
    with pytest.raises((UnsupportedModel, MalformedGguf)):
        Model(tmp_path / "a.gguf")
    with pytest.raises(UsageError):
        Model(write_talker(tmp_path / "b.gguf"), context=65)
    assert closed == [1, 1]


def test_a_weight_format_that_is_not_built_in_is_named(make, monkeypatch):
    monkeypatch.setattr("kinetic.formats.RUNNABLE", frozenset())
    with pytest.raises(UnsupportedModel) as caught:
        make()
    assert "F32, of token_embd.weight and 11 more," in str(caught.value)


def test_an_open_file_can_be_handed_over(folder):
    loaded = open_model_file(write_talker(folder / "open.gguf"))
    with Model(loaded, threads=1) as model:
        assert model.generate("x").text == "one day" and model.path == folder / "open.gguf"


def test_the_home_folder_holds_the_kernels(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KINETIC_KERNELS", "elsewhere")
    Model(write_talker(folder / "k.gguf"), device="reference").close()
    assert os.environ["KINETIC_KERNELS"] == "elsewhere"
    monkeypatch.delenv("KINETIC_KERNELS")
    Model(folder / "k.gguf", device="reference").close()
    assert os.environ["KINETIC_KERNELS"] == str(tmp_path / "home" / "kernels")


def test_news_of_compilation_reaches_the_caller(tmp_path, folder, monkeypatch):
    news = []
    monkeypatch.setattr("kinetic.backends.cpu.native._start", lambda *job: (_ for _ in ()).throw(MemoryError))
    monkeypatch.setenv("KINETIC_KERNELS", str(tmp_path))
    with pytest.raises(MemoryError):
        Model(write_talker(folder / "n.gguf"), progress=news.append)
    assert len(news) == 1 and "compiling kernels" in news[0] and "\n" not in news[0]
