"""``kinetic bench`` as a user meets it: tables, files, the store, the gate, llama.cpp beside it."""

import csv
import io
import json
import re
import sys
from xml.etree import ElementTree

import pytest

from kinetic.cli import main
from tests.support.fake_llama_bench import write_llama_bench
from tests.support.talking_model import write_talker

QUICK = ("-p", "8", "-n", "4", "-t", "1", "-r", "3", "-q")


@pytest.fixture
def talker(tmp_path):
    return write_talker(tmp_path / "talker.gguf")


@pytest.fixture
def bench(kinetic, talker):
    """``bench(...)``: the quick measurement of a small model with these flags, too."""
    return lambda *words, **options: kinetic("bench", talker, *QUICK, *words, **options)


def table(text):
    """Cells of the first table in Markdown, below its head."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[0], rows[2:]


def store(tmp_path):
    return tmp_path / "home" / "bench" / "bench.jsonl"


def records(tmp_path):
    return [json.loads(line) for line in store(tmp_path).read_text().splitlines()]


# --- measuring ---


def test_a_table_by_default(bench):
    done = bench("-d", "0,16")
    head, rows = table(done.stdout)
    assert head == ["test", "threads", "tokens/s", "least"]
    assert [row[0] for row in rows] == ["pp8", "tg4", "pp8 @ d16", "tg4 @ d16"]
    assert all(re.fullmatch(r"[\d.]+ \([\d.]+-[\d.]+\)", row[2]) for row in rows)
    assert done.stdout.startswith("talker.gguf, ") and "3 rounds, medians" in done.stdout
    assert done.stderr == ""


def test_json_is_the_record_that_is_kept(bench, tmp_path):
    said = json.loads(bench("--json").stdout)
    assert said.pop("judgements") == []
    assert records(tmp_path) == [said]
    assert [row["test"] for row in said["results"]] == ["pp8", "tg4"]


def test_csv(bench):
    lines = list(csv.DictReader(io.StringIO(bench("--csv").stdout)))
    assert [line["test"] for line in lines] == ["pp8", "tg4"]
    assert float(lines[0]["median"]) > 0 and lines[0]["file"] == "talker.gguf" and lines[0]["ratio_median"] == ""


def test_output_goes_to_a_file_whole(bench, tmp_path):
    assert bench("--csv", "-o", tmp_path / "out.csv").stdout == ""
    assert (tmp_path / "out.csv").read_text().startswith("time,kinetic,")


def test_nothing_is_kept_where_nothing_shall_be(bench, tmp_path):
    bench("--no-record")
    assert not store(tmp_path).exists()


def test_a_store_that_cannot_be_used_costs_no_measurement(bench, tmp_path):
    (tmp_path / "home").mkdir()
    store(tmp_path).parent.write_text("")
    done = bench()
    assert "can't be read" in done.stderr and "this measurement is not kept" in done.stderr
    assert table(done.stdout)[1]
    assert bench("--fail-below", "0.9", check=3).stdout == ""  # a gate that can't see must not pass


def test_progress_and_news_are_not_output(kinetic, talker):
    done = kinetic("bench", talker, *QUICK[:-1], "--json")
    json.loads(done.stdout)
    assert all(line.startswith("kinetic: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("-p", "0", "-n", "0"), 2),
        (("-p", "60", "-d", "8"), 2),
        (("-p", "many"), 2),
        (("-t", "1,,2"), 2),
        (("-t", "999"), 2),
        (("-r", "0"), 2),
        (("--json", "--csv"), 2),
        (("--plot", "a.gif"), 2),
        (("--fail-below", "0"), 2),
        (("--fail-below", "much"), 2),
        (("--history", "--compare"), 2),
        (("--llama-bench", "x"), 2),
        (("--compare", "--llama-bench", "/nowhere/llama-bench"), 2),
        (("--device", "cuda"), 2),
        (("-o", "/nowhere/a.csv"), 3),
    ],
)
def test_misuse_is_one_line(talker, capsys, monkeypatch, tmp_path, words, code):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    assert main(["bench", str(talker), "-n", "4", "-p", "8", "-q", *words]) == code
    error = capsys.readouterr().err
    assert error.startswith("kinetic: ") and error.count("\n") == 1
    assert not store(tmp_path).exists()


def test_a_model_is_never_written_over(bench, talker, tmp_path):
    before = talker.read_bytes()
    for flag in ("-o", "--plot"):
        for place in (talker, tmp_path / "link.svg"):
            if not place.exists():
                place.symlink_to(talker)
            bench(flag, place, check=2)
    assert talker.read_bytes() == before


def test_a_png_needs_matplotlib(talker, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", str(talker), "--plot", "a.png"]) == 2
    assert "name a .svg file" in capsys.readouterr().err


# --- llama.cpp ---


@pytest.fixture
def compare(bench, tmp_path):
    program = write_llama_bench(tmp_path)
    environment = {"FAKE_LOG": str(tmp_path / "called.json")}
    return lambda *words, **options: bench("--compare", "--llama-bench", program, *words, env=environment, **options)


def test_a_comparison(compare, tmp_path):
    done = compare("--plot", tmp_path / "a.svg")
    head, rows = table(done.stdout)
    assert head == ["test", "threads", "tokens/s", "least", "llama.cpp", "ratio"]
    assert rows[0][4] == "8000.0 (8000.0-8000.0)"
    assert "3 rounds beside llama.cpp b11434 (0ddba11)" in done.stdout
    (record,) = records(tmp_path)
    first = record["results"][0]
    assert first["ratio"]["ratios"] == [pytest.approx(speed / 8000, abs=1e-3) for speed in first["speeds"]]
    assert record["peer"] == "llama.cpp b11434 (0ddba11)"
    text = (tmp_path / "a.svg").read_text()
    root = ElementTree.fromstring(text)
    assert len(root.findall("{*}rect")) == 1 + 4  # the background; two tests, two programs
    assert "8000.0" in text and "script" not in text and "href" not in text


def test_the_gate_beside_llama_cpp(compare):
    assert compare("--fail-below", "0.0000001").returncode == 0
    done = compare("--fail-below", "900", check=7)
    assert "below 900 by more than the noise" in done.stderr and "llama.cpp b11434" in done.stderr
    assert table(done.stdout)[1], "the measurement is shown all the same"


def test_a_llama_bench_that_fails_is_one_line(compare, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_MODE", "fail")
    done = compare(check=3)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and "failed to load model" in done.stderr
    assert not store(tmp_path).exists()


# --- the gate and the history ---


def slower(tmp_path, factor):
    """Earlier measurements, made ``factor`` times as fast as they were."""
    old = records(tmp_path)
    for record in old:
        for row in record["results"]:
            row |= {name: row[name] * factor for name in ("median", "q1", "q3", "least", "most")}
            row["speeds"] = [speed * factor for speed in row["speeds"]]
    store(tmp_path).write_text("".join(json.dumps(record) + "\n" for record in old))


def test_the_gate_has_nothing_to_judge_at_first(bench):
    assert "nothing to judge" in bench("--fail-below", "0.95").stderr


def test_the_gate(bench, tmp_path):
    bench()
    slower(tmp_path, 1000)
    done = bench("--fail-below", "0.5", "--json", check=7)
    assert "pp8 with 1 thread is 0.00" in done.stderr
    assert [one["ratio"] < 0.01 for one in json.loads(done.stdout)["judgements"]] == [True, True]
    slower(tmp_path, 0.0001)
    done = bench("--fail-below", "0.5")
    head, rows = table(done.stdout)
    assert head[-1] == "to the last" and " ± " in rows[0][-1] and done.stderr == ""


def test_history(bench, kinetic, talker, tmp_path):
    assert "There is no measurement" in kinetic("bench", talker, "--history").stdout
    bench()
    bench("-n", "0")
    with open(store(tmp_path), "a") as file:
        file.write("oops\n")
    done = kinetic("bench", talker, "--history", "--plot", tmp_path / "h.svg")
    head, rows = table(done.stdout)
    assert head == ["test", "threads", "runs", "first", "last", "change", "trend"]
    assert [row[:3] for row in rows[:2]] == [["pp8", "1", "2"], ["tg4", "1", "1"]]
    assert len(rows[0][-1]) == 2 and "1 lines of" in done.stderr
    assert len(ElementTree.parse(tmp_path / "h.svg").getroot().findall("{*}polyline")) == 2
    said = json.loads(kinetic("bench", talker, "--history", "--json").stdout)["records"]
    kept = [json.loads(line) for line in store(tmp_path).read_text().splitlines()[:2]]
    assert said == kept
    lines = list(csv.DictReader(io.StringIO(kinetic("bench", talker, "--history", "--csv").stdout)))
    assert [line["test"] for line in lines] == ["pp8", "tg4", "pp8"]


def test_the_history_of_another_model_is_another(bench, kinetic, tmp_path):
    bench()
    other = write_talker(tmp_path / "other.gguf", b"day one"[:3])
    assert "There is no measurement" in kinetic("bench", other, "--history").stdout
