"""How cases are found, run and counted, and what becomes of those that fail or are skipped."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from conformance import suite
from conformance.case import Case, DoesNotHold, Evidence, Skipped, require_rows, row_digests
from conformance.cases import PROPERTIES
from conformance.report import Report, headline, to_html, to_json, to_junit, to_markdown
from conformance.setting import Setting
from conformance.suite import FAILED, PASSED, SKIPPED, Chosen, Result
from kinetic.errors import NonFinite, UsageError

FACTS = [("device", "cpu: <here>")]


def raising(error: BaseException):
    def run() -> Evidence:
        raise error

    return run


CASES = {
    "fine": (lambda: Evidence("3 rows", "ab" * 32), PASSED),
    "other": (raising(DoesNotHold("row 3 has other bits")), FAILED),
    "absent": (raising(Skipped("this machine has none")), SKIPPED),
    "refused": (raising(NonFinite("a logit is not finite")), FAILED),
    "broken": (raising(ZeroDivisionError("division by zero")), FAILED),
}


def results(*names: str) -> list[Result]:
    chosen = [Chosen(f"rows/{name}", "Rows are rows.", Case(name, CASES[name][0])) for name in names]
    return list(suite.run(None, chosen))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_outcomes(name):
    (result,) = results(name)
    assert (result.outcome, result.id) == (CASES[name][1], f"rows/{name}")
    assert result.text


@pytest.mark.parametrize(
    "names, strict, code",
    [
        (["fine"], False, 0),
        (["fine"], True, 0),
        (["fine", "absent"], False, 0),
        (["fine", "absent"], True, 13),
        (["absent"], False, 13),
        ([], False, 13),
        (["fine", "other"], False, 10),
        (["fine", "other", "absent"], True, 10),
        (["fine", "broken"], False, 10),
        (["fine", "refused"], True, 10),
    ],
)
def test_no_case_passes_by_being_skipped(names, strict, code):
    assert suite.exit_code(results(*names), strict) == code


def test_headlines_promise_no_more_than_was_shown():
    def said(*names: str) -> str:
        return headline(Report(results(*names), FACTS, 0))

    assert said("fine").startswith("This machine keeps the promise. 1 cases: 1 passed")
    assert said("fine", "absent").startswith("What was tried here holds.")
    assert said("fine", "other").startswith("This machine does not keep the promise.")
    assert said("absent").startswith("Nothing was shown.")
    assert headline(Report(results("fine"), FACTS, 0, is_part=True)).startswith("What was tried here holds.")


# --- finding cases ---


@pytest.fixture
def setting(tmp_path):
    return Setting(tmp_path, level="quick")


def test_every_property_says_what_it_is(setting):
    for name, module in PROPERTIES.items():
        assert module.PROPERTY.endswith(".") and isinstance(module.OF_MODELS, bool), name
    ids = [one.id for one in suite.select(setting)]
    assert len(set(ids)) == len(ids)
    assert {name.partition("/")[0] for name in ids} == set(PROPERTIES)


def test_full_has_more_cases_than_normal_and_that_than_quick(tmp_path):
    counts = [len(suite.select(Setting(tmp_path, level=level))) for level in ("quick", "normal", "full")]
    assert counts == sorted(set(counts))


def test_listing_makes_nothing(setting, tmp_path):
    suite.select(setting)
    assert list(tmp_path.iterdir()) == []


def test_a_model_gets_the_cases_that_are_about_models(tmp_path):
    named = Setting(tmp_path, level="quick", models=[tmp_path / "some.gguf"])
    ids = [one.id for one in suite.select(named)]
    assert ids and all("/some.gguf/" in f"{name}/" for name in ids)


@pytest.mark.parametrize("pattern", ["rows", "rows/llama-mixed", "rows/*/7-9", "rows/llama-mixed/7-9"])
def test_only(setting, pattern):
    ids = [one.id for one in suite.select(setting, [pattern])]
    assert "rows/llama-mixed/7-9" in ids
    assert all(name.startswith("rows/") for name in ids)


def test_a_name_without_a_case_is_an_error(setting):
    with pytest.raises(UsageError, match="no case is called"):
        suite.select(setting, ["rows", "row"])


# --- comparing ---


def test_rows_are_compared_bit_for_bit():
    import numpy as np

    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    expected = row_digests(rows)
    assert require_rows([rows[:1], rows[1:]], expected, "here") == expected
    assert require_rows([rows[1:]], expected, "here", first=1) == expected[1:]
    other = rows.copy()
    other[2, 1] = np.nextafter(other[2, 1], np.float32(9))
    with pytest.raises(DoesNotHold, match="row 2 here has other bits"):
        require_rows([other], expected, "here")
    zeros = np.zeros((1, 2), np.float32)
    with pytest.raises(DoesNotHold):
        require_rows([-zeros], row_digests(zeros), "here")


# --- reports ---


@pytest.fixture
def report():
    return Report(results(*CASES), FACTS, 10)


def test_markdown(report):
    text = to_markdown(report)
    assert "| rows     |      1 |      3 |       1 |" in text
    assert "- `rows/other`: row 3 has other bits\n  (property: Rows are rows.)" in text
    assert "- `rows/absent`: this machine has none" in text
    assert text.endswith("5 cases: 1 passed, 3 failed, 1 skipped.\n")


def test_json(report):
    table = json.loads(to_json(report))
    assert table["counts"] == {"passed": 1, "failed": 3, "skipped": 1}
    assert table["exit_code"] == 10
    assert [case["outcome"] for case in table["cases"]] == [outcome for _, outcome in CASES.values()]


def test_junit(report):
    root = ElementTree.fromstring(to_junit(report))
    (found,) = root.findall("testsuite")
    assert [found.get(name) for name in ("name", "tests", "failures", "skipped")] == ["rows", "5", "3", "1"]
    assert [len(case.findall("failure")) for case in found.iter("testcase")] == [0, 1, 0, 1, 1]


def test_html(report):
    text = to_html(report)
    assert "&lt;here&gt;" in text and "<here>" not in text
    assert "row 3 has other bits" in text and "default-src 'none'" in text
