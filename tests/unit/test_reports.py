"""Reports in their four forms: what stands in them, how it is counted, and that hostile text stays text."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from urllib.parse import unquote_to_bytes, urlsplit

import pytest

from receipts.errors import VERDICTS, worst
from receipts.report import WORDS, Report, Row, counts, headline, json_row, to_html, to_json, to_junit, to_sarif, word
from receipts.report.meanings import SAYS, advice
from receipts.report.rows import Timing
from receipts.report.shown import clip, html, markup, token, visible, whole
from receipts.verify import Place, Verdict
from tests.support.page import Page
from tests.support.sample_reports import HOSTILE, MODEL, differs, identical, only, row_of, sample_report

FORMS = {"json": to_json, "junit": to_junit, "sarif": to_sarif, "html": to_html}


def result_of(row):
    return json.loads(to_sarif(only(row)))["runs"][0]["results"][0]


# --- words and counts ---


@pytest.mark.parametrize("code", VERDICTS)
def test_the_word_is_that_of_the_exit_code(code):
    assert word(Verdict(code, "X", "", method="replay")) == VERDICTS[code]


def test_what_was_not_rerun_is_never_called_identical():
    row = row_of(Verdict(0, "IDENTICAL", "form and signatures hold"))
    assert word(row.verdict) == json_row(row)["verdict"] == "NOT_RERUN"
    assert counts([row]) == dict.fromkeys(WORDS, 0) | {"NOT_RERUN": 1}
    assert "IDENTICAL" not in to_junit(only(row)).replace('name="IDENTICAL', "")
    assert '<tr id="r0" class="v-NOT_RERUN">' in to_html(only(row))


def test_words_stand_from_the_gravest_down():
    codes = {name: code for code, name in VERDICTS.items()} | {"NOT_RERUN": 0}
    assert set(WORDS) == set(codes) == set(SAYS)
    for graver, lighter in pairwise(WORDS):
        assert worst([codes[graver], codes[lighter]]) == codes[graver]


@pytest.mark.parametrize(
    "codes, sentence",
    [
        ([], "No receipts were given."),
        ([0], "The receipt is identical."),
        ([0] * 1200, "All 1,200 receipts are identical."),
        ([0, 0, 10], "2 of 3 receipts are identical; 1 differs."),
        ([0, 10, 10, 12], "1 of 4 receipts is identical; 1 refused for its signature; 2 differ."),
        ([13], "1 receipt: cannot be verified here."),
    ],
)
def test_the_headline_counts(codes, sentence):
    assert headline(counts([row_of(Verdict(code, "X", "", method="replay")) for code in codes])) == sentence


# --- JSON ---


def test_a_json_row_has_every_field_of_the_verdict():
    row = row_of(differs(6, {2}), receipt_id="ab" * 32, question_id="cd" * 32)
    told = json_row(row)
    assert list(told) == ["file", "verdict", *Verdict._fields, "receipt_id", "question_id"]
    assert told["trail"][2] == row.verdict.trail[2]._asdict()
    assert (told["verdict"], told["receipt_id"], told["notes"]) == ("DIFFERS", "ab" * 32, [])


def test_a_row_that_was_rerun_now_has_its_times():
    row = row_of(differs(6, {2}))._replace(timing=Timing(1.5, 0.25, 12.0))
    assert json_row(row)["timing"] == {"load_seconds": 1.5, "check_seconds": 0.25, "tokens_per_second": 12.0}
    assert "timing" not in json_row(row._replace(timing=None))


def test_the_json_report_says_everything_once():
    report = sample_report()
    told = json.loads(to_json(report))
    assert list(told) == ["type", "version", "title", "facts", "exit_code", "counts", "rows"]
    assert (told["type"], told["version"], told["exit_code"]) == ("kinetic-report", 1, 12)
    assert told["counts"] == counts(report.rows) and sum(told["counts"].values()) == len(report.rows)
    assert [row["file"] for row in told["rows"]] == [whole(row.file) for row in report.rows]
    assert told["facts"][0] == {"name": "When", "value": "2026-03-14T15:09:26Z"}
    assert told["rows"][0] == json_row(report.rows[0]) | {
        "model": MODEL,
        "seconds": 1.25,
        "is_kept": False,
        "prompt_tokens": 30,
        "output_tokens": 12,
    }


def test_json_without_rows_is_json():
    assert json.loads(to_json(Report([], "None", [])))["rows"] == []


@pytest.mark.parametrize("gap, told", [(math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN"), (0.5, 0.5)])
def test_json_has_no_number_that_is_not_one(gap, told):
    place = Place(1, "a", 2, "b", gap)
    row = row_of(Verdict(10, "DIFFERS", "", gap=gap, method="replay", trail=(place,)))
    parsed = json.loads(to_json(only(row)), parse_constant=pytest.fail)["rows"][0]
    assert (parsed["gap"], parsed["trail"][0]["gap"]) == (told, told)


def test_json_is_ascii_and_a_file_name_of_any_bytes_can_be_written():
    text = to_json(only(row_of(identical(), file="a\udcff\u202e\n")))
    assert text.isascii()
    assert json.loads(text)["rows"][0]["file"] == "a\\udcff\u202e\n"


# --- JUnit ---

KINDS = {0: None, 10: "failure", 11: "failure", 12: "failure", 1: "error", 3: "error", 14: "error", 13: "skipped"}


@pytest.mark.parametrize("code, kind", KINDS.items())
def test_junit_says_what_kind_of_finding_it_is(code, kind):
    row = row_of(Verdict(code, "WHY", "what it says", method="replay"))
    case = ElementTree.fromstring(to_junit(only(row))).find("testsuite/testcase")
    findings = [child for child in case if child.tag != "system-out"]
    assert [child.tag for child in findings] == ([kind] if kind else [])
    if kind:
        assert findings[0].attrib == {"type": f"{VERDICTS[code]} WHY", "message": "what it says"}


def test_junit_skips_what_was_not_rerun():
    root = ElementTree.fromstring(to_junit(only(row_of(Verdict(0, "NOT_RERUN", "not in the sample")))))
    assert root.find("testsuite/testcase/skipped").get("message") == "not in the sample"
    assert root.find("testsuite").get("skipped") == "1"


def test_junit_has_a_suite_a_model_and_its_counts_add_up():
    report = sample_report()
    root = ElementTree.fromstring(to_junit(report))
    suites = root.findall("testsuite")
    assert [suite.get("name") for suite in suites[:1]] == [MODEL]
    assert len(suites) == len({row.model for row in report.rows})
    for suite in [root, *suites]:
        assert int(suite.get("tests")) == len(suite.findall(".//testcase"))
        assert int(suite.get("failures")) == len(suite.findall(".//failure"))
        assert int(suite.get("errors")) == len(suite.findall(".//error"))
    assert all(int(suite.get("skipped")) == len(suite.findall(".//skipped")) for suite in suites)
    assert suites[0].find("properties/property").attrib == {"name": "When", "value": "2026-03-14T15:09:26Z"}


def test_junit_holds_only_what_its_readers_know():
    """Elements and attributes of the schema that Jenkins checks a file against (junit-10.xsd of its xUnit plugin)."""
    known = {
        "testsuites": {"name", "tests", "failures", "errors", "time"},
        "testsuite": {"name", "tests", "failures", "errors", "time", "skipped"},
        "properties": set(),
        "property": {"name", "value"},
        "testcase": {"name", "classname", "time"},
        "failure": {"type", "message"},
        "error": {"type", "message"},
        "skipped": {"type", "message"},
        "system-out": set(),
    }
    for element in ElementTree.fromstring(to_junit(sample_report())).iter():
        assert set(element.attrib) == known[element.tag]


# --- SARIF ---


def test_sarif_has_what_the_specification_requires():
    log = json.loads(to_sarif(sample_report()))
    assert log["version"] == "2.1.0" and urlsplit(log["$schema"]).scheme == "https"  # 3.13.2, 3.13.3
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "Kinetic"  # 3.19.8
    assert len({rule["id"] for rule in rules}) == len(rules)  # 3.49.3
    for rule in rules:
        assert (
            rule["help"]["text"] and rule["shortDescription"]["text"].endswith(".") and rule["fullDescription"]["text"]
        )
    for result in run["results"]:
        assert result["message"]["text"] and result["level"] in ("error", "warning", "note")  # 3.27.10, 3.27.11
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]  # 3.27.6
        assert rules[result["ruleIndex"]]["defaultConfiguration"]["level"] == result["level"]
        assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}  # 3.30.5
    assert isinstance(run["invocations"][0]["executionSuccessful"], bool)  # 3.20.14


def test_sarif_tells_only_what_is_not_identical():
    report = sample_report()
    results = json.loads(to_sarif(report))["runs"][0]["results"]
    assert len(results) == len(report.rows) - counts(report.rows)["IDENTICAL"]
    assert json.loads(to_sarif(only(row_of(identical()))))["runs"][0]["results"] == []


@pytest.mark.parametrize(
    "code, level",
    [(10, "error"), (11, "error"), (12, "error"), (1, "error"), (3, "error"), (13, "warning"), (14, "warning")],
)
def test_sarif_levels(code, level):
    assert result_of(row_of(Verdict(code, "WHY", "so", method="replay")))["level"] == level


def test_sarif_notes_what_was_not_rerun():
    result = result_of(row_of(Verdict(0, "NOT_RERUN", "so")))
    assert (result["level"], result["ruleId"]) == ("note", "NOT_RERUN")


def test_one_name_behind_two_verdicts_makes_two_rules():
    rows = [row_of(Verdict(code, "CRITICAL", "so")) for code in (11, 13, 11)]
    run = json.loads(to_sarif(Report(rows, "Two", [])))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["MALFORMED/CRITICAL", "UNVERIFIABLE/CRITICAL"]
    assert [result["ruleIndex"] for result in run["results"]] == [0, 1, 0]


@pytest.mark.parametrize(
    "file, uri",
    [
        ("a.json", "a.json"),
        ("./in/../a b.json", "a%20b.json"),
        ("../a.json", "../a.json"),
        ("c:d.json", "c%3Ad.json"),
        ("50%25?#.json", "50%2525%3F%23.json"),
        ("/in/a.json", "file:///in/a.json"),
        ("\u00e4\udcff\ud800", "%C3%A4%5Cudcff%5Cud800"),
        ("\u00e4\udcff", "%C3%A4%FF"),
        ("javascript:x//y", "javascript%3Ax/y"),
    ],
)
def test_sarif_locations_are_uris(file, uri):
    assert result_of(row_of(differs(3, {1}), file=file))["locations"][0]["physicalLocation"]["artifactLocation"] == {
        "uri": uri
    }


def test_a_sarif_uri_leads_back_to_the_bytes_of_the_name():
    name = bytes(range(1, 256)).replace(b"/", b"").decode("utf-8", "surrogateescape")
    result = result_of(row_of(differs(3, {1}), file=name))
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote_to_bytes(uri) == name.encode("utf-8", "surrogateescape")
    assert re.fullmatch(r"[A-Za-z0-9._~%-]+", uri)


def test_sarif_messages_hold_no_link_and_no_placeholder():
    text = result_of(row_of(Verdict(11, "TEXT", "see [here](http://example.org) {0}\u202e")))["message"]["text"]
    assert text == "see [here] (http://example.org) {{0}}\\u202e"


# --- hostile text, in every form ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(form, text):
    made = FORMS[form](made_of(text))
    made.encode("utf-8")
    if form in ("json", "sarif"):
        json.loads(made)
        assert made.isascii()
    elif form == "junit":
        assert ElementTree.fromstring(made).find("testsuite/testcase").get("name") == visible(text)
    else:
        benign = Page(to_html(made_of("a")))
        page = Page(made)
        assert page.skeleton() == benign.skeleton()
        assert visible(text) in page.text


def made_of(text):
    """A report that holds ``text`` wherever there is a text."""
    place = Place(1, text, 2, text, 0.5)
    verdict = Verdict(10, text, text, 1, False, 0, 1, 2, text, text, 0.5, (text,), text, text, (place,))
    return Report([Row(text, verdict, text, text, text, 1.0)], text, [(text, text)])


@pytest.mark.parametrize("form", ["junit", "html"])
def test_no_character_acts_or_hides(form):
    """Of all there are: what is left in a page or XML is printable, but for the line ends that the form writes."""
    every = [chr(code) for code in range(0x110000)]
    text = "".join(char for char in every if not char.isprintable() or char in "\u034f\ufe0f\u2800\u3164")
    made = FORMS[form](only(row_of(Verdict(11, "TEXT", text[:500]), file=text)))
    assert {char for char in made if not char.isprintable()} == {"\n"}
    assert not {*made} & {*"\u034f\ufe0f\u2800\u3164"}


@pytest.mark.parametrize("form", FORMS)
def test_reports_never_vouch_for_an_unknown_signer(form):
    report = sample_report(signature="signature consistent, signer unknown (key ab12...)")
    assert "valid" not in FORMS[form](report).lower()


def test_visible_spells_what_acts_and_keeps_the_rest():
    assert visible("a b\n\x1b[1m\u202e\u200b\U000e0001\udc80\ufeff") == (
        "a b\\n\\x1b[1m\\u202e\\u200b\\U000e0001\\udc80\\ufeff"
    )
    assert visible(kept := "na\u00efve \u65e5\u672c \u05d0 \U0001f600") == kept
    assert markup("<a b='\"&\x00") == "&lt;a b=&#39;&quot;&amp;\\x00"
    assert html("<\n") == '&lt;<b class="e">\\n</b>'


def test_tokens_show_their_spaces_and_are_cut():
    assert token(" <a") == '<code><b class="s"> </b>&lt;a</code>'
    assert token("\u00e4 ") == '<code>\u00e4<b class="s"> </b></code>'
    assert token("x" * 50, 48) == f"<code>{'x' * 48}</code> <small>and 2 more characters</small>"
    assert (clip("abc", 3), clip("abcd", 3)) == ("abc", "abc... and 1 more characters")


@pytest.mark.parametrize("kind", WORDS)
def test_no_advice_names_a_flag_or_a_setting_that_is_not_there(kind):
    assert "--" not in advice(kind) and "aise the limit" not in advice(kind)
