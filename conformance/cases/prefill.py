"""Reading a prompt in passes, and then decoding, gives what decoding all of it gives: for each family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.case import Case, Evidence, counted, require_rows, together
from conformance.setting import Setting, Subject

PROPERTY = "Prefill is decode: keys and values stored in one pass are those that are stored one by one."
OF_MODELS = True

DECODED = 5


def cases(setting: Setting) -> Iterator[Case]:
    for subject in setting.subjects:
        yield Case(subject.name, partial(_run, setting, subject))


def _run(setting: Setting, subject: Subject) -> Evidence:
    expected, tokens = subject.plain.rows, subject.tokens
    cut = len(tokens) - DECODED
    probe = subject.probe(threads=setting.threads)
    found = require_rows(probe.feed(tokens[:cut], [cut]), expected, "of a prompt read at once")
    found += require_rows(probe.feed(tokens[cut:], [1], start=cut), expected, "decoded after that prompt", first=cut)
    return Evidence(counted(len(found)), together(found))
