"""``kinetic info``: true figures, a reason for whatever can't run, and nothing that costs time."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from conformance.attacks.tiny_model import tiny_model
from kinetic.api.describe import describe
from kinetic.cli import main
from kinetic.errors import FileProblem, MalformedGguf, UsageError
from tests.support.gguf_writer import GgufWriter, write_split
from tests.support.talking_model import FFN, HEAD, TEMPLATE, VOCABULARY, WIDTH, write_talker


@pytest.fixture
def talker(tmp_path):
    return write_talker(tmp_path / "talker.gguf", template=TEMPLATE, context=1000)


def test_facts(talker):
    facts = describe(talker)
    parameters = 2 * VOCABULARY * WIDTH + 3 * WIDTH + 4 * HEAD * WIDTH + 3 * FFN * WIDTH
    assert facts["runnable"] and facts["reasons"] == [] == facts["warnings"]
    assert (facts["architecture"], facts["name"], facts["parameters"]) == ("llama", "Talker", parameters)
    assert facts["format_mix"] == {"F32": {"tensors": 12, "parameters": parameters, "bytes": 4 * parameters}}
    assert facts["file_size"] == talker.stat().st_size and facts["files"] == [str(talker)]
    assert (facts["context_length"], facts["layers"], facts["width"], facts["ffn_width"]) == (1000, 1, WIDTH, FFN)
    assert (facts["heads"], facts["kv_heads"], facts["head_width"]) == (1, 1, HEAD)
    assert facts["tokenizer"]["vocabulary"] == VOCABULARY and facts["tokenizer"]["add_bos"] is True
    assert facts["tokenizer"]["bos"] == {"id": 257, "text": "<begin>"}
    assert facts["end_tokens"] == [{"id": 256, "text": "<end>"}] and facts["template"] == TEMPLATE
    json.dumps(facts)


@pytest.mark.parametrize(("context", "positions"), [(0, 1024), (1, 256), (256, 256), (257, 512), (1000, 1024)])
def test_memory(talker, context, positions):
    memory = describe(talker, context)["memory"]
    assert memory["keys_and_values"] == positions * HEAD * 2 * 2
    assert memory["total"] == memory["weights"] + memory["keys_and_values"]
    assert memory["context"] == (context or 1000)


@pytest.mark.parametrize("context", [-1, 1001])
def test_a_context_the_model_cannot_have(talker, context):
    with pytest.raises(UsageError):
        describe(talker, context)


def test_the_page_that_people_read(talker, capsys):
    assert main(["info", str(talker)]) == 0
    page = capsys.readouterr().out
    for line in (
        "architecture  llama",
        "weights       F32    100.0% in 12 tensors, 760.8 kB",
        "context       1,000 tokens",
        "shape         1 layer, 1 head, 1 key/value head, width 256, head width 32, feed-forward 32",
        "tokenizer     gpt2 (gpt-2), 258 tokens, begins with <begin> (257)",
        "ends with     <end> (256)",
        "runs here     yes",
    ):
        assert line in page.splitlines(), page
    assert "at a context of 1,000" in page and f"template      {len(TEMPLATE)} characters: " in page
    assert all(len(line) <= 140 and line == line.rstrip() for line in page.splitlines())
    assert main(["info", str(talker), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(talker)


def strange(path, architecture="abacus", **tensors):
    writer = GgufWriter().key("general.architecture", architecture)
    for name, values in tensors.items():
        writer.tensor(name.replace("__", "."), values)
    return writer.write(path)


def test_what_cannot_run_says_why(tmp_path, capsys):
    path = strange(tmp_path / "a.gguf", token_embd__weight=np.zeros((4, 4), np.float32))
    facts = describe(path)
    assert not facts["runnable"] and facts["memory"]["total"] is None and facts["tokenizer"]["model"] is None
    assert "'abacus'" in facts["reasons"][0] and "tokenizer" in facts["reasons"][1]
    assert main(["info", str(path)]) == 0
    page = capsys.readouterr().out
    assert "runs here     no" in page and "architecture 'abacus'" in page and "memory" not in page


def test_a_file_of_nothing_still_has_a_page(tmp_path, capsys):
    empty = GgufWriter().write(tmp_path / "empty.gguf")
    assert main(["info", str(empty)]) == 0
    page = capsys.readouterr().out
    assert "runs here     no" in page and "architecture  not named" in page


def test_keys_of_the_wrong_kind_are_no_figures(tmp_path, capsys):
    writer = GgufWriter().keys(
        {
            "general.architecture": "llama",
            "general.name": [1, 2],
            "llama.context_length": "long",
            "llama.block_count": [1, 2],
            "llama.embedding_length": 0,
            "llama.attention.head_count": 0,
            "llama.attention.head_count_kv": [1, 2, 1],
            "llama.rope.freq_base": "low",
            "tokenizer.ggml.model": 7,
            "tokenizer.ggml.tokens": "none",
            "tokenizer.chat_template": 7,
        }
    )
    path = writer.write(tmp_path / "odd.gguf")
    assert main(["info", str(path)]) == 0
    assert "runs here     no" in capsys.readouterr().out
    assert describe(path)["kv_heads"] == [1, 2, 1]


def test_a_files_own_words_cannot_steer_the_terminal(tmp_path, capsys):
    path = GgufWriter().keys({"general.architecture": "a\x1b[2J", "general.name": "\x1b]0;x\x07"})
    assert main(["info", str(path.write(tmp_path / "esc.gguf"))]) == 0
    page = capsys.readouterr().out
    assert "\x1b" not in page and "\x07" not in page and "\ufffd[2J" in page


def test_split_models(tmp_path, capsys):
    tensors = [{"a.weight": np.zeros((4, 4), np.float32)}, {"b.weight": np.zeros((4, 4), np.float16)}]
    paths = write_split(tmp_path, "parts", {"general.architecture": "abacus"}, tensors)
    facts = describe(paths[1])
    assert facts["files"] == [str(path) for path in paths] and set(facts["format_mix"]) == {"F32", "F16"}
    assert main(["info", str(paths[0])]) == 0
    assert "parts-00001-of-00002.gguf and 1 more part\n" in capsys.readouterr().out


def test_what_is_no_gguf(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"no")
    for path, error in ((tmp_path / "no.gguf", MalformedGguf), (tmp_path / "none.gguf", FileProblem)):
        with pytest.raises(error):
            describe(path)


def test_a_weight_format_that_is_not_built_in(tmp_path):
    path, name = tmp_path / "m.gguf", "blk.0.ffn_up.weight"
    path.write_bytes(tiny_model(types={name: 9}, data={name: bytes(64 * 36)}))
    (reason,) = describe(path)["reasons"]
    assert reason.startswith(f"weight format Q8_1, of {name}, is not built in")


def test_every_golden_model_has_a_page(golden, capsys):
    paths = sorted(golden.rglob("*.gguf"))
    assert len(paths) > 60
    for path in paths:
        assert main(["info", str(path)]) == 0, path
        page = capsys.readouterr().out
        last = re.search(r"^runs here +(yes|no)\n( +\S.*\n)*", page, re.MULTILINE)
        assert last and (last[1] == "yes") == (last[2] is None), page


def test_info_loads_nothing_heavy(talker, tmp_path):
    program = "import sys; from kinetic.cli import main; main(['info', sys.argv[1]]); print(*sys.modules)"

    def loaded(path):
        done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
        return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}

    assert not loaded(talker) & {"numba", "llvmlite", "jinja2", "blake3", "cbor2", "nacl", "receipts", "tempfile"}
    assert "numpy" not in loaded(strange(tmp_path / "a.gguf"))
