"""Times the HTML report on this machine: making it against the page, opening it, and its frames.

    python benchmarks/run_html.py

Reports are made of a real one by make_report.py. Chromium opens each file without a window; it is driven by playwright
(extra ``dev``), and the environment variable CHROMIUM names it where it is not on the path. Opening is from the
navigation to the first picture. Frames are those of one way through the timeline: along it with half of it in view, in
to a thousandth, along there, and out; the time between two of them is what a person sees, the time to draw one is the
script's part of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from run import HERE, Command, Cost, FailedError, aligned, machine, markdown, measured

ROOT: Final = HERE.parent

#: Copies of the sample's events: 120,000 kernels and 290,000 calls, and 1,000,000 of both together.
_COPIES: Final = (124, 302)

_MEGABYTE: Final = 10**6

#: Seconds after which a command is not started again.
_PATIENCE_S: Final = 120

#: Told by the page when its picture is drawn, in ms since the navigation.
_READY: Final = """
new MutationObserver((changes, observer) => {
  if (document.querySelector("#timeline[data-ready=yes]")) {
    window.readyAfter = performance.now();
    observer.disconnect();
  }
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-ready"] });
"""

#: Frames of a way through the timeline: between two of them, and drawing, in ms.
_FRAMES: Final = """
() => new Promise((resolve) => {
  const t = window.kanalyzeTimeline, between = [], drawing = [];
  const whole = t.length, middle = whole * 0.6;
  let at = 0, before;
  const step = (now) => {
    if (before !== undefined) between.push(now - before);
    before = now;
    if (at > 0) drawing.push(t.frame);
    if (at === 240) return resolve([between, drawing]);
    const inwards = 0.5 * 0.002 ** ((at - 60) / 60), outwards = 0.001 ** ((240 - at) / 60);
    const part = at < 60 ? 0.5 : at < 120 ? inwards : at < 180 ? 0.001 : outwards;
    const along = at < 120 ? 0 : Math.min(at - 120, 60) * 0.2 * 0.001 * whole;
    const inside = Math.max(Math.min(middle + along - (whole * part) / 2, whole * (1 - part)), 0);
    const low = at < 60 ? (0.5 * whole * at) / 60 : inside;
    t.view(low, low + whole * part);
    at += 1;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""


class Opened(NamedTuple):
    """Times of a browser: to the first picture (s), between frames and to draw one (ms, sorted)."""

    ready_s: float
    between_ms: list[float]
    drawing_ms: list[float]


def main() -> None:
    """Time each size, and print two tables."""
    parser = argparse.ArgumentParser(description="Time the HTML report: making, opening, frames.")
    parser.add_argument("--copies", type=int, nargs="*", default=_COPIES, help="sizes (default: 124 302)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    made, opened = [["kernels", "page", "CPU", "html", "CPU", "ratio", "of CPU", "file"]], [_HEADS]
    with tempfile.TemporaryDirectory() as scratch:
        for copies in options.copies:
            report, page = Path(scratch) / f"{copies}.sqlite", Path(scratch) / f"{copies}.html"
            source = ROOT / "tests" / "reports" / "torch.sqlite"
            command = [sys.executable, str(HERE / "make_report.py"), str(source), str(report), "--copies", str(copies)]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            kernels = next(line.split()[0] for line in told.splitlines() if "KIND_KERNEL" in line)
            commands = [
                Command("page", [sys.executable, "-m", "kanalyze", "summarize", str(report)]),
                Command("html", [sys.executable, "-m", "kanalyze", "html", str(report), "-o", str(page)]),
            ]
            made.append([kernels, *_costs(measured(commands, report, options.runs, _PATIENCE_S))])
            made[-1].append(f"{page.stat().st_size / _MEGABYTE:.2f} MB")
            opened += _rows(kernels, page, options.runs)
    print(machine())
    for rows in (made, opened):
        print()
        print("\n".join(markdown(rows) if options.markdown else aligned(rows)))


_HEADS: Final = [
    "kernels",
    "open, best",
    "open, worst",
    "frame, median",
    "frame, 95 %",
    "drawing, 95 %",
    "drawing, most",
]


def _costs(found: list[tuple[str, Cost | FailedError]]) -> list[str]:
    """Wall and CPU time of page and file, and the ratios of these."""
    page, html = (cost for _, cost in found)
    if isinstance(page, FailedError) or isinstance(html, FailedError):
        raise SystemExit(f"{page}\n{html}")
    times = [page.wall_s, page.cpu_s, html.wall_s, html.cpu_s]
    ratios = [html.wall_s / page.wall_s, html.cpu_s / page.cpu_s]
    return [*(f"{seconds:.2f} s" for seconds in times), *(f"{ratio:.2f}" for ratio in ratios)]


def _rows(kernels: str, page: Path, runs: int) -> list[list[str]]:
    found = _opened(page, runs)
    if not found:
        return []
    between = sorted(ms for one in found for ms in one.between_ms)
    drawing = sorted(ms for one in found for ms in one.drawing_ms)
    ready = sorted(one.ready_s for one in found)
    late = int(len(between) * 0.95)
    times = [statistics.median(between), between[late], drawing[int(len(drawing) * 0.95)], drawing[-1]]
    return [[kernels, f"{ready[0]:.2f} s", f"{ready[-1]:.2f} s", *(f"{ms:.1f} ms" for ms in times)]]


def _opened(page: Path, runs: int) -> list[Opened]:
    """Times to open a file, in a new browser each time; none without a browser."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        print("opening is left out: playwright is not installed", file=sys.stderr)
        return []
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        return [_once(playwright, program, page) for _ in range(runs)]


def _once(playwright: Any, program: str | None, page: Path) -> Opened:  # noqa: ANN401 - an extra
    browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    shown = browser.new_page(viewport={"width": 1280, "height": 900})
    shown.add_init_script(_READY)
    shown.goto(page.as_uri())
    shown.wait_for_function("window.readyAfter !== undefined", timeout=120_000)
    ready = shown.evaluate("window.readyAfter") / 1000
    between, drawing = shown.evaluate(_FRAMES)
    browser.close()
    return Opened(ready, sorted(between), sorted(drawing))


if __name__ == "__main__":
    main()
