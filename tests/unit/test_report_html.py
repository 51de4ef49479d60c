"""The HTML report: its structure, its limits, its plot."""

from __future__ import annotations

import math
import re

import pytest

from receipts.report import WORDS, Report, counts, to_html
from receipts.report.html_plot import gap_text, scale_of
from receipts.report.html_table import MAX_ROWS
from receipts.report.html_tokens import MAX_POSITIONS, NEAR, Span, spans_of
from receipts.verify import Place, Verdict
from tests.support.page import Page
from tests.support.sample_reports import differs, identical, only, row_of, sample_report


def test_the_page_asks_for_nothing_and_names_what_may_run():
    page = Page(to_html(sample_report()))
    policy = page.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not attributes.keys() & {"src", "srcset", "style", "action", "onclick", "onload", "xlink:href"}
        assert attributes.get("href", "#").startswith("#")


def test_links_lead_to_ids_that_stand_once():
    page = Page(to_html(sample_report()))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for attributes in page.all("a")]
    for _, attributes in page.elements:
        targets += (attributes.get("aria-labelledby") or "").split()
    assert targets and set(targets) <= set(ids)


def test_the_page_reads_without_script_and_for_those_who_hear_it():
    page = Page(to_html(sample_report()))
    (root,) = page.all("html")
    assert root["lang"] == "en"
    assert all(attributes["scope"] in ("row", "col") for attributes in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attributes["role"] == "img" for attributes in page.all("svg"))
    for text in ("2 differ;", "9.100 at 2", "1 of them different", "SIGNATURE", "OUTPUT_DIGEST", "kept", "unsigned"):
        assert text in page.text


def test_the_table_has_the_gravest_first_and_counts_agree():
    report = sample_report()
    made = to_html(report)
    kinds = re.findall(r'<tr id="r\d+" class="v-(\w+)">', made)
    assert len(kinds) == len(report.rows) and kinds == sorted(kinds, key=WORDS.index)
    for name, count in counts(report.rows).items():
        tiles = re.findall(rf'<li class="v-{name}"><span class="count">([\d,]+)</span>', made)
        assert tiles == ([f"{count:,}"] if count else [])


def test_streams_stand_side_by_side():
    made = to_html(only(row_of(differs(3, {1}))))
    assert made.count('<tr class="ne">') == 1
    row = re.search(r'<tr class="ne">.*?</tr>', made)[0]
    cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
    assert cells == ["1", " r1", "1001", "&ne;", " g1", "2001", "9.100"]


def test_a_difference_without_a_trail_shows_its_one_position():
    verdict = differs(40, {17})._replace(trail=())
    made = to_html(only(row_of(verdict)))
    assert '<tr class="ne"><th scope="row">17</th>' in made and "<figure" not in made


@pytest.mark.parametrize(
    "count, differing, spans",
    [
        (1, [0], [(0, 1, True)]),
        (2 * NEAR + 1, [NEAR], [(0, 2 * NEAR + 1, True)]),
        (2 * NEAR + 3, [NEAR + 1], [(0, 1, False), (1, 2 * NEAR + 2, True), (2 * NEAR + 2, 2 * NEAR + 3, False)]),
        (500, [200, 281], [(0, 160, False), (160, 322, True), (322, 500, False)]),
        (500, [100, 182], [(0, 60, False), (60, 141, True), (141, 142, False), (142, 223, True), (223, 500, False)]),
        (5, [], [(0, 5, False)]),
    ],
)
def test_positions_near_a_difference_are_shown_and_the_rest_folded(count, differing, spans):
    assert spans_of(count, differing) == [Span(*span) for span in spans]


def test_every_position_is_there_once_folded_or_not():
    made = to_html(only(row_of(differs(500, {0, 250, 499}))))
    positions = [int(at) for at in re.findall(r'<th scope="row">(\d+)</th>', made)]
    assert positions == list(range(500))
    assert made.count("<details>") == 2


def test_a_report_of_ten_thousand_rows_and_long_streams_stays_small():
    long = row_of(differs(5000, {17, 4000}), output_tokens=5000)
    wild = row_of(differs(5000, set(range(5000))), output_tokens=5000)
    rows = [identical_row := row_of(identical())] * 9990 + [long, wild, wild, wild, *[long] * 6]
    made = to_html(Report(rows, "Many", []))
    assert len(made) < 9e6
    lines = len(re.findall(r'<th scope="row">\d+</th>', made))
    assert 5000 < lines <= MAX_POSITIONS + 2 * NEAR + 1
    assert "the JSON form lists" in made
    made = to_html(Report([identical_row] * (MAX_ROWS + 3), "More", []))
    assert "3 more are not in this table: All 3 receipts are identical." in made


@pytest.mark.parametrize(
    "gaps, is_log, low, high",
    [
        ([1.0, 7.0], False, 0.0, 8.0),
        ([0.001, 0.02, 5.0], True, 0.001, 10.0),
        ([0.0, 3.0, math.inf], False, 0.0, 3.0),
        ([0.0], False, 0.0, 1.0),
        ([], False, 0.0, 1.0),
    ],
)
def test_the_scale_suits_the_gaps(gaps, is_log, low, high):
    scale = scale_of(gaps)
    assert (scale.is_log, scale.low, scale.high) == (is_log, pytest.approx(low), pytest.approx(high))
    heights = [scale.y(gap) for gap in sorted(gaps)]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("gap, text", [(0, "0.000"), (4.0, "4.000"), (0.0004, "4.0e-04")])
def test_gaps_are_told_as_the_verdict_tells_them(gap, text):
    assert gap_text(gap) == text


@pytest.mark.parametrize("gap", [math.inf, math.nan, 0.0, 5e-324, 3.4e38])
def test_any_gap_can_be_drawn(gap):
    trail = tuple(Place(1, "a", 2, "b", value) for value in (gap, 1.0, gap))
    made = to_html(only(row_of(Verdict(10, "DIFFERS", "so", 1, gap=gap, method="replay", trail=trail))))
    drawing = re.search(r"<svg viewBox.*?</svg>", made, re.DOTALL)[0]
    assert "nan" not in drawing and "inf" not in drawing.replace("infinite", "")
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d", drawing)]
    assert all(-10 <= number <= 720 for number in numbers)
