"""Bundles that can't be written whole: whatever ends the writing, nothing half stays under the name."""

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.cli.conftest import COMMAND, ROOT
from tests.support.gguf_writer import GgufWriter
from tests.support.talking_model import write_talker


@pytest.fixture
def model(tmp_path):
    return write_talker(tmp_path / "tiny.gguf")


@pytest.fixture
def packed(kinetic, model, tmp_path):
    kinetic("pack", model, "-o", tmp_path / "t.ktc", "--chunks", "-q")
    return tmp_path / "t.ktc"


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def says(done, text):
    """One line of one sentence, on standard error."""
    assert done.stdout == "" and done.stderr.startswith("kinetic: ") and done.stderr.count("\n") == 1
    assert text in done.stderr


def environment(tmp_path):
    return {**os.environ, "PYTHONPATH": str(ROOT), "KINETIC_HOME": str(tmp_path / "home")}


@pytest.fixture
def large(tmp_path):
    """64 MiB, which takes a moment to pack."""
    tensor = np.random.default_rng(0).integers(0, 256, 64 << 20, np.uint8).view(np.int8)
    return GgufWriter().key("general.architecture", "llama").tensor("t", tensor).write(tmp_path / "large.gguf")


def test_a_killed_pack_leaves_all_or_nothing_under_the_name(kinetic, tmp_path, large):
    target, early = tmp_path / "l.ktc", 0
    for delay in (0.05, 0.15, 0.25, 0.3, 0.35, 0.4, 0.45, 0.55):
        words = [*COMMAND, "pack", str(large), "-o", str(target), "--chunks"]
        with subprocess.Popen(words, env=environment(tmp_path), stdout=subprocess.DEVNULL) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        early += not target.exists()
        if target.exists():  # killed when all was done, or not at all
            kinetic("verify", target, "--sha256")
            target.unlink()
    assert early >= 2


def begun(folder):
    """Whether something was written to the file that becomes the bundle."""
    return any(path.stat().st_size > 1 << 20 for path in folder.glob(".l.ktc.*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_pack_that_is_ended_while_it_writes(tmp_path, large, number):
    target = tmp_path / "l.ktc"
    words = [*COMMAND, "pack", str(large), "-o", str(target), "--chunks"]
    with subprocess.Popen(
        words, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        end = time.monotonic() + 60
        while not begun(tmp_path) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert not target.exists() and b"Traceback" not in said
    if number == signal.SIGINT:
        assert not list(tmp_path.glob(".l.ktc.*"))


@pytest.mark.parametrize("room", [20_000, 5 << 20, 66 << 20])
@pytest.mark.parametrize("command", ["pack", "unpack", "repair"])
def test_a_full_disk_leaves_nothing(kinetic, tmp_path, large, command, room):
    """A limit on the size of files fails as a full disk does, at any point of the writing."""
    bundle, target = tmp_path / "l.ktc", tmp_path / "out"
    words = {
        "pack": ("pack", large, "-o", target, "--chunks"),
        "unpack": ("unpack", bundle, "-o", target),
        "repair": ("repair", bundle, "--from", large, "-o", target),
    }[command]
    if command != "pack":
        kinetic("pack", large, "-o", bundle, "--chunks")
    if command == "repair":
        flip(bundle, 50 << 20)
    fits = room > large.stat().st_size and command == "unpack"

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    before = set(tmp_path.iterdir())
    room = min(room, large.stat().st_size + 8_000) if command != "unpack" else room
    done = kinetic(*words, check=0 if fits else 3, preexec_fn=limit)
    if not fits:
        says(done, "cannot write")
        assert set(tmp_path.iterdir()) - before <= {tmp_path / "home"}


def test_a_target_that_is_a_link_or_a_pipe_is_left_alone(kinetic, model, packed, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for target in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        for words in (("pack", model), ("unpack", packed)):
            says(kinetic(*words, "-o", target, check=3), "already there")
    assert not (tmp_path / "elsewhere").exists()


def test_an_end_that_is_asked_for_leaves_no_scratch_file(tmp_path):
    source = write_talker(tmp_path / "big.gguf")
    program = (
        "import os, signal, sys; from ktc import newfile; from kinetic.cli import main\n"
        "newfile.NewFile.sync = lambda self: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "pack", str(source), "-o", str(tmp_path / "big.ktc")]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60).returncode == 143
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.gguf"]
