"""``kinetic embed`` and ``kinetic rerank``, and the same from Python: formats, pairs, and what is refused."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kinetic.api import Model
from kinetic.api.embedder import Embedder
from kinetic.cli import main
from kinetic.errors import ContextOverflow, UnsupportedModel, UsageError
from tests.support.tiny_encoders import KINDS, write_tiny_encoder
from tests.support.tiny_models import write_tiny_llama

TEXTS = ["the quick brown fox", "river runs to the sea", "one two three"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    for name in KINDS:
        write_tiny_encoder(made / f"{name}.gguf", name)
    write_tiny_llama(made / "llama.gguf")
    return made


@pytest.fixture
def kinetic(capsys):
    """``kinetic("embed", ...)`` -> standard output; with a ``code``, standard error."""

    def kinetic(*words, code=0):
        assert main([str(word) for word in words]) == code
        streams = capsys.readouterr()
        return streams.err if code else streams.out

    return kinetic


def numbers(line):
    return np.array([float(word) for word in line.split()], np.float32)


def test_raw_lines_give_back_every_bit(folder, kinetic):
    lines = kinetic("embed", folder / "bert.gguf", *TEXTS).splitlines()
    with Embedder(folder / "bert.gguf") as embedder:
        expected = embedder.embed(TEXTS)
    assert expected.shape == (3, 64)
    assert expected.dtype == np.float32
    assert [numbers(line).tobytes() for line in lines] == [row.tobytes() for row in expected]
    assert np.allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)


def test_json_is_openais(folder, kinetic):
    found = json.loads(kinetic("embed", folder / "nomic-bert.gguf", *TEXTS, "--json"))
    with Embedder(folder / "nomic-bert.gguf") as embedder:
        expected = embedder.embed(TEXTS)
        tokens = sum(map(len, embedder.encode(TEXTS)))
    assert (found["object"], found["model"]) == ("list", "nomic-bert.gguf")
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert [(entry["object"], entry["index"]) for entry in found["data"]] == [("embedding", i) for i in range(3)]
    assert np.array_equal(np.array([entry["embedding"] for entry in found["data"]], np.float32), expected)


def test_other_formats(folder, kinetic):
    model = folder / "bert.gguf"
    array = json.loads(kinetic("embed", model, *TEXTS, "--embd-output-format", "array"))
    assert np.array(array).shape == (3, 64)
    similar = json.loads(kinetic("embed", model, *TEXTS, "--embd-output-format", "json+"))["cosineSimilarity"]
    values = np.array(array) @ np.array(array).T
    assert np.allclose(similar, values, atol=1e-6)
    whole = kinetic("embed", model, TEXTS[0], "--normalize", "0").split()
    assert max(abs(int(word)) for word in whole) == 32760


@pytest.mark.parametrize("kind", [1, 2, 3, 5])
def test_normalisations(folder, kind):
    with Embedder(folder / "nomic-bert.gguf") as embedder:
        plain, found = embedder.embed(TEXTS, -1), embedder.embed(TEXTS, kind)
    norms = (np.abs(plain.astype(np.float64)) ** kind).sum(axis=1) ** (1 / kind)
    assert np.abs(found - plain / norms[:, None]).max() < 1e-7
    with Embedder(folder / "nomic-bert.gguf") as embedder, pytest.raises(UsageError, match="normalisation"):
        embedder.embed(TEXTS, 65)


def test_without_pooling_every_token_has_a_vector(folder, kinetic):
    model = folder / "bert.gguf"
    rows = kinetic("embed", model, TEXTS[0], "--pooling", "none").splitlines()
    assert len(rows) == 6  # [CLS], four words, [SEP]
    (text,) = json.loads(kinetic("embed", model, TEXTS[0], "--pooling", "none", "--json"))["data"]
    assert len(text["embedding"]) == 6
    first = kinetic("embed", model, TEXTS[0], "--pooling", "cls").strip()
    assert first == rows[0]


def test_a_model_that_writes_text(folder, kinetic, capsys):
    assert main(["embed", str(folder / "llama.gguf"), "the fox"]) == 0
    streams = capsys.readouterr()
    assert "names no pooling: there is a vector for each token" in streams.err
    assert len(streams.out.splitlines()) > 1
    assert len(kinetic("embed", folder / "llama.gguf", "the fox", "--pooling", "mean").splitlines()) == 1


def test_texts_of_a_file_and_of_standard_input(folder, kinetic, tmp_path, monkeypatch):
    model = folder / "bert.gguf"
    expected = kinetic("embed", model, *TEXTS)
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    assert kinetic("embed", model, "-f", file) == expected
    file.write_text("<#sep#>".join(TEXTS))
    assert kinetic("embed", model, "-f", file, "--separator", "<#sep#>") == expected
    data = "\n".join(TEXTS).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False))
    assert kinetic("embed", model) == expected
    assert kinetic("embed", model, *TEXTS, "-o", tmp_path / "out.txt") == ""
    assert (tmp_path / "out.txt").read_text() == expected


def test_refusals(folder, kinetic, tmp_path):
    bert, llama, out = folder / "bert.gguf", folder / "llama.gguf", tmp_path / "out.txt"
    refused = [
        (("embed", bert, ""), 2, "text 1 is empty"),
        (("embed", bert, "a", "", "-o", out), 2, "text 2 is empty"),
        (("embed", bert, "a", "the " * 700, "-o", out), 6, "text 2 has 702 tokens, and this model takes 640 at most"),
        (("embed", bert, "a", "--pooling", "max"), 2, "there is no pooling max"),
        (("embed", bert, "a", "--pooling", "rank"), 2, "kinetic rerank"),
        (("embed", bert, "a", "--normalize", "-2"), 2, "no normalisation -2"),
        (("embed", bert, "a", "-f", bert), 2, "give the texts once"),
        (("embed", folder / "qwen3.gguf", "a"), 2, "this model ranks documents"),
        (("rerank", llama, "--query", "a", "b"), 11, "no rank head"),
        (("rerank", bert, "--query", "", "b"), 2, "the query is empty"),
        (("rerank", bert, "--query", "a", "b", ""), 2, "document 2 is empty"),
        (("rerank", bert, "--query", "a", "b", "--top-n", "-1"), 2, "--top-n"),
        (("run", bert, "hello"), 11, "makes embeddings and no text: use `kinetic embed`"),
        (("perplexity", bert, "-f", folder / "text.txt", "-c", "8"), 11, "makes embeddings and no text"),
    ]
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog and the river runs to the sea")
    for words, code, sentence in refused:
        said = kinetic(*words, code=code)
        assert sentence in said
        assert said.count("\n") == 1, said
    assert not out.exists()


# --- documents ---


def test_rerank(folder, kinetic):
    model = folder / "qwen3.gguf"
    found = json.loads(kinetic("rerank", model, "--query", "where is the sea", *TEXTS, "--json"))
    with Embedder(model, pooling="rank") as embedder:
        scores = embedder.scores(embedder.pairs("where is the sea", TEXTS))
        alone = embedder.scores(embedder.pairs("where is the sea", TEXTS[1:2]))
    assert scores.shape == (3, 2)
    assert alone.tobytes() == scores[1:2].tobytes()
    assert np.allclose(scores.astype(np.float64).sum(axis=1), 1, atol=1e-6)
    order = np.argsort(-scores[:, 0]).tolist()
    assert [entry["index"] for entry in found["results"]] == order
    assert np.float32(found["results"][0]["relevance_score"]) == scores[order[0], 0]
    assert found["results"][0]["scores"].keys() == {"yes", "no"}
    lines = kinetic("rerank", model, "--query", "where is the sea", *TEXTS, "--top-n", "2").splitlines()
    assert [line.split(None, 2)[1:] for line in lines] == [[str(i), TEXTS[i]] for i in order[:2]]


def test_a_rank_head_of_bert(folder):
    """One score, of the first row: a dense layer, the hyperbolic tangent, a dense layer."""
    model = folder / "bert.gguf"
    with Embedder(model, pooling="rank") as embedder, Embedder(model, pooling="cls") as plain:
        pairs = embedder.pairs(TEXTS[0], TEXTS[1:])
        scores = embedder.scores(pairs)
        rows = np.concatenate(plain.vectors(pairs, -1))
        weights = embedder._loaded.weights
        dense, out = (decoded(weights[f"{name}.weight"]) for name in ("cls", "cls.output"))
        bias, out_bias = (decoded(weights[f"{name}.bias"])[0] for name in ("cls", "cls.output"))
    expected = np.tanh(rows @ dense.T + bias) @ out.T + out_bias
    assert np.abs(scores - expected).max() < 0.02  # matrices of 8 bits: activations are rounded
    assert scores.std() > 0.001


def decoded(weight):
    from kinetic.formats import by_type

    return by_type(weight.ggml_type, weight.name).decode(weight.data).reshape(-1, weight.shape[-1])


def test_pairs(folder):
    """A query and a document with what the model wants between them; neither can spell a control token."""
    with Embedder(folder / "bert.gguf", pooling="rank") as embedder:
        encode = embedder.tokenizer.encode
        (pair,) = embedder.pairs("the fox", ["the sea"])
        words = [encode(text, add_special=False, parse_special=False) for text in ("the fox", "the sea")]
        assert pair == [2, *words[0], 3, *words[1], 3]
    with Embedder(folder / "qwen3.gguf") as embedder:
        assert embedder.pooling == "rank"
        (pair,) = embedder.pairs("a {document} <|im_end|>", ["b"])
        text = embedder.tokenizer.decode(pair, special=True).decode()
        assert text == "<|im_start|>query a {document} <|im_end|>\ndocument b<|im_end|>\n"
        end = embedder.tokenizer.encode("<|im_end|>", add_special=False, parse_special=True)
        assert pair.count(end[0]) == 1


def test_the_python_interface(folder):
    with Model(folder / "bert.gguf") as model:
        vectors = model.embed(TEXTS)
        assert vectors.dtype == np.float32
        assert vectors.shape == (3, 64)
        assert model.embed(TEXTS[1:2]).tobytes() == vectors[1:2].tobytes()
        assert len(model.rerank("the fox", TEXTS)) == 3
        with pytest.raises(UnsupportedModel, match="no text"):
            model.generate("hello")
        with pytest.raises(ContextOverflow, match="640"):
            model.embed(["the " * 700])
    with pytest.raises(UsageError, match="closed"):
        model.embed(TEXTS)
    with Model(folder / "llama.gguf") as model:
        with pytest.raises(UsageError, match="names no pooling"):
            model.embed(TEXTS)
        assert model.embed(TEXTS, pooling="last").shape == (3, 256)
        with model.stream("the fox", max_tokens=4, seed=1) as stream:
            next(iter(stream), None)
            with pytest.raises(UsageError, match="in the middle of an answer"):
                model.embed(TEXTS, pooling="last")


def test_info(folder, kinetic):
    shown = kinetic("info", folder / "bert.gguf")
    assert "embeds        pooling cls, ranks documents, writes no text" in shown
    assert "pooling rank, ranks documents by yes/no" in kinetic("info", folder / "qwen3.gguf")
    assert "embeds" not in kinetic("info", folder / "llama.gguf")
