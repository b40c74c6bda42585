"""What a person is shown, without a JVM: numbers with units, lines of a terminal, the page in Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.page import numbers as n
from spark.page.document import POLICY, document
from spark.page.plots import logarithmic, runs, strip, times
from spark.page.text import text
from tests.spark.report_sample import EMPTY, MINUTE, NASTY, NOON, book, full, nasty


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (n.count(0), "0"),
        (n.count(99_999), "99,999"),
        (n.count(1_234_567), "1.23 M"),
        (n.count(0.25), "0.25"),
        (n.size(999), "999 B"),
        (n.size(1_500), "1.5 kB"),
        (n.size(999_950), "1 MB"),
        (n.microseconds(0), "0 µs"),
        (n.microseconds(850), "850 µs"),
        (n.microseconds(1_234), "1.23 ms"),
        (n.microseconds(90_000_000), "1 min 30 s"),
        (n.milliseconds(0), "0 ms"),
        (n.milliseconds(-5_000), "−5 s"),
        (n.seconds(7_500), "2 h 5 min"),
        (n.seconds(90_000), "1 d 1 h"),
        (n.percent(0.5), "50 %"),
        (n.percent(0.000001), "under 0.01 %"),
        (n.percent(None), n.NOTHING),
        (n.rate(2.5), "2.5/s"),
        (n.name("a\nb"), "a\\u000ab"),
        (n.name("x" * 100, 11), "xxxxx…xxxxx"),
        (n.name("\u202etxt\x9b"), "\\u202etxt\\u009b"),
    ],
)
def test_numbers_have_units(shown: str, wanted: str) -> None:
    assert shown == wanted


@given(st.floats(1e-6, 1e15))
def test_an_axis_reaches_what_it_shows(top: float) -> None:
    ticks = n.ticks(top)
    assert ticks[0] == 0 and ticks[-1] >= top * 0.999
    assert 2 <= len(ticks) <= 7


@given(st.floats(1, 1e9), st.floats(1, 1e9))
def test_a_logarithmic_axis_holds_both_ends(one: float, other: float) -> None:
    scale = logarithmic(min(one, other), max(one, other))
    assert -1e-6 <= scale.at(min(one, other)) <= scale.at(max(one, other)) <= 1 + 1e-6


def test_lines_break_where_nothing_is_known() -> None:
    assert runs([1, None, 2, 3, None]) == [[(0, 1)], [(2, 2), (3, 3)]]


def test_times_are_few_and_in_order() -> None:
    found = times([NOON + at * MINUTE for at in range(180)])
    assert [label for _, label in found] == ["12:00", "12:30", "13:00", "13:30", "14:00", "14:30"]


def test_a_hole_is_wide_enough_to_be_seen() -> None:
    assert "width:0.500%" in strip(0, 10**9, [(5, 5)], "")
    assert "left:99.500%" in strip(0, 10**9, [(10**9 - 1, 10**9 - 1)], "")


def test_text() -> None:
    lines = text(full(audit=[book("messages", (120, 129)), book("events")]))
    assert "10,000 messages, 812 kB of payload, 240 topics, 17 publishers" in lines
    assert "Audit: FAILED" in lines and "10 offsets missing; missing: 120-129" in lines
    assert re.search(r"plant/line/1 +5,300 +53 % +400 kB", lines)
    assert re.search(r"delivered +0 +40 +800 µs +4 ms +52 ms", lines)
    assert max(map(len, lines.splitlines())) <= 110


def test_text_of_nothing() -> None:
    assert text(EMPTY) == "Report: nothing yet\n\nAudit: nothing to audit\n\nNo messages in this period.\n"


class Words(HTMLParser):
    """The words of a page, and everything that would make a request or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.outside: list[str] = []
        self.tags: list[tuple[str, str]] = []
        self.titles: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            self.tags.append((tag, name))
            if name == "title":
                self.titles.add((value or "").partition(": 99,999")[0])
            if name in ("src", "href", "srcset", "data", "action") and value != "data:,":
                self.outside.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.outside.append(f"{tag} {name}")
        if tag in ("script", "iframe", "object", "embed"):
            self.outside.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("report", [full(), nasty(), EMPTY], ids=["full", "nasty", "empty"])
def test_the_page_asks_for_nothing_and_runs_nothing(report: dict[str, Any]) -> None:
    page = document(report)
    assert Words(page).outside == []
    assert not re.search(r"url\(|@import|https?:", page)


def test_the_figures_are_in_the_page() -> None:
    words = " ".join(Words(document(full(audit=[book("messages", (1_200, 1_290)), book("events")]))).words)
    for figure in (
        "10,000",
        "812 kB",
        "Audit failed",
        "91 offsets missing",
        "Missing: 1,200–1,290",
        "balanced",
    ):
        assert figure in words
    for figure in ("plant/line/1", "5,300 · 53 %", "queue full", "line: not JSON", "11 min 40 s", "52 ms"):
        assert figure in words


def test_a_page_of_nothing_says_so_in_each_place() -> None:
    page = document(EMPTY)
    assert page.count('class="empty"') == 10
    assert "No messages in this period" in page and "nan" not in page.lower().replace("finan", "")


CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
)


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "no Chromium: run tests/install.sh"
    return found


def seen(
    chromium: str, folder: Path, page: str, width: int, dark: bool = False
) -> tuple[dict[str, Any], list[str], list[str]]:
    """What a probe in the page measured at *width*; the console; what was asked of the page's own server.

    In a frame, for no window is narrower than 500.
    """
    asked: list[str] = []
    style = f"border:0;width:{width}px;height:1400px"
    frame = f'<link rel="icon" href="data:,"><body style="margin:0"><iframe src="page" style="{style}">'
    shown = {"/": frame, "/page": page.replace("</main>", f"</main><script>{PROBE}</script>")}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(shown.get(self.path, "").encode())

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        flags = [f"--user-data-dir={folder / 'profile'}", f"--window-size={max(width, 500)},1500"]
        flags += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom"]
        command = [chromium, *CHROMIUM, *flags, f"http://127.0.0.1:{server.server_port}/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        server.shutdown()
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    console = re.findall(r".*CONSOLE.*", done.stderr)
    return json.loads(unescape(found[1])) if found else {}, console, [path for path in asked if path != "/"]


PROBE = """
const wide = document.documentElement.clientWidth, all = query => [...document.querySelectorAll(query)];
const box = e => e.getBoundingClientRect(), said = e => e.className + ': ' + e.textContent.slice(0, 40);
const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT), texts = [];
while (walker.nextNode()) {
  const node = walker.currentNode, e = node.parentElement;
  if (!node.data.trim() || !e.offsetWidth || e.closest('.tip,.strip,svg')) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const cut = e.closest('.name,td:first-child'), r = range.getBoundingClientRect();
  const edge = cut ? Math.min(r.right, box(cut).right) : r.right;
  texts.push({e, left: r.left, right: edge, top: r.top, bottom: r.bottom});
}
const aside = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 3, ROOM = '.card,.fact,header,footer';
const apart = (a, b) => aside(a, b) || aside(b, a);
const over = [];
texts.forEach((a, n) => texts.slice(n + 1).forEach(b => {
  if (!apart(a, b)) over.push(said(a.e) + ' | ' + said(b.e));
}));
const light = color => {
  const of = color.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255);
  const [r, g, b] = of.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const back = e => {
  const color = getComputedStyle(e).backgroundColor;
  return color.startsWith('rgba(0, 0, 0, 0') ? back(e.parentElement) : color;
};
const contrast = e => {
  const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
  return (a + .05) / (b + .05);
};
const beyond = e => box(e).right > wide + 1 && !e.closest('.tip,.strip') && !e.closest('td:first-child');
const pre = document.createElement('pre');
pre.id = 'probe';
pre.textContent = JSON.stringify({
  over: document.documentElement.scrollWidth - wide,
  out: all('main *').filter(beyond).slice(0, 5).map(said),
  scrolled: all('.scroll').filter(e => e.scrollWidth > e.clientWidth + 1).map(said),
  cut: texts.filter(t => t.right > box(t.e.closest(ROOM)).right + 1).map(t => said(t.e)),
  narrow: all('td:first-child,.bar .name').filter(e => box(e).width < 80).map(said),
  overlapping: over.slice(0, 5), texts: texts.length,
  plots: all('.field').map(e => [Math.round(box(e).width), Math.round(box(e).height)]),
  shapes: all('svg polygon').length,
  small: Math.min(...all('.tick,.time').map(e => parseFloat(getComputedStyle(e).fontSize))),
  contrast: Math.min(...texts.map(t => contrast(t.e))), page: light(back(document.body)),
  scripts: document.scripts.length, tables: all('table').length,
});
parent.document.body.append(pre);
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_in_chromium(chromium: str, tmp_path: Path, width: int, dark: bool) -> None:
    """No request leaves it, nothing is complained of, nothing is cut or lies on something else.

    The names are nasty at one width in each color, and as usual at the other.
    """
    page = document(nasty() if dark == (width == 400) else full())
    assert page.count(POLICY) == 1
    page = page.replace(POLICY, "")  # the probe is a script
    found, console, asked = seen(chromium, tmp_path, page, width, dark)
    assert (console, asked) == ([], ["/page"])
    assert found["over"] <= 0
    for wrong in ("out", "scrolled", "cut", "narrow", "overlapping"):
        assert found[wrong] == [], wrong
    assert (found["scripts"], found["tables"]) == (1, 4)
    assert found["shapes"] >= 3 and found["small"] >= 12 and found["texts"] > 60
    assert len(found["plots"]) == 3 and all(wide > 200 and high > 150 for wide, high in found["plots"])
    assert found["contrast"] > 4.5 and (found["page"] < 0.1) == dark


def test_the_browser_holds_the_page_to_its_policy(chromium: str, tmp_path: Path) -> None:
    found, console, _ = seen(chromium, tmp_path, document(EMPTY), 800)
    assert found == {} and len(console) == 1 and "script" in console[0]  # the probe, and nothing else
    page = document(EMPTY).replace(POLICY, "").replace("</main>", '<img src="/more"></main>', 1)
    _, _, asked = seen(chromium, tmp_path, page, 800)
    assert asked == ["/page", "/more"]  # so a request would be seen


def test_nasty_names_are_text_in_the_page() -> None:
    """All of each, up to 200 characters, and no tag, attribute or reference more than there was."""
    page = document(nasty())
    words = Words(page)
    plain = Words(document(full()))
    assert {tag for tag, _ in words.tags} == {tag for tag, _ in plain.tags}
    assert {name for _, name in words.tags} == {name for _, name in plain.tags}
    for name in NASTY:
        assert n.name(name, 200) in words.titles
    assert len(page) < 400_000  # however long a name is
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x80-\x9f]", page)


def test_nasty_names_are_whole_in_json() -> None:
    from spark.report import written

    shown = written(nasty(), "json")
    assert shown.isascii()
    assert [row["name"] for row in json.loads(shown)["top"]["topic"]] == list(NASTY)


def test_nasty_names_keep_the_lines_of_a_terminal() -> None:
    """And they do not steer it."""
    shown = text(nasty())
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202a-\u202e]", shown)
    assert max(map(len, shown.splitlines())) <= 260
