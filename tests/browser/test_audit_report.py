"""The HTML report in a real browser: it renders, asks for nothing, runs nothing of a receipt's, fits a phone."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from receipts.report import Report, counts, to_html
from receipts.report.html_style import STYLE
from receipts.report.rows import word
from receipts.verify import Place, Verdict
from tests.browser.conftest import DARK
from tests.browser.png import colours
from tests.support.page import Page
from tests.support.sample_reports import differs, identical, row_of, sample_report

# A page around the report, as a reader's own tools would be: it measures, sorts and filters. Two widths at once.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><body><script>
function shown(list){return list.filter(function(node){return node.getClientRects().length}).length}
function light(colour){
 var part=colour.match(/[\\d.]+/g).slice(0,3).map(function(v){
 v/=255;return v<=.04045?v/12.92:Math.pow((v+.055)/1.055,2.4)});
 return .2126*part[0]+.7152*part[1]+.0722*part[2]}
function behind(view,node){
 for(;node;node=node.parentElement){var c=view.getComputedStyle(node).backgroundColor;if(!/, 0\\)$/.test(c))return c}}
function contrast(view,node){
 var a=light(view.getComputedStyle(node).color),b=light(behind(view,node));
 return (Math.max(a,b)+.05)/(Math.min(a,b)+.05)}
function measure(frame){
 var view=frame.contentWindow,doc=frame.contentDocument,all=function(s){return Array.from(doc.querySelectorAll(s))};
 var result={fits:doc.documentElement.scrollWidth<=doc.documentElement.clientWidth,background:
 view.getComputedStyle(doc.body).backgroundColor,scripts:all("script").length,images:all("img").length,
 plots:all(".plot .dots").map(function(p){return p.getBBox().width>100}),
 low:all("p,dt,dd,small,.badge,summary,a,th,td,caption,figcaption,code,.e,button,h1").filter(function(node){
 return node.getClientRects().length&&contrast(view,node)<4.5}).map(function(node){return node.outerHTML.slice(0,80)})};
 result.alone=doc.scripts.length&&view.hostile===undefined;
 var rows=function(){return Array.from(doc.querySelectorAll("#verdicts tbody tr"))};
 result.rows=shown(rows());result.first=rows()[0].textContent;
 var box=doc.querySelector("input"),pick=doc.querySelector("select");
 box.value="OUTPUT_digest";box.dispatchEvent(new Event("input"));result.filtered=shown(rows());
 result.said=doc.querySelector("[role=status]").textContent;
 box.value="";box.dispatchEvent(new Event("input"));
 pick.value="v-DIFFERS";pick.dispatchEvent(new Event("change"));result.picked=shown(rows());
 pick.value="";pick.dispatchEvent(new Event("change"));
 var buttons=all("thead button"),files=function(){return rows().map(function(row){return row.cells[0].textContent})};
 buttons[0].click();result.up=files();result.sorted=doc.querySelector("thead th").getAttribute("aria-sort");
 buttons[0].click();result.down=files();
 return result}
window.onload=function(){
 var results=Array.from(document.querySelectorAll("iframe")).map(measure);
 var node=document.createElement("pre");node.id="results";node.textContent=JSON.stringify(results);
 document.body.appendChild(node)};
</script>
<iframe src="/report.html" width="390" height="800"></iframe>
<iframe src="/report.html" width="1280" height="800"></iframe>
"""

# The same without scripts inside, and told as a reader sees it.
QUIET = """<!DOCTYPE html><meta charset="utf-8"><body><script>
window.onload=function(){
 var doc=document.querySelector("iframe").contentDocument,all=function(s){return doc.querySelectorAll(s)};
 var shown=function(s){return Array.from(all(s)).filter(function(node){return node.getClientRects().length}).length};
 var node=document.createElement("pre");node.id="results";
 node.textContent=JSON.stringify({tools:all("button,input,select").length,rows:shown("#verdicts tbody tr"),
 marked:shown(".tokens .ne"),text:doc.body.innerText});
 document.body.appendChild(node)};
</script>
<iframe sandbox="allow-same-origin" src="/report.html" width="1280" height="800"></iframe>
"""

# Many rows are laid out in groups; a filter leaves no empty group standing.
GROUPS = """<!DOCTYPE html><meta charset="utf-8"><body><script>
window.onload=function(){
 var doc=document.querySelector("iframe").contentDocument,pick=doc.querySelector("select");
 var bodies=doc.querySelectorAll("tbody");
 var tall=function(){return Array.from(bodies).filter(function(body){return body.getClientRects().length}).length};
 var heights=[tall()];
 ["v-DIFFERS",""].forEach(function(kind){
 pick.value=kind;pick.dispatchEvent(new Event("change"));heights.push(tall())});
 var node=document.createElement("pre");node.id="results";node.textContent=JSON.stringify(heights);
 document.body.appendChild(node)};
</script>
<iframe src="/report.html" width="1280" height="800"></iframe>
"""


@pytest.fixture
def report(site):
    """The sample report, and one more receipt whose every text wants to run, and to call home."""
    calls = f"</title></style></script><img src='{site.url}/leak.png' onerror='hostile=1'><script>hostile=1</script>"
    place = Place(1, calls, 2, calls, 0.5)
    verdict = Verdict(10, calls, calls, 1, notes=(calls,), method="replay", signature=calls, trail=(place, place))
    sample = sample_report()
    rows = [*sample.rows, row_of(verdict, calls, model=calls, receipt_id=calls)]
    report = Report(rows, calls, [*sample.facts, (calls, calls)])
    site.pages["/report.html"] = to_html(report).encode()
    return report


def test_the_traps_work(browser, site):
    """What the other tests see nothing of is seen where it is: a request, a word on the console."""
    site.pages["/report.html"] = b"<img src=/leak.png><script>console.error('loud')</script>"
    seen = browser.dom(f"{site.url}/report.html")
    assert "/leak.png" in site.asked
    assert any("loud" in line for line in seen.console)


def test_it_asks_for_nothing_and_runs_nothing(browser, site, report):
    seen = browser.dom(f"{site.url}/report.html")
    assert [path for path in site.asked if path != "/favicon.ico"] == ["/report.html"]
    assert seen.console == []
    page = Page(re.sub("<!DOCTYPE html>", "", seen.output))
    assert len(page.all("script")) == 1 and page.all("img") == []
    assert len(page.all("tr")) > len(report.rows)
    assert "/leak.png' onerror='hostile=1'>" in page.text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_width_and_its_tools_work(browser, site, report, scheme):
    site.pages["/probe.html"] = PROBE.encode()
    seen = browser.dom(f"{site.url}/probe.html", "--window-size=1800,1000", *([DARK] if scheme == "dark" else []))
    assert seen.console == []
    for result in results_of(seen):
        check_measures(result, report, scheme)
    assert [path for path in site.asked if path.endswith("png")] == []


def results_of(seen):
    text = re.search(r'<pre id="results">(.*?)</pre>', seen.output, re.DOTALL)[1]
    return json.loads(unescape(text))


def check_measures(result, report, scheme):
    assert result["fits"], "wider than the window"
    assert result["alone"] and (result["scripts"], result["images"]) == (1, 0)
    assert result["low"] == [], "too little contrast"
    assert result["background"] == {"light": "rgb(250, 249, 246)", "dark": "rgb(23, 23, 21)"}[scheme]
    assert result["plots"] == [True] * 3
    assert result["rows"] == len(report.rows)
    assert "SIGNATURE" in result["first"]
    assert (result["filtered"], result["said"]) == (1, f"1 of {len(report.rows)} shown")
    assert result["picked"] == counts(report.rows)["DIFFERS"]
    assert result["sorted"] == "ascending"
    assert result["up"] == sorted(result["up"], key=str.lower) and result["down"] != result["up"]
    assert sorted(result["down"]) == sorted(result["up"])


def test_it_reads_the_same_without_script(browser, site, report):
    site.pages["/quiet.html"] = QUIET.encode()
    seen = browser.dom(f"{site.url}/quiet.html", "--window-size=1400,1000")
    result = results_of(seen)
    assert result["tools"] == 0
    assert result["rows"] == len(report.rows) and result["marked"] == 5
    for row in report.rows[:11]:
        assert row.file in result["text"] and word(row.verdict).replace("_", " ") in result["text"]


def test_a_filter_leaves_no_empty_group(browser, site):
    verdict = differs(3, {1})._replace(trail=())
    rows = [row_of(verdict), *[row_of(identical())] * 250]
    site.pages["/report.html"] = to_html(Report(rows, "Many", [])).encode()
    site.pages["/groups.html"] = GROUPS.encode()
    # The tables of tokens have a body too: one.
    assert results_of(browser.dom(f"{site.url}/groups.html")) == [3 + 1, 1 + 1, 3 + 1]


@pytest.mark.parametrize("width, height, scheme", [(390, 760, "light"), (1024, 500, "dark")])
def test_the_picture_shows_it(browser, site, width, height, scheme):
    site.pages["/report.html"] = to_html(sample_report()).encode()
    options = [DARK] if scheme == "dark" else []
    data, seen = browser.picture(f"{site.url}/report.html", width, height, *options)
    assert seen.console == []
    wide, high, found = colours(data)
    assert (wide, high) == (width, height)
    pixels = {name: found[colour] for name, colour in palette(scheme).items()}
    assert pixels["bg"] == max(found.values()) < 0.97 * width * height
    assert pixels["ink"] > 500, "no text"
    assert pixels["ok"] > 100 and pixels["bad"] > 100, "no bar"


def palette(scheme):
    """The style's colours by name, three bytes each."""
    part = STYLE.split("dark){")[scheme == "dark"].split("}")[0]
    return {name: bytes.fromhex(code) for name, code in re.findall(r"--(\w+):#([0-9a-f]{6})\b", part)}


def test_it_prints(browser, site, report, tmp_path):
    path = tmp_path / "report.pdf"
    browser(f"--print-to-pdf={path}", f"{site.url}/report.html")
    assert path.read_bytes().startswith(b"%PDF") and path.stat().st_size > 20_000
