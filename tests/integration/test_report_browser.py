"""`report.html` as a real browser lays it out: on a desk, on a phone of 390 px, and printed."""

from __future__ import annotations

import html as escaping
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.report import evidence, html
from harness.verify import verify
from tests.unit import test_joint

EXAMPLE = Path(__file__).resolve().parents[2] / "evidence" / "example"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")

# Measures the page inside a frame and leaves what it found in the dumped document.
PROBE = """
const frame = document.getElementById("page"), page = frame.contentDocument, found = {};
const box = item => item.getBoundingClientRect();
found.width = page.documentElement.scrollWidth;
found.wide = [...page.querySelectorAll("body *")]
  .filter(item => !item.closest(".scroll") && !item.closest("svg") && !item.matches(".skip"))
  .filter(item => box(item).right > frame.clientWidth + 1).map(item => item.outerHTML.slice(0, 80));
found.cut = []; found.crowded = [];
for (const drawing of page.querySelectorAll("svg.chart")) {
  const texts = [...drawing.querySelectorAll("text")], edge = box(drawing);
  for (const text of texts)
    if (box(text).left < edge.left - 1 || box(text).right > edge.right + 1 || box(text).bottom > edge.bottom + 1)
      found.cut.push(`${text.textContent} in ${drawing.getAttribute("aria-label").slice(0, 60)}`);
  texts.forEach((one, number) => texts.slice(number + 1).forEach(two => {
    const a = box(one), b = box(two);
    if (a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom)
      found.crowded.push(`${one.textContent}|${two.textContent} in ${drawing.getAttribute("aria-label").slice(0, 60)}`);
  }));
}
found.reached = [...page.querySelectorAll("a, .scroll")].map(item => {
  item.focus();
  return page.activeElement === item && page.defaultView.getComputedStyle(item).outlineStyle !== "none"; });
found.first = page.querySelector("a").textContent;
found.drawings = page.querySelectorAll("svg.chart").length;
const out = document.createElement("pre"); out.id = "found"; out.textContent = JSON.stringify(found);
document.body.append(out);
"""


def chromium(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)


@pytest.fixture(scope="module")
def report() -> str:
    found = verify(EXAMPLE)
    assert found.verdict is not None
    return html.render(evidence.read(EXAMPLE, found.verdict, found.digest), [])


def measured(report: str, width: int, folder: Path) -> dict[str, Any]:
    """What PROBE finds in the report, laid out `width` px wide."""
    frame = (
        f'<iframe id="page" style="border:0;width:{width}px;height:900px" srcdoc="{escaping.escape(report)}"></iframe>'
    )
    script = f"<script>document.getElementById('page').onload = () => {{ {PROBE} }};</script>"
    path = folder / "frame.html"
    path.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{frame}{script}</body>')
    done = chromium("--dump-dom", "--virtual-time-budget=10000", f"--user-data-dir={folder / 'profile'}", path.as_uri())
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match is not None, done.stderr
    found: dict[str, Any] = json.loads(escaping.unescape(match[1]))
    return found


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_words_are_whole_and_the_keyboard_reaches_everything(
    report: str, width: int, tmp_path: Path
) -> None:
    found = measured(report, width, tmp_path)
    assert found["width"] <= width
    assert found["wide"] == []
    assert found["cut"] == []
    assert found["crowded"] == []
    assert found["drawings"] > 60
    assert found["first"] == "Skip to the content"
    assert found["reached"]
    assert all(found["reached"])


@pytest.mark.parametrize("width", [390, 1280])
def test_joined_campaigns_fit_and_are_reached_by_keyboard(width: int, tmp_path: Path) -> None:
    roots = [str(root) for root in test_joint.three(tmp_path / "evidence")]
    page = tmp_path / "joint.html"
    assert main(["report", "--join", *roots, "--html", str(page), "--markdown", str(tmp_path / "joint.md")]) == 0
    found = measured(page.read_text(), width, tmp_path)
    assert found["width"] <= width
    assert [found[name] for name in ("wide", "cut", "crowded")] == [[], [], []]
    assert found["drawings"] == 23 + 1  # an axis each, and the scale
    assert all(found["reached"])


def test_the_probe_sees_a_page_that_does_not_fit(tmp_path: Path) -> None:
    texts = '<text x="90" y="10">beyond the edge</text><text x="92" y="10">and over it</text>'
    drawing = f'<svg class="chart" aria-label="x" width="100" height="20">{texts}</svg>'
    bad = f'<!DOCTYPE html><a href="#x">s</a><p style="width:900px">wide</p>{drawing}'
    found = measured(bad, 390, tmp_path)
    assert found["width"] > 390
    assert all(found[name] for name in ("wide", "cut", "crowded"))


def test_it_prints_on_a_few_pages(report: str, tmp_path: Path) -> None:
    page, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    page.write_text(report)
    chromium(f"--print-to-pdf={printed}", f"--user-data-dir={tmp_path / 'profile'}", page.as_uri())
    data = printed.read_bytes()
    assert data.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", data)) <= 16
