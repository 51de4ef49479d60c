"""Perplexity and KL divergence: which tokens are scored, the numbers, the base file; the same for every batch size."""

from __future__ import annotations

import math
import os
import struct

import numpy as np
import pytest

from kinetic.api import kl_base, perplexity
from kinetic.api.kl_divergence import Divergence, Rows, divergences, percentiles
from kinetic.api.perplexity import Settings, cuts, measure
from kinetic.api.scorer import Scorer
from kinetic.errors import ContextOverflow, FileProblem, Malformed, UsageError
from kinetic.softmax import log_sums
from tests.support.blocks import normals
from tests.support.tiny_models import TEXT, write_tiny_gemma3, write_tiny_llama

CHUNK = 520
"""More than the 512 rows that are computed at once."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama.gguf")


@pytest.fixture(scope="module")
def scorer(path):
    with Scorer(path, threads=1, pack_cache=False) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def tokens(scorer):
    return scorer.encode(" ".join([TEXT] * 20))[: 2 * CHUNK + 5]


def exact(logits):
    """ln p in float64, the plain way."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


# --- which tokens are scored ---


def test_chunks():
    found = cuts(range(25), Settings(8))
    assert [(cut.start, list(cut.tokens), cut.scored) for cut in found] == [
        (0, list(range(8)), 3), (8, list(range(8, 16)), 3), (16, list(range(16, 24)), 3)
    ]  # fmt: skip
    assert len(cuts(range(25), Settings(8, chunks=2))) == 2
    assert [cut.scored for cut in cuts(range(25), Settings(7))] == [3, 3, 3]


def test_windows_overlap():
    found = cuts(range(2000), Settings(512, stride=100))
    assert [cut.start for cut in found] == list(range(0, 1300, 100))
    assert all(len(cut.tokens) == 768 and cut.scored == 100 for cut in found)
    assert len(cuts(range(2000), Settings(512, chunks=3, stride=100))) == 3


@pytest.mark.parametrize(
    ("count", "settings", "name"),
    [
        (15, Settings(8), "TEXT_TOO_SHORT"),
        (100, Settings(3), "CONTEXT"),
        (100, Settings(-1), "CONTEXT"),
        (300, Settings(100, stride=300), "STRIDE"),
        (300, Settings(100, stride=-1), "STRIDE"),
        (256, Settings(100, stride=10), "TEXT_TOO_SHORT"),
    ],
)
def test_what_can_not_be_cut(count, settings, name):
    with pytest.raises(UsageError) as caught:
        cuts(range(count), settings)
    assert caught.value.name == name


def test_a_chunk_begins_with_bos_where_the_model_adds_one(scorer, tmp_path):
    assert scorer.chunk([5, 6, 7]) == [5, 6, 7]
    with Scorer(write_tiny_gemma3(tmp_path / "gemma.gguf"), threads=1, pack_cache=False) as gemma:
        assert gemma.chunk([5, 6, 7]) == [gemma.tokenizer.bos, 6, 7]


# --- the numbers ---


def test_losses_are_those_of_the_logits(scorer, tokens):
    found = measure(scorer, tokens, Settings(64, chunks=3))
    expected = []
    for start in (0, 64, 128):
        part = tokens[start : start + 64]
        logits = np.concatenate(list(scorer.passes(part, 0, 5)))
        expected += (-exact(logits)[np.arange(32, 63), part[33:]]).tolist()
    assert np.abs(np.array(found.losses) - expected).max() < 1e-13
    assert found.running[1] == pytest.approx(math.exp(sum(expected[:62]) / 62), rel=1e-13)
    value, uncertainty = found.estimate
    assert value == found.running[-1] == pytest.approx(math.exp(np.mean(expected)), rel=1e-13)
    assert uncertainty == pytest.approx(value * np.std(expected) / math.sqrt(len(expected) - 1), rel=1e-10)


def test_windows_score_their_last_tokens(scorer, tokens):
    found = measure(scorer, tokens, Settings(256, chunks=2, stride=40))
    part = tokens[40 : 40 + 512]
    logits = np.concatenate(list(scorer.passes(part, 0, 512)))
    expected = -exact(logits)[np.arange(471, 511), part[472:]]
    assert np.abs(np.array(found.losses[40:]) - expected).max() < 1e-13


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_for_every_batch_size_and_number_of_threads(path, scorer, tokens, threads):
    expected = measure(scorer, tokens, Settings(CHUNK, rows=1)).losses
    assert len(expected) == 2 * (CHUNK // 2 - 1)
    with Scorer(path, threads=threads, pack_cache=False) as other:
        for rows in (7, 32, 256, 512):
            assert measure(other, tokens, Settings(CHUNK, rows=rows)).losses == expected


def test_a_chunk_beyond_the_context(scorer, tokens):
    with pytest.raises(ContextOverflow):
        list(scorer.passes(tokens * 3))
    with pytest.raises(UsageError):
        list(scorer.passes([0, scorer.vocab_size]))


# --- KL divergence ---


def pair(rows=5, width=300):
    a, b = (3 * normals(seed, rows * width).reshape(rows, width) for seed in (1, 2))
    return a, a + np.float32(0.1) * b


def test_divergence_is_that_of_the_definition():
    a, b = pair()
    la, lb = exact(a), exact(b)
    found = divergences(Rows(a, log_sums(a)), Rows(b, log_sums(b)), a.shape, -np.inf)
    assert np.abs(found - (np.exp(la) * (la - lb)).sum(axis=1)).max() < 1e-13
    kept = np.where(la > -6, np.exp(la) * (la - lb), 0).sum(axis=1)
    assert np.abs(divergences(Rows(a, log_sums(a)), Rows(b, log_sums(b)), a.shape, -6.0) - kept).max() < 1e-13


def test_equal_rows_are_exactly_0_apart():
    a, _ = pair()
    found = Divergence()
    found.add(Rows(a, log_sums(a)), a.copy(), log_sums(a), [1, 2, 3, 4, 5])
    assert found.divergences == [0.0] * 5 and found.changes == [0.0] * 5
    assert found.same_top == (1.0, 0.0) and found.rms_change == (0.0, 0.0)
    assert found.log_ratio == (0.0, 0.0)


def test_statistics():
    a, b = pair(40)
    following = list(range(40))
    found = Divergence()
    found.add(Rows(a, log_sums(a)), b, log_sums(b), following)
    rows = np.arange(40)
    new, old = -exact(b)[rows, following], -exact(a)[rows, following]
    facts = found.facts()
    assert facts["tokens"] == 40
    assert facts["ppl"][0] == pytest.approx(np.exp(new.mean()))
    assert facts["ppl_base"][0] == pytest.approx(np.exp(old.mean()))
    assert facts["ln_ratio"][0] == pytest.approx((new - old).mean())
    assert facts["ln_ratio"][1] == pytest.approx((new - old).std() / math.sqrt(39))
    assert facts["ratio"][0] == pytest.approx(np.exp((new - old).mean()))
    assert facts["correlation"] == pytest.approx(np.corrcoef(new, old)[0, 1])
    changes = np.exp(-new) - np.exp(-old)
    assert facts["delta_p"][0] == pytest.approx(changes.mean())
    assert facts["delta_p_rms"][0] == pytest.approx(math.sqrt((changes**2).mean()))
    same = (a.argmax(axis=1) == b.argmax(axis=1)).mean()
    assert facts["same_top"] == (pytest.approx(same), pytest.approx(math.sqrt(same * (1 - same) / 39)))
    difference = np.exp(new.mean()) - np.exp(old.mean())
    assert facts["difference"][0] == pytest.approx(difference)


def test_percentiles_lie_on_the_line_between_two_values():
    found = percentiles([5.0, 1.0, 3.0, 2.0])
    assert (found["minimum"], found["50"], found["maximum"]) == (1.0, 2.5, 5.0)
    assert found["90"] == pytest.approx(3 + 0.7 * 2)
    assert percentiles([7.0])["99.9"] == 7.0


# --- the base file ---


def write_base(path, logits, tokens, context=8):
    data = kl_base.header(context, logits.shape[1], tokens) + kl_base.to_rows(logits, log_sums(logits))
    path.write_bytes(data)
    return data


def test_the_layout_of_a_base_file(tmp_path):
    logits = np.array([[0, -1, -20, 2, 0.5], [1, 1, 1, 1, 1]], np.float32)
    data = write_base(tmp_path / "base", logits, [[3, 1, 4, 1, 2, 0, 3, 2]])
    assert data[:52] == b"_logits_" + struct.pack("<iii8i", 8, 5, 1, 3, 1, 4, 1, 2, 0, 3, 2)
    scale, least = struct.unpack_from("<ff", data, 52)
    assert scale == np.float32(16) / np.float32(65535)
    assert least == pytest.approx(exact(logits)[0].max() - 16, abs=1e-6)
    steps = np.frombuffer(data, "<u2", 6, 60)
    assert steps.tolist() == [round(14 / 16 * 65535), round(13 / 16 * 65535), 0, 65535, round(14.5 / 16 * 65535), 0]
    assert len(data) == 52 + 2 * 2 * kl_base.row_words(5) == 52 + 2 * 20
    assert struct.unpack_from("<f", data, 72) == (0.0,)
    assert np.frombuffer(data, "<u2", 6, 80).tolist() == [0] * 6


def test_what_a_base_file_gives_back(tmp_path):
    logits = normals(5, 3 * 33).reshape(3, 33)
    write_base(tmp_path / "base", logits, [[1, 2, 3, 4, 5, 6, 7, 8]])
    with kl_base.Base(tmp_path / "base") as base:
        assert (base.context, base.vocab_size, base.chunks, base.scored) == (8, 33, 1, 3)
        assert base.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
        first, rest = base.rows(1), base.rows(2)
    step = float(logits.max() - logits.min()) / 65535
    assert np.abs(first.part(slice(0, 1), slice(0, 33)) - exact(logits)[:1]).max() < step
    assert np.abs(rest.part(slice(0, 2), slice(5, 9)) - exact(logits)[1:, 5:9]).max() < step
    assert np.abs(rest.of([4, 6]) - exact(logits)[[1, 2], [4, 6]]).max() < step
    assert rest.best().tolist() == logits[1:].argmax(axis=1).tolist()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:19],
        lambda data: b"X" + data[1:],
        lambda data: data[:-1],
        lambda data: data[:8] + struct.pack("<i", 1 << 30) + data[12:],
        lambda data: data[:8] + struct.pack("<i", -8) + data[12:],
        lambda data: data[:12] + struct.pack("<i", 0) + data[16:],
    ],
)
def test_spoilt_base_files(tmp_path, spoil):
    logits = normals(5, 3 * 33).reshape(3, 33)
    data = write_base(tmp_path / "base", logits, [[1, 2, 3, 4, 5, 6, 7, 8]])
    (tmp_path / "base").write_bytes(spoil(data))
    with pytest.raises(Malformed) as caught:
        kl_base.Base(tmp_path / "base")
    assert caught.value.name == "BAD_BASE_FILE"


@pytest.mark.parametrize(
    ("scale", "least"),
    [(np.nan, -9), (np.inf, -9), (1e-4, np.nan), (1e-4, np.inf), (1e-4, -np.inf), (-1e-4, -9), (0, 0.1), (1e-4, -6.5)],
)
def test_rows_that_are_no_log_probabilities(tmp_path, scale, least):
    """The last would give a token more than all of the probability."""
    logits = normals(5, 3 * 33).reshape(3, 33)
    data = bytearray(write_base(tmp_path / "base", logits, [[1, 2, 3, 4, 5, 6, 7, 8]]))
    at = len(data) - 2 * kl_base.row_words(33)
    data[at : at + 8] = struct.pack("<ff", scale, least)
    (tmp_path / "base").write_bytes(data)
    with kl_base.Base(tmp_path / "base") as base:
        base.rows(2)
        with pytest.raises(Malformed) as caught:
            base.rows(1)
    assert caught.value.name == "BAD_BASE_FILE" and "scale" in str(caught.value)


def test_a_base_that_is_certain(tmp_path):
    """A row whose largest log-probability is 0, or rounded to a little more."""
    logits = np.float32([[100, 0, 0, 0, 0]] * 3)
    data = write_base(tmp_path / "base", logits, [[1, 2, 3, 4, 0, 1, 2, 3]])
    with kl_base.Base(tmp_path / "base") as base:
        assert abs(base.rows(3).of([0, 0, 0])).max() < 1e-5
    assert len(data) == 20 + 4 * 8 + 3 * 2 * kl_base.row_words(5)


def test_a_base_file_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileProblem) as caught:
        kl_base.Base(tmp_path / "fifo")
    assert caught.value.name == "NOT_A_FILE"


def test_a_base_that_excludes_what_follows(tmp_path):
    """Perplexities beyond float64 are infinite, and no fault."""
    logits = normals(5, 3 * 33).reshape(3, 33)
    data = bytearray(write_base(tmp_path / "base", logits, [[1, 2, 3, 4, 5, 6, 7, 8]]))
    data[52:60] = struct.pack("<ff", 0, -1e30)
    (tmp_path / "base").write_bytes(data)
    found = Divergence()
    with kl_base.Base(tmp_path / "base") as base:
        found.add(base.rows(3), logits, log_sums(logits), [4, 5, 6])
    facts = found.facts()
    assert facts["ppl_base"].value == math.inf and math.isfinite(facts["ppl"].value) and facts["ratio"].value == 0


def test_a_base_file_that_is_not_there(tmp_path):
    with pytest.raises(FileProblem):
        kl_base.Base(tmp_path / "none")


def test_a_model_beside_its_own_base_file(scorer, tokens, tmp_path):
    """As far apart as 16 bits are from float32, and no further."""
    cut = perplexity.cuts(tokens, Settings(64, chunks=1))[0]
    ((logits, sums, following),) = perplexity.score(scorer, cut)
    data = kl_base.header(64, scorer.vocab_size, [cut.tokens]) + kl_base.to_rows(logits, sums)
    (tmp_path / "base").write_bytes(data)
    found = Divergence()
    with kl_base.Base(tmp_path / "base") as base:
        found.add(base.rows(len(logits)), logits, sums, following)
    assert max(map(abs, found.divergences)) < 1e-4
    assert found.same == 31
