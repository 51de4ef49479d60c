"""The command line itself: what is understood, what is refused, and what it costs to ask."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic import errors
from kinetic.api.options import Options
from kinetic.cli import main
from kinetic.cli.command import EXIT_CODES, build_parser
from kinetic.cli.run_options import asked_options
from kinetic.errors import UsageError
from tests.support.talking_model import write_talker

COMMANDS = ("run", "verify-receipt", "info", "pull", "models")


def parse(*words):
    command = build_parser()[1].choices[words[0]]
    command.refuse_glued(words[1:])
    return command.parse_intermixed_args(words[1:])


def one_line(text):
    return text.startswith("kinetic: ") and text.endswith("\n") and text.count("\n") == 1


@pytest.mark.parametrize("word", ["-ngl7", "-n5", "-eq", "-t2", "-c4096", "-s42", "-pHello", "-l5+1", "-rstop"])
def test_glued_forms_are_refused_not_misread(word):
    with pytest.raises(UsageError) as caught:
        parse("run", "m", "x", word)
    assert caught.value.name == "GLUED_FLAG" and word in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("run", "m", "--temp", "0", "Hello"),
        ("run", "--temp", "0", "m", "Hello"),
        ("run", "m", "Hello", "--temp=0"),
        ("run", "m", "--temperature", "0", "--", "Hello"),
    ],
)
def test_flags_may_stand_anywhere(words):
    options = parse(*words)
    assert (options.model, options.prompt, options.temperature) == ("m", "Hello", 0.0)


def test_flags_are_those_of_llama_cpp():
    options = parse(
        *("run", "m", "-p", "- x", "-sys", "S", "-n", "-2", "-c", "512", "-t", "2", "--temp", ".5", "--top-k", "0"),
        *("--top-p", "1", "--min-p", "0", "--repeat-penalty", "1.1", "--repeat-last-n", "-1", "--frequency-penalty"),
        *("0.5", "--presence-penalty", "-0.5", "-l", "5+1.5", "-l", "6-inf", "-s", "-1", "-r", "a", "--stop", "b"),
    )
    assert (options.prompt_flag, options.system, options.n_predict, options.ctx_size) == ("- x", "S", -2, 512)
    assert (options.temperature, options.top_k, options.repeat_last_n, options.presence_penalty) == (0.5, 0, -1, -0.5)
    assert options.logit_bias == [(5, 1.5), (6, float("-inf"))] and options.stop == ["a", "b"] and options.seed == -1


def test_later_samplers_have_the_flags_of_llama_cpp():
    options = parse(
        *(
            "run",
            "m",
            "x",
            "--typical",
            "0.9",
            "--top-nsigma",
            "-1",
            "--xtc-probability",
            "0.5",
            "--xtc-threshold",
            "0.2",
        ),
        *("--dynatemp-range", "0.3", "--dynatemp-exp", "1.5", "--dry-multiplier", "0.8", "--dry-base", "2"),
        *("--dry-allowed-length", "3", "--dry-penalty-last-n", "-1", "--dry-sequence-breaker", r"\n"),
        *("--dry-sequence-breaker", "x", "-e"),
    )
    asked = asked_options(options)
    assert (asked["typ_p"], asked["top_n_sigma"], asked["xtc_probability"], asked["xtc_threshold"]) == (
        0.9,
        -1,
        0.5,
        0.2,
    )
    assert (asked["dynatemp_range"], asked["dynatemp_exponent"]) == (0.3, 1.5)
    assert (asked["dry_multiplier"], asked["dry_base"], asked["dry_allowed_length"]) == (0.8, 2.0, 3)
    assert (asked["dry_penalty_last_n"], asked["dry_sequence_breakers"]) == (-1, ["\n", "x"])
    assert set(asked) <= set(Options.__annotations__)


@pytest.mark.parametrize(("words", "breakers"), [((), ["\n", '"', "*", ":"]), (("--dry-sequence-breaker", "none"), [])])
def test_breakers_are_the_default_or_none(words, breakers):
    assert asked_options(parse("run", "m", "x", *words))["dry_sequence_breakers"] == breakers


def test_defaults_are_those_of_llama_cpp():
    options = parse("run", "m")
    assert (options.typ_p, options.top_n_sigma, options.xtc_probability, options.xtc_threshold) == (1.0, 0.0, 0.0, 0.1)
    assert (options.dry_multiplier, options.dry_base, options.dry_allowed_length) == (0.0, 1.75, 2)
    assert (options.dry_penalty_last_n, options.dynatemp_range, options.dynatemp_exponent) == (64, 0.0, 1.0)
    assert (options.temperature, options.top_k, options.top_p, options.min_p) == (0.8, 40, 0.95, 0.05)
    assert (options.repeat_last_n, options.repeat_penalty, options.seed, options.n_predict) == (64, 1.0, -1, -1)


@pytest.mark.parametrize("text", ["5", "5+", "+1", "5*2", "5+x", "5+nan", "5 + 1", "²+1", "5+1_0"])
def test_a_logit_bias_has_one_form(text):
    with pytest.raises(UsageError):
        parse("run", "m", "x", "-l", text)


@pytest.mark.parametrize(
    "words",
    [
        ("nothing",),
        ("run",),
        ("run", "m", "a", "b"),
        ("run", "m", "x", "--temp"),
        ("run", "m", "x", "--temp", "warm"),
        ("run", "m", "x", "--tem", "1"),
        ("run", "m", "x", "-n", "many"),
        ("--nothing",),
        ("pull",),
        ("info",),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(capsys, words):
    assert main(words) == 2
    assert one_line(capsys.readouterr().err)


def test_help(kinetic, capsys):
    text = kinetic("--help").stdout
    assert "kinetic --help" in kinetic().stdout
    for command in COMMANDS:
        assert command in text
        assert main([command, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: kinetic {command} ")


def test_help_documents_every_exit_code():
    documented = {int(code) for code in re.findall(r"(?:^|  )(\d+) ", EXIT_CODES)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.KineticError)]
    assert documented == {0, 7, 10, 12, 130, 141, 143} | {kind.exit_code for kind in kinds}


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"kinetic \d+\.\d+\.\S+ \(kinetic-1\S*\)\n", capsys.readouterr().out)


def test_help_loads_nothing_heavy():
    program = "import sys; from kinetic.cli import main; main(['run', '--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"numpy", "numba", "jinja2", "regex", "blake3", "cbor2", "nacl", "receipts", "typer", "json"}


def test_a_reader_that_goes_away_is_no_error():
    program = "import sys; from kinetic.cli import main; sys.exit(main(['models']))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 141


@pytest.mark.parametrize(("redirection", "reason"), [("> /dev/full", "No space left"), (">&-", "closed")])
def test_output_that_cannot_be_written(redirection, reason):
    if redirection == "> /dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    for words, unbuffered in itertools.product(("models", "--help"), ("", "1")):
        command = f"{sys.executable} -m kinetic {words} {redirection}"
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, env=environment, check=False)
        assert done.returncode == 3 and one_line(done.stderr) and reason in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_standard_error_changes_no_exit_code():
    command = f"{sys.executable} -m kinetic info nothing.gguf 2> /dev/full"
    assert subprocess.run(command, shell=True, env={**os.environ, "PYTHONUNBUFFERED": ""}, check=False).returncode == 3


def test_no_standard_error_is_no_error():
    done = subprocess.run(f"{sys.executable} -m kinetic models 2>&-", shell=True, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0 and b"smollm2" in done.stdout


def test_control_c_during_imports():
    program = """
import builtins, sys
real = builtins.__import__
def interrupted(name, *rest):
    if name.startswith("kinetic.cli.command"):
        raise KeyboardInterrupt
    return real(name, *rest)
from kinetic.cli import main
builtins.__import__ = interrupted
sys.exit(main(["models"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_prompt_of_several_words_needs_quotes(capsys):
    assert main(["run", "m", "Name", "three", "rivers"]) == 2
    assert "goes in quotes" in capsys.readouterr().err
    assert main(["run", "m", "x", "--nothing"]) == 2
    assert "quotes" not in capsys.readouterr().err


def test_models(kinetic, tmp_path):
    assert "kinetic pull smollm2" in kinetic("models").stdout
    write_talker(tmp_path / "mine.gguf")
    kinetic("pull", tmp_path / "mine.gguf", "-q")
    rows = {row["name"]: row for row in json.loads(kinetic("models", "--json").stdout)}
    assert rows["mine"]["pulled"] and rows["mine"]["path"] == str(tmp_path / "home" / "models" / "mine.gguf")
    assert not rows["smollm2"]["pulled"] and rows["smollm2"]["license"] == "Apache-2.0"
    assert not rows["gemma3-270m"]["pulled"]


def test_pull(kinetic, tmp_path):
    write_talker(tmp_path / "mine.gguf")
    done = kinetic("pull", tmp_path / "mine.gguf")
    assert done.stdout == f"{tmp_path / 'home' / 'models' / 'mine.gguf'}\n"
    (tmp_path / "bad.gguf").write_bytes(b"oops")
    assert one_line(kinetic("pull", tmp_path / "bad.gguf", check=11).stderr)
    assert one_line(kinetic("pull", "nothing", check=3).stderr)
    assert one_line(kinetic("pull", "pypi:nothing", check=2).stderr)


@pytest.mark.parametrize("command", ["run", "info"])
def test_models_that_are_not_there(kinetic, command):
    assert "kinetic pull smollm2" in kinetic(command, "smollm2", check=3).stderr
    assert one_line(kinetic(command, "nothing.gguf", check=3).stderr)


@pytest.mark.parametrize("name", ["\x1b[31mred\n", "\u202ecod", "\x9b31m"])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "{}.gguf", "x"],
        ["run", "m.gguf", "x", "-f", "{}"],
        ["run", "m.gguf", "x", "--{}"],
        ["{}"],
        ["verify-receipt", "a", "--key", "{}"],
        ["verify-receipt", "a", "--html", "{}/r"],
        ["audit", "{}*"],
        ["audit", "a", "--state", "{}/s"],
        ["keygen", "-o", "{}/k"],
    ],
)
def test_no_message_steers_a_terminal(monkeypatch, tmp_path, capsys, words, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    assert main([word.format(name) for word in words]) in (2, 3)
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.rstrip("\n").isprintable()
