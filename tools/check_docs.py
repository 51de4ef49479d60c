"""Documents that agree with the program: ``python -m tools.check_docs [--write]``.

- every ``kinetic ...`` line in the README's code blocks names a command and flags that exist;
- the README shows ``kinetic --help`` as it is (``--write`` renews it);
- the version is the changelog's newest;
- links between documents lead somewhere; no document or source file holds a path of one machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tools.source import Finding, run

GROUPS = ("receipt", "export")
"""Commands that have sub-commands."""

HELP_BLOCK = re.compile(r"(<!-- kinetic --help -->\n```text\n)(.*?)(```\n)", re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "bash", "console", "shell")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
MACHINE_PATH = re.compile(r"/(?:work|root|farm)/|/home/\w+/|[.]library\b")
TEXT_SUFFIXES = (".py", ".md", ".toml", ".sh", ".cfg", ".json", ".cu", ".cl", ".yml", ".yaml", ".txt", "")


def check(root: Path) -> Iterator[Finding]:
    readme = _read(root / "README.md")
    yield from _readme_commands(readme)
    yield from _readme_help(readme)
    yield from _version(root)
    for path in _project_files(root):
        yield from _paths_and_links(root, path)


# --- the README against the command line ------------------------------------


def _readme_commands(readme: str) -> Iterator[Finding]:
    for line, command in shell_commands(readme):
        words = shlex.split(command, comments=True)
        if words[:1] != ["kinetic"] or len(words) < 2:
            continue
        if words[1].startswith("-"):
            name, shown = "", help_text()
        else:
            name = " ".join(words[1:3] if words[1] in GROUPS else words[1:2])
            shown = help_text(*name.split())
        if not shown:
            yield Finding("README.md", line, f"there is no command 'kinetic {name}'")
            continue
        for flag in (word.partition("=")[0] for word in words[1:] if re.match(r"--?[A-Za-z]", word)):
            if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown):
                yield Finding("README.md", line, f"'kinetic {name}' has no flag {flag}")


def shell_commands(text: str) -> Iterator[tuple[int, str]]:
    """(line number, command) for each command in a shell block; a leading ``$`` is dropped, ``\\`` joins lines.

    In a block that shows prompts, lines without one are output.
    """
    for fence in FENCE.finditer(text):
        if fence[1] not in SHELL:
            continue
        first = text.count("\n", 0, fence.start(2)) + 1
        prompts = re.search(r"^\$ ", fence[2], re.MULTILINE) is not None
        joined = fence[2].replace("\\\n", "\0")
        number = first
        for line in joined.split("\n"):
            if line.startswith("$ ") or (line.strip() and not prompts):
                yield number, line.removeprefix("$ ").replace("\0", " ").strip()
            number += 1 + line.count("\0")


@lru_cache
def help_text(*command: str) -> str:
    """What ``kinetic [command [sub-command]] --help`` prints, or "" if there is no such command."""
    # A fixed width and no colour, so that the text is the same in every terminal.
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    start = "import sys; sys.argv[0] = 'kinetic'; from kinetic.cli import main; sys.exit(main())"
    arguments = [*command, "--help"]
    result = subprocess.run(
        [sys.executable, "-c", start, *arguments], capture_output=True, text=True, encoding="utf-8", env=environment
    )
    if result.returncode:
        return ""
    return "\n".join(line.rstrip() for line in result.stdout.strip("\n").splitlines()) + "\n"


def _readme_help(readme: str) -> Iterator[Finding]:
    block = HELP_BLOCK.search(readme)
    if block is None:
        yield Finding("README.md", 1, "the block of 'kinetic --help' is missing")
    elif block[2].split() != help_text().split():  # argparse places words differently from version to version
        line = readme.count("\n", 0, block.start()) + 1
        yield Finding("README.md", line, "'kinetic --help' has changed: run python -m tools.check_docs --write")


def write(root: Path) -> None:
    """Renew the generated block of the README."""
    path = root / "README.md"
    text = HELP_BLOCK.sub(lambda block: block[1] + help_text() + block[3], _read(path))
    path.write_text(text, encoding="utf-8")


# --- the rest ---------------------------------------------------------------


def _version(root: Path) -> Iterator[Finding]:
    code = re.search(r'^__version__ = "(.+)"$', _read(root / "kinetic/_version.py"), re.MULTILINE)
    log = re.search(r"^## (\S+)", _read(root / "CHANGELOG.md"), re.MULTILINE)
    if not code or not log or code[1] != log[1]:
        shown = (code[1] if code else "none", log[1] if log else "none")
        yield Finding("CHANGELOG.md", 1, f"kinetic/_version.py says {shown[0]}, the newest entry {shown[1]}")


def _project_files(root: Path) -> list[Path]:
    """Files that git tracks or would track; all of them where there is no git."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True)
    if listed.returncode:
        return [path for path in sorted(root.rglob("*")) if path.is_file()]
    return [root / name for name in sorted(listed.stdout.split("\0")) if name and (root / name).is_file()]


def _paths_and_links(root: Path, path: Path) -> Iterator[Finding]:
    if path.suffix not in TEXT_SUFFIXES:
        return
    name = path.relative_to(root).as_posix()
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if found := MACHINE_PATH.search(line):
            yield Finding(name, number, f"path of one machine: {found[0]}")
        if path.suffix == ".md":
            for target in LINK.findall(line):
                if not (path.parent / target).exists():
                    yield Finding(name, number, f"link to nothing: {target}")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


if __name__ == "__main__":
    if "--write" in sys.argv:
        sys.argv.remove("--write")
        write(Path(__file__).resolve().parent.parent)
    raise SystemExit(run("documents", check))
