"""The Python interface, with a tiny engine and a byte tokenizer in the places of the real ones."""

import dataclasses
import subprocess
import sys
import threading

import pytest

import kinetic
from kinetic.api import model as model_module
from kinetic.api.model import Model
from kinetic.errors import ContextOverflow, NonFinite, UsageError
from kinetic.text.stream import final_text
from kinetic.types import ModelFile, ModelIdentity
from receipts import encode
from receipts.checks import check_answer, check_record
from tests.support.fake_model import BOS, END, FILE, NAN, VOCAB, Engine, Loaded, Template, Tokenizer


@pytest.fixture
def make(monkeypatch, tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(model_module.loader, "open_model_file", lambda path: Loaded())
    monkeypatch.setattr(model_module, "load_tokenizer", lambda metadata: Tokenizer())
    monkeypatch.setattr(model_module, "Engine", Engine)

    def make(template=None, **options):
        monkeypatch.setattr(model_module, "load_template", lambda metadata, tokenizer: template)
        return Model(tmp_path / "tiny.gguf", **options)

    return make


def say(monkeypatch, *answer):
    tokens = [token for part in answer for token in (part if type(part) is bytes else [part])]
    monkeypatch.setattr(Engine, "answer", tokens)


def last_request(model):
    return model._engine.requests[-1]


# --- importing ---


def test_importing_kinetic_loads_nothing():
    program = (
        "import sys, kinetic; kinetic.__version__;"
        "print(*sorted(m for m in sys.modules if m.partition('.')[0] in ('kinetic', 'receipts', 'numpy', 'numba')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kinetic", "kinetic._version", "kinetic.errors"]


def test_every_public_name_is_there():
    assert all(getattr(kinetic, name) is not None for name in kinetic.__all__)
    assert kinetic.Model is Model
    with pytest.raises(AttributeError):
        _ = kinetic.nothing


# --- prompts ---


def test_a_model_without_template_completes_the_text(make):
    model = make()
    assert model.generate("Rivers: ").text == "a river"
    assert bytes(last_request(model).prompt[1:]) == b"Rivers: " and last_request(model).prompt[0] == BOS


def test_a_model_with_template_gets_a_message_unless_raw(make):
    model = make(Template())
    model.generate("Rivers?", system="Be brief.")
    assert bytes(last_request(model).prompt[1:]) == b"system: Be brief.\nuser: Rivers?\n"
    model.generate("Rivers?", raw=True)
    assert bytes(last_request(model).prompt[1:]) == b"Rivers?"
    model.chat([{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}])
    assert bytes(last_request(model).prompt[1:]) == b"user: A\nassistant: B\n"


def test_exactly_one_beginning_token(make, monkeypatch):
    model = make(Template())
    model.generate("x")
    assert last_request(model).prompt.count(BOS) == 1
    real = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, **options: [BOS, *real(self, text, **options)])
    model.generate("x")
    assert last_request(model).prompt.count(BOS) == 1, "a template that writes it itself"


@pytest.mark.parametrize("parse", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_spellings_of_control_tokens_are_text_unless_asked(make, parse, raw):
    model = make(Template())
    model.generate("<end>x", parse_special=parse, raw=raw)
    assert (END in last_request(model).prompt) is parse


def test_refused_prompts(make, monkeypatch):
    base, chat = make(), make(Template())
    for ask in (
        lambda: base.chat([{"role": "user", "content": "x"}]),
        lambda: base.generate("x", system="y"),
        lambda: chat.generate("x", raw=True, system="y"),
        lambda: base.generate("x", max_tokens=-3),
        lambda: base.generate("x", max_tokens=2**31),
        lambda: base.generate("x", stop=["", "a"]),
        lambda: base.generate("x", temprature=1),
        lambda: base.generate("x", seed=2**64),
        lambda: base.generate("x", seed=-2),
        lambda: base.generate("x", logit_bias={VOCAB: 1.0}),
    ):
        with pytest.raises(UsageError):
            ask()
    monkeypatch.setattr(Tokenizer, "add_bos", False)
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, **options: list(text.encode()))
    with pytest.raises(UsageError) as caught:
        base.generate("")
    assert caught.value.name == "EMPTY_PROMPT"
    assert not base._engine.requests and not chat._engine.requests


def test_a_prompt_longer_than_the_context_is_refused_before_anything_runs(make):
    model = make(context=8)
    assert model.generate("123456").stop_reason == "context"  # 7 tokens with BOS leave room for one
    model._engine.requests.clear()
    for prompt in ("1234567", "x" * 100):
        with pytest.raises(ContextOverflow) as caught:
            model.generate(prompt)
        assert caught.value.exit_code == 6
    assert not model._engine.requests


# --- seeds ---


def test_no_seed_means_a_fresh_one_each_time_and_it_is_reported(make):
    model = make()
    answers = [model.generate("x", temperature=0.7, **asked) for asked in ({}, {}, {"seed": None}, {"seed": -1})]
    seeds = [answer.seed for answer in answers]
    assert len(set(seeds)) == 4 and all(0 <= seed < 2**64 for seed in seeds)
    assert seeds == [request.sampling.seed for request in model._engine.requests]
    assert seeds == [int(answer.receipt()["sampling"]["seed"]) for answer in answers]


def test_a_given_seed_is_used_every_time(make):
    model = make()
    assert [model.generate("x", seed=seed).seed for seed in (42, 42, 43, 0, 2**64 - 1)] == [42, 42, 43, 0, 2**64 - 1]
    assert last_request(model).sampling.temperature == pytest.approx(0.8), "a seed changes no other setting"


def test_the_settings_of_an_answer_ask_for_the_same_again(make):
    model = make()
    first = model.generate("x", temperature=0.3, logit_bias={65: -1.5, 3: float("-inf")})
    again = model.generate("x", **dataclasses.asdict(first.sampling))
    assert again.sampling == first.sampling and first.sampling.logit_bias == ((3, float("-inf")), (65, -1.5))


# --- how answers end ---


@pytest.mark.parametrize(
    ("options", "text", "tokens", "reason"),
    [
        ({}, "a river", b"a river\0", "end"),
        ({"max_tokens": 3}, "a r", b"a r", "length"),
        ({"max_tokens": 0}, "", b"", "length"),
        ({"max_tokens": 8}, "a river", b"a river\0", "end"),
        ({"max_tokens": 7}, "a river", b"a river", "length"),
        ({"stop": "river"}, "a ", b"a river", "stop"),
        ({"stop": ["ver", "iv"]}, "a r", b"a riv", "stop"),
        ({"stop": ["rivers"]}, "a river", b"a river\0", "end"),
        ({"stop": ["v"], "max_tokens": 5}, "a ri", b"a riv", "stop"),
    ],
)
def test_endings(make, options, text, tokens, reason):
    answer = make().generate("x", **options)
    ids = tuple(END if byte == 0 else byte for byte in tokens)
    assert (answer.text, answer.tokens, answer.stop_reason) == (text, ids, reason)
    record = answer.receipt()
    check_answer(check_record(record))
    assert record["text"] == final_text(Tokenizer(), answer.tokens, record["stop"]["strings"])[0]


def test_minus_two_fills_the_context(make):
    model = make()
    answer = model.generate("x", max_tokens=-2)
    assert answer.stop_reason == "context" and len(answer.tokens) + len(answer.prompt_tokens) == model.context
    record = answer.receipt()
    assert record["stop"]["end_tokens"] == [] and record["overrides"]["context"] == model.context
    check_answer(record)
    assert model.generate("x").receipt()["overrides"]["context"] == 0, "recorded only where it matters"


def test_streams_show_whole_characters_and_never_a_stop_string(make, monkeypatch):
    say(monkeypatch, "naïve 😸 END".encode())
    stream = make().stream("x", stop=["END"])
    pieces = list(stream)
    assert "".join(pieces) == "naïve 😸 " == stream.completion.text
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("count", range(1, 5))
def test_a_character_cut_by_the_limit_becomes_one_replacement_at_the_end(make, monkeypatch, count):
    say(monkeypatch, "😸".encode())
    answer = make().generate("x", max_tokens=count)
    assert answer.text == ("😸" if count == 4 else "\ufffd") and answer.receipt()["text"] == answer.text


def test_stop_keeps_what_there_is(make):
    stream = make().stream("x")
    assert next(stream) + next(stream) == "a "
    stream.stop()
    assert list(stream) == [] and stream.completion.stop_reason == "interrupt"
    assert stream.completion.text == "a "
    check_answer(stream.completion.receipt())


def test_a_closed_or_abandoned_stream_frees_the_model(make):
    model = make()
    with model.stream("x") as stream:
        next(stream)
    assert stream.completion.text == "a" and stream.completion.stop_reason == "interrupt"
    for _ in model.stream("x"):
        break
    assert model.generate("x").text == "a river"


def test_an_unfinished_stream_has_no_completion(make):
    stream = make().stream("x")
    with pytest.raises(UsageError) as caught:
        _ = stream.completion
    assert caught.value.name == "NOT_FINISHED" and not stream.is_finished


def test_a_number_that_is_not_finite_gives_no_completion(make, monkeypatch):
    say(monkeypatch, b"ab", NAN)
    model = make()
    stream = model.stream("x")
    with pytest.raises(NonFinite):
        list(stream)
    assert not stream.is_finished
    say(monkeypatch, b"ok")
    assert model.generate("x").text == "ok"


def test_a_closed_model_answers_no_more(make):
    with make() as model:
        stream = model.stream("x")
        next(stream)
    for ask in (lambda: next(stream), lambda: model.generate("x")):
        with pytest.raises(UsageError) as caught:
            ask()
        assert caught.value.name == "CLOSED"


# --- taking turns ---


def test_one_thread_cannot_wait_for_itself(make):
    model = make()
    stream = model.stream("x")
    next(stream)
    with pytest.raises(UsageError) as caught:
        model.generate("y")
    assert caught.value.name == "BUSY"
    stream.close()


def test_threads_take_turns(make):
    model, answers = make(), []
    threads = [threading.Thread(target=lambda: answers.append(model.generate("x").text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["a river"] * 8 and model._engine.most_inside == 1


# --- receipts ---


def test_a_receipt_holds_the_question_and_the_answer(make):
    model = make(Template())
    answer = model.generate("x", seed=7, temperature=0.5, stop=["z", "y", "z"], completion_index=3, max_tokens=20)
    record = answer.receipt()
    assert record["model"] == {"architecture": "llama", "files": [dataclasses.asdict(FILE)]}
    assert record["prompt"]["tokens"] == list(answer.prompt_tokens)
    assert record["output"]["tokens"] == list(answer.tokens)
    assert record["stop"] == {"reason": "end", "strings": ["y", "z"], "end_tokens": [END]}
    assert record["claims"]["device_name"] == "one byte at a time" and record["claims"]["engine_version"]
    assert record["clock"] == "" and record["text"] == "a river"
    list(model.replay(record))
    assert last_request(model) == model._engine.requests[0], "a receipt asks exactly the same question again"


def test_the_templates_clock_is_recorded_and_can_be_set(make):
    model = make(Template(uses_clock=True))
    record = model.generate("x", template_time="2026-03-14T15:09:26").receipt()
    assert record["clock"] == "2026-03-14T15:09:26"
    assert model.generate("x").receipt()["clock"] != ""


@pytest.mark.parametrize("name", ["a.json", "a.cbor"])
def test_saved_receipts_read_back(make, tmp_path, name):
    answer = make().generate("x")
    answer.save_receipt(tmp_path / name)
    assert encode.read_receipt(tmp_path / name).record == answer.receipt()
    assert (tmp_path / name).read_bytes()[:1] == (b"{" if name == "a.json" else b"\xa2")


def test_the_receipt_of_a_closed_model_can_still_be_made(make):
    with make() as model:
        answer = model.generate("x")
    assert answer.receipt()["text"] == "a river"


def test_files_are_hashed_once_and_only_for_a_receipt(make):
    model = make()
    first, second = model.generate("x"), model.generate("y")
    assert model._loaded.hashed == 0
    first.receipt(), second.receipt(), model.identity
    assert model._loaded.hashed == 1


def test_odd_file_names_become_text(make, monkeypatch):
    odd = ModelFile("a\udcff/\n.gguf", 4, "ab" * 32, "cd" * 32)
    monkeypatch.setattr(Loaded, "identity", lambda self, **options: ModelIdentity("llama", (odd,)))
    assert make().generate("x").receipt()["model"]["files"][0]["name"] == "a\ufffd??.gguf"


def test_stats_count_tokens_and_seconds(make):
    stats = make().generate("abc").stats
    assert (stats.prompt_tokens, stats.decode_tokens) == (4, 7)
    assert stats.prompt_seconds > 0 and stats.decode_seconds > 0 and stats.decode_speed > 0
    assert make().generate("abc", max_tokens=0).stats.decode_speed == 0


def test_unknown_device(make):
    with pytest.raises(UsageError) as caught:
        make(device="abacus")
    assert caught.value.name == "NO_DEVICE"
