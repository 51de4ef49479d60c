"""Receipts of answers with adapters and other rotary positions: what they name, and that a rerun needs the same."""

from __future__ import annotations

import pytest

from kinetic import store
from kinetic.api.audit import Audit
from kinetic.api.bundle import pack
from kinetic.api.model import Model
from kinetic.api.verify import Checker
from kinetic.errors import FileProblem, UnsupportedModel, UsageError
from receipts.checks import check_record
from receipts.encode import read_receipt
from receipts.identity import question_id
from receipts.schema import PLAIN_OVERRIDES
from tests.support.adapters import write_adapter
from tests.support.answers import check, edit
from tests.support.tiny_models import write_tiny_llama

SMALL = {"width": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn": 96, "types": {}}
RANKS = {f"blk.{i}.{name}.weight": 4 for i in range(2) for name in ("attn_q", "attn_v", "ffn_down")}
ROPE = {"rope_scaling": "yarn", "rope_scale": 4.0, "yarn_orig_ctx": 32, "yarn_beta_fast": 8.0}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(store, "RACY_NS", -(10**18))


@pytest.fixture
def model_file(tmp_path):
    return write_tiny_llama(tmp_path / "tiny.gguf", context=64, **SMALL)


@pytest.fixture
def adapters(tmp_path, model_file):
    return [
        write_adapter(tmp_path / f"{name}.gguf", model_file, RANKS, seed=seed) for seed, name in ((1, "a"), (2, "b"))
    ]


def answer(model_file, path, max_tokens=12, **changes):
    with Model(model_file, threads=1, **changes) as model:
        options = {"max_tokens": max_tokens, "seed": 7, "raw": True, "commit_logits": True}
        model.generate("the quick brown fox", **options).save_receipt(path)
    return path


def record_of(path):
    return check_record(read_receipt(path).record)


def test_a_receipt_names_adapters_and_their_scales(tmp_path, model_file, adapters):
    one, two = adapters
    receipt = answer(model_file, tmp_path / "r.json", adapters=[one, (two, 0.5)])
    named = record_of(receipt)["adapters"]
    assert [(entry["name"], entry["scale"]) for entry in named] == [("a.gguf", "1"), ("b.gguf", "0.5")]
    digests = store.digests(two)
    assert named[1] == vars(digests) | {"name": "b.gguf", "scale": "0.5"}
    assert check(receipt).exit_code == 0  # found by their hashes
    for method in ("replay", "decode"):
        verdict = check(receipt, model_file, adapters=[two, one], method=method)
        assert verdict.exit_code == 0 and "the logits of all 12 agree" in verdict.sentence


def test_an_adapter_of_scale_0_adds_nothing_and_is_not_named(tmp_path, model_file, adapters):
    with_it = record_of(answer(model_file, tmp_path / "r.json", adapters=[(adapters[0], 0.0), adapters[1]]))
    without = record_of(answer(model_file, tmp_path / "p.json", adapters=adapters[1:]))
    assert question_id(with_it) == question_id(without) and with_it["output"] == without["output"]


def test_other_adapters_are_another_question(tmp_path, model_file, adapters):
    one, two = adapters
    asked = [[], [one], [(one, 0.5)], [two], [one, two], [two, one]]
    records = [record_of(answer(model_file, tmp_path / f"{n}.json", adapters=some)) for n, some in enumerate(asked)]
    assert len({question_id(record) for record in records}) == len(records)
    assert len({tuple(record["logit_commit"]) for record in records}) == len(records)


@pytest.mark.parametrize(
    "field, value, codes",
    [("name", "renamed.gguf", {0}), ("size", 1, {13}), ("blake3", "ab" * 32, {13}), ("sha256", "ab" * 32, {13}),
     ("scale", "0.25", {10}), ("scale", "340000000000000000000000000000000000000", {13})],
)  # fmt: skip
def test_each_field_of_an_adapter_counts(tmp_path, model_file, adapters, field, value, codes):
    receipt = answer(model_file, tmp_path / "r.json", adapters=adapters)
    edit(receipt, lambda record: record["adapters"][0].update({field: value}))
    assert check(receipt, model_file, adapters=adapters).exit_code in codes


def test_adapters_left_out_or_in_another_order_differ(tmp_path, model_file, adapters):
    receipt = answer(model_file, tmp_path / "r.json", adapters=adapters)
    for change in (lambda entries: entries.reverse(), lambda entries: entries.pop(), lambda entries: entries.clear()):
        assert check(edit(receipt, lambda record, do=change: do(record["adapters"])), model_file).exit_code == 10


def test_an_adapter_that_is_gone(tmp_path, model_file, adapters):
    receipt = answer(model_file, tmp_path / "r.json", adapters=adapters[:1])
    elsewhere = adapters[0].rename(tmp_path / "elsewhere.gguf")
    verdict = check(receipt)
    assert (verdict.exit_code, verdict.name) == (13, "ADAPTER_MISSING") and "a.gguf" in verdict.sentence
    assert check(receipt, adapters=[elsewhere]).exit_code == 0
    changed = bytearray(elsewhere.read_bytes())
    changed[-1] ^= 1
    elsewhere.write_bytes(changed)
    assert check(receipt, adapters=[elsewhere]).name == "ADAPTER_MISSING"
    with pytest.raises(FileProblem):
        Checker(adapters=[tmp_path / "none.gguf"])


def test_settings_of_positions_are_named_and_rerun(tmp_path, model_file):
    receipt = answer(model_file, tmp_path / "r.json", rope=ROPE)
    record = record_of(receipt)
    spelt = {"rope_scaling": "yarn", "rope_scale": "4", "yarn_orig_ctx": 32, "yarn_beta_fast": "8"}
    assert record["overrides"] == PLAIN_OVERRIDES | spelt
    assert question_id(record) != question_id(record_of(answer(model_file, tmp_path / "plain.json")))
    assert check(receipt).exit_code == check(receipt, model_file, method="decode").exit_code == 0
    for field, value, code in (
        ("rope_scaling", "linear", 13),  # then it would say of YaRN what has no effect
        ("rope_scaling", "longrope", 13),
        ("rope_scale", "2", 10),
        ("rope_freq_scale", "0.5", 13),
        ("rope_freq_base", "5000", 10),
        ("rope_freq_base", "0.5", 13),
        ("yarn_orig_ctx", 16, 10),
        ("yarn_orig_ctx", 2**40, 13),
        ("yarn_ext_factor", "0.5", 10),
        ("yarn_ext_factor", "7", 13),
        ("yarn_attn_factor", "2", 13),
        ("yarn_beta_fast", "2", 10),
        ("yarn_beta_slow", "0.5", 10),
        ("yarn_beta_slow", "0", 13),
    ):
        answer_again = answer(model_file, tmp_path / "r.json", rope=ROPE)
        edit(answer_again, lambda record, field=field, value=value: record["overrides"].update({field: value}))
        assert check(answer_again, model_file).exit_code == code, (field, value)


def test_a_longer_context_takes_stretched_positions(tmp_path, model_file):
    with pytest.raises(UsageError):
        Model(model_file, context=65)
    receipt = answer(model_file, tmp_path / "r.json", max_tokens=-2, rope={"rope_scale": 2.0})
    record = record_of(receipt)
    assert len(record["prompt"]["tokens"]) + len(record["output"]["tokens"]) == 128
    assert record["overrides"] == PLAIN_OVERRIDES | {"rope_scale": "2", "context": 128}
    verdict = check(receipt)
    assert (verdict.exit_code, verdict.notes) == (0, ("the end tokens are not the model's own",))
    with Model(model_file, context=100, rope={"rope_scale": 2.0}) as model:
        assert model.context == 100
    with pytest.raises(UsageError):
        Model(model_file, context=129, rope={"rope_scale": 2.0})


def test_an_audit_of_all_kinds(tmp_path, model_file, adapters):
    """One model file, opened anew for each way in which it is changed; the second time from the state."""
    folder = tmp_path / "receipts"
    folder.mkdir()
    for number, changes in enumerate(({}, {"adapters": adapters}, {"rope": ROPE}, {}, {"adapters": adapters[::-1]})):
        answer(model_file, folder / f"{number}.json", **changes)
    for model in (None, model_file):
        audit = Audit([str(folder)], model=model, threads=1, state=tmp_path / "state", keep_state=True)
        assert [row.verdict.name for row in audit.run()] == ["IDENTICAL"] * 5
    again = Audit([str(folder)], threads=1, state=tmp_path / "state", keep_state=True)
    assert [row.is_kept for row in again.run()] == [True] * 5


def test_of_a_bundle(tmp_path, model_file, adapters):
    pack(model_file, tmp_path / "tiny.ktc")
    receipt = answer(tmp_path / "tiny.ktc", tmp_path / "r.json", adapters=adapters[:1], rope=ROPE)
    record = record_of(receipt)
    assert record["bundle"] and record["adapters"]
    assert check(receipt, tmp_path / "tiny.ktc").exit_code == check(receipt, model_file).exit_code == 0
    from_file = record_of(answer(model_file, tmp_path / "f.json", adapters=adapters[:1], rope=ROPE))
    assert question_id(from_file) == question_id(record) and from_file["logit_commit"] == record["logit_commit"]


def test_a_bundle_is_no_adapter(tmp_path, model_file, adapters):
    pack(model_file, tmp_path / "tiny.ktc")
    for wrong, name in ((tmp_path / "tiny.ktc", "NOT_AN_ADAPTER"), (model_file, "NOT_AN_ADAPTER")):
        with pytest.raises(UnsupportedModel) as caught:
            Model(model_file, adapters=[wrong])
        assert caught.value.name == name
    with pytest.raises(UnsupportedModel) as caught:
        Model(adapters[0])
    assert caught.value.name == "IS_ADAPTER"


def test_packed_weights_are_the_models_alone(tmp_path, model_file, adapters, monkeypatch):
    """Without adapters and with two of the same shapes, in turns, beside a cache of packed weights."""
    monkeypatch.delenv("KINETIC_PACK_CACHE", raising=False)
    found = []
    for turn in range(2):
        for number, some in enumerate(([], adapters[:1], adapters[1:])):
            record = record_of(answer(model_file, tmp_path / f"{turn}{number}.json", adapters=some))
            found.append(record["logit_commit"])
    assert found[:3] == found[3:] and len({tuple(commits) for commits in found}) == 3
    assert len(list((tmp_path / "home" / "packs").iterdir())) == 1
