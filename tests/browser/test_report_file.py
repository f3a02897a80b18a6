"""The HTML report in a browser: a person's way through it, and what it must never do."""

import json
import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.idle.ledger import ledger
from support.command import REPORTS, SAMPLES, html_of
from support.hostile import WHOLE
from support.real_reports import real_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

MLP = SAMPLES / "mlp_train"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Shown:
    """A report that is open in the browser, and what the browser said."""

    def __init__(self, browser, path, address="", **look):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | look))
        self.page = self.context.new_page()
        self.said, self.requests = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(Path(path).as_uri() + (f"#{address}" if address else ""))
        self.page.wait_for_selector("#timeline[data-ready=yes]", state="attached", timeout=60_000)

    def tell(self, expression):
        return self.page.evaluate(expression)

    @property
    def status(self):
        return self.page.text_content("#timeline [data-role=status]")

    @property
    def details(self):
        return self.page.text_content("[data-role=details]")


@pytest.fixture
def opened(browser):
    """Opens a report; at the end of the test the browser has said nothing."""
    pages = []

    def shown(path, address="", **look):
        pages.append(Shown(browser, path, address, **look))
        return pages[-1]

    yield shown
    for page in pages:
        assert page.said == []
        page.context.close()


@pytest.fixture
def html(tmp_path):
    def made(report):
        html_of(tmp_path, report)
        return tmp_path / "report.html"

    return made


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("html")
    html_of(folder, MLP)
    return folder / "report.html"


@pytest.fixture
def shown(opened, mlp):
    found = opened(mlp)
    yield found
    assert found.requests == [mlp.as_uri()]


def drag(shown, low, high, *keys):
    """Drags over the canvas between two shares of its width."""
    shown.page.locator("#timeline").scroll_into_view_if_needed()
    box = shown.page.locator("#timeline canvas").bounding_box()
    for key in keys:
        shown.page.keyboard.down(key)
    at = [box["x"] + share * box["width"] for share in (low, high)]
    shown.page.mouse.move(at[0], box["y"] + 60)
    shown.page.mouse.down()
    shown.page.mouse.move(at[1], box["y"] + 60, steps=4)
    shown.page.mouse.up()
    for key in keys:
        shown.page.keyboard.up(key)


def test_search_finds_and_goes_to_each(shown):
    field = shown.page.locator("#timeline input[type=search]")
    field.fill("gemm")
    events = int(re.match(r"[\d,]+", shown.status)[0].replace(",", ""))
    names = [*real_report(MLP / "nsys.sqlite").kind("kernel")["name"].cast(str)]
    assert events >= sum("gemm" in name for name in names)
    field.press("Enter")
    assert shown.status.startswith("1 of")
    assert "gemm" in shown.details
    field.fill("no such name")
    assert shown.status == "Nothing found."


def test_search_goes_to_what_ran_on_a_gpu_first(shown):
    shown.page.locator("#timeline input[type=search]").fill("e")
    kind_of = "(at) => kanalyzeTimeline.data.head.tracks[kanalyzeTimeline.laneOf(at).track].kind"
    kinds = shown.tell(f"kanalyzeTimeline.matches.map({kind_of})")
    first = kinds.count("stream")
    assert 0 < first < len(kinds)
    assert {*kinds[:first]} == {"stream"}


def test_names_are_short_until_they_unfold_and_are_found_whole(shown):
    cell = shown.page.locator("#hot_kernels td[data-other]").first
    short, whole = cell.text_content(), cell.get_attribute("data-other")
    assert len(short) <= 72 < len(whole)
    shown.page.locator("#hot_kernels input[type=search]").fill(whole)
    assert shown.page.locator("#hot_kernels tbody tr:visible").count() == 1
    cell.click()
    assert (cell.text_content(), cell.get_attribute("data-other")) == (whole, short)
    labels = shown.tell("Object.entries(kanalyzeTimeline.data.head.short)")
    assert labels
    assert all(len(text) <= 60 for _, text in labels)


def test_a_finding_has_its_explanation_and_sections_that_repeat_are_folded(shown):
    explained = shown.page.locator("#first details").first
    assert not explained.locator("pre").is_visible()
    explained.locator("summary").click()
    assert "Found when:" in explained.locator("pre").text_content()
    table = shown.page.locator("#ledger table")
    assert not table.is_visible()
    shown.page.click("nav a[href='#ledger']")
    assert table.is_visible()
    shown.page.locator("summary", has_text="What these words mean").click()
    assert "Idle time" in shown.page.locator("summary + dl").text_content()


def test_zoom_and_pan_by_wheel_keys_and_buttons(shown):
    def length():
        return shown.tell("kanalyzeTimeline.high - kanalyzeTimeline.low")

    whole = length()
    shown.page.click("button[data-act=in]")
    assert length() == pytest.approx(whole / 2)
    shown.page.locator("#timeline canvas").focus()
    shown.page.keyboard.press("w")
    assert length() == pytest.approx(whole / 2 * 0.7)
    before = shown.tell("kanalyzeTimeline.low")
    shown.page.keyboard.press("d")
    assert shown.tell("kanalyzeTimeline.low") > before
    drag(shown, 0.5, 0.7)
    assert shown.tell("kanalyzeTimeline.low") < before + length()
    shown.page.keyboard.press("0")
    assert length() == shown.tell("kanalyzeTimeline.length")


def test_a_selection_has_the_ledger_of_its_window(shown):
    shown.page.click("#first button[data-window]")
    drag(shown, 0.3, 0.8, "Shift")
    window = re.search(r"--window '(.*?)'", shown.details)[1]
    told = shown.tell(
        "[...document.querySelectorAll('[data-role=details] table[data-track=\"GPU 0, ledger\"] tr[data-ns]')]"
        ".map((row) => [row.lastChild.textContent, Number(row.dataset.ns)])"
    )
    low, high = (int(side.removesuffix("ns")) for side in window.split(".."))
    found = ledger(real_report(MLP / "nsys.sqlite"), window=window).group_by("bucket").agg(pl.col("ns").sum())
    expected = {str(bucket): ns for bucket, ns in found.iter_rows() if ns}
    assert dict(told) == expected
    assert sum(expected.values()) == high - low


def test_a_click_tells_an_operation_and_its_launch(shown):
    at = shown.tell(
        "(() => { const at = kanalyzeTimeline.data.launch.findIndex(Boolean); kanalyzeTimeline.go(at); return at; })()"
    )
    assert "launched by" in shown.details
    shown.page.get_by_role("button", name="Go to its launch").click()
    assert shown.tell("kanalyzeTimeline.chosen") == shown.tell(f"kanalyzeTimeline.data.launch[{at}] - 1")
    shown.page.get_by_role("button", name="Go to what it launched").click()
    assert shown.tell(f"kanalyzeTimeline.data.launch[kanalyzeTimeline.chosen] === kanalyzeTimeline.data.launch[{at}]")


def test_a_finding_leads_to_its_place_and_its_evidence(shown):
    shown.page.click("#first button[data-find]")
    assert "found" in shown.status
    assert shown.tell("kanalyzeTimeline.high - kanalyzeTimeline.low") < shown.tell("kanalyzeTimeline.length") / 10
    shown.page.click("#first a >> nth=0")
    assert shown.tell("scrollY") > 0
    assert shown.tell("document.activeElement.matches('section.table')")


def test_tables_sort_and_filter(shown):
    table = shown.page.locator("section#hot_kernels")
    head = table.locator("th button", has_text=re.compile("^count$"))
    head.click()
    column = (
        "(() => { const cells = [...document.querySelectorAll('#hot_kernels th')];"
        " const at = cells.findIndex((one) => one.textContent === 'count');"
        " return [...document.querySelectorAll('#hot_kernels tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => Number(row.cells[at].dataset.v)); })()"
    )
    falling = shown.tell(column)
    assert falling == sorted(falling, reverse=True)
    head.click()
    assert shown.tell(column) == sorted(falling)
    table.locator("input[type=search]").fill("reduce")
    assert 0 < len(shown.tell(column)) < len(falling)


def test_ranks_begin_on_one_clock(opened, html):
    found = opened(html(SAMPLES / "ddp_late"))
    begins = found.tell(
        """(() => {
          const {head, start, name} = kanalyzeTimeline.data;
          const first = (rank) => {
            const fits = ({group, kind}) => group.startsWith(rank) && kind === "range";
            for (const lane of head.lanes.filter((one) => fits(head.tracks[one.track])))
              for (let at = lane.at; at < lane.stop; at++)
                if (head.texts[name[at]] === "ProfilerStep#12") return start[at];
          };
          return [first("rank 0"), first("rank 1")];
        })()"""
    )
    assert abs(begins[0] - begins[1]) < 1_000_000
    assert found.tell("[...kanalyzeTimeline.folded].every((group) => group.includes('thread'))")


def test_the_call_tree_zooms_and_turns_inside_out(opened, html):
    found = opened(html(SAMPLES / "ddp_late" / "rank0.json.gz"))
    boxes = found.page.locator("#flame .box")
    before = boxes.count()
    forward = found.page.locator("#flame .box", has_text=re.compile("^forward$")).first
    forward.click()
    assert "forward: " in found.page.text_content("#flame [role=status]")
    assert forward.evaluate("(box) => box.style.width") == "100%"
    boxes.first.click()
    assert boxes.count() == before
    found.page.check("#flame input[type=checkbox]")
    assert boxes.nth(1).get_attribute("class") == "box kind-kernel"
    sums = found.tell(
        """(() => {
          const data = JSON.parse(document.getElementById("flame-data").textContent);
          return Object.values(data).map((rows) => {
            const tree = flame.linked(rows), turned = flame.inverted(tree);
            return [tree.ns, turned.inside.reduce((sum, one) => sum + one.ns, 0)];
          });
        })()"""
    )
    assert sums[0][0] == sums[0][1] > 0


def test_the_time_that_a_gpu_waited_is_told_by_stacks(opened, html):
    found = opened(html(REPORTS / "sampled_lock.sqlite"))
    whole = found.page.text_content("#waiting-flame select")
    assert whole == "GPU 0: 99.36 ms"
    boxes = found.page.locator("#waiting-flame .box")
    assert boxes.first.get_attribute("title") == "all\n99.36 ms, 100.0 %"
    boxes.filter(has_text="update_table() in host").click()
    assert found.page.text_content("#waiting-flame [role=status]") == "update_table() in host: 98.06 ms, 98.7 %"
    found.page.check("#waiting-flame input[type=checkbox]")
    assert boxes.nth(1).text_content() == "blocked in pthread_mutex_lock (lock: holder(void*) in thread 1100)"
    assert found.page.locator("#flame").count() == 0


def trace_of(tmp_path, events, **gpu):
    whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": gpu}], "traceEvents": events}
    (tmp_path / "trace.json").write_text(json.dumps(whole))
    html_of(tmp_path, tmp_path / "trace.json")
    return tmp_path / "report.html"


def annotation(name, start_us, dur_us, cat="user_annotation", **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": start_us, "dur": dur_us, "pid": 1, "tid": 1, "args": args}


def device_kernel(at, name, start_us, dur_us):
    args = {"device": 0, "stream": 7, "correlation": at}
    return annotation(name, start_us, dur_us, "kernel") | {"pid": 0, "tid": 7, "args": args}


def test_hostile_names_are_text(opened, tmp_path):
    events = [device_kernel(at, text, 10 * at, 5) for at, text in enumerate(WHOLE)]
    events += [annotation(text, 10 * at, 9) for at, text in enumerate(WHOLE)]
    calls = range(len(WHOLE))
    events += [annotation("cudaLaunchKernel", 10 * at, 1, "cuda_runtime", correlation=at) for at in calls]
    found = opened(trace_of(tmp_path, events, name=WHOLE[4]))
    found.page.locator("#timeline canvas").focus()
    for _ in range(len(WHOLE)):
        found.page.keyboard.press("n")
    found.page.keyboard.press("v")
    assert found.tell("document.querySelectorAll('script:not([type])').length") == 1
    assert found.tell("document.querySelectorAll('img').length") == 0


def test_what_is_chosen_is_scrolled_to_and_far_times_are_drawn(opened, tmp_path):
    """Deep nesting and a time far from all others; every zoom ends."""
    deep = [annotation(f"deep {at}", 1.7e15 + at, 200 - 2 * at) for at in range(90)]
    path = trace_of(tmp_path, [annotation("early", 0, 1), *deep])
    found = opened(path, viewport={"width": 800, "height": 500})
    found.page.locator("#timeline input[type=search]").fill("deep 89")
    found.page.locator("#timeline input[type=search]").press("Enter")
    found.tell("kanalyzeTimeline.draw()")
    place = found.tell("kanalyzeTimeline.place(kanalyzeTimeline.chosen)")
    assert 24 <= place <= found.tell("kanalyzeTimeline.height")
    for _ in range(60):
        found.page.click("button[data-act=in]")
    found.tell("kanalyzeTimeline.draw()")
    assert found.tell("kanalyzeTimeline.high > kanalyzeTimeline.low")
    found.page.locator("#timeline canvas").focus()
    for key in "vgngmfp0s":
        found.page.keyboard.press(key)


def test_blocks_of_events_are_drawn_as_the_events_are(opened, tmp_path):
    events = [annotation(f"short {at % 7}", 3 * at + at % 5 / 10, 1 + at % 3 / 2) for at in range(20_000)]
    kernels = [device_kernel(at, f"k{at % 3}", 7 * at, 2 + at % 4) for at in range(9_000)]
    found = opened(trace_of(tmp_path, events + kernels), viewport={"width": 400, "height": 900})
    skipped, most = found.tell(
        """(() => {
          const t = kanalyzeTimeline, add = t.addBlock.bind(t);
          let skipped = 0, most = 0;
          t.addBlock = (...all) => { const done = add(...all); skipped += done; return done; };
          for (const part of [1, 0.51, 0.2]) {
            t.view(t.length * 0.1 * (1 - part), t.length * (0.1 + 0.9 * part));
            const pictures = [true, false].map((blocks) => {
              t.inBlocks = blocks;
              t.draw();
              return t.context.getImageData(0, 0, t.canvas.width, t.canvas.height).data;
            });
            pictures[0].forEach((one, at) => { most = Math.max(most, Math.abs(one - pictures[1][at])); });
          }
          return [skipped, most];
        })()"""
    )
    assert skipped > 100
    assert most <= 2
    found.said[:] = [said for said in found.said if "getImageData" not in said]


def test_a_pixel_of_utilisation_is_the_mean_of_its_bins(shown):
    """As full as the busy time, however far the view is zoomed out or in."""
    shown.page.click("button[data-act=all]")
    for expression in ("kanalyzeTimeline.length", "kanalyzeTimeline.length / 7"):
        drawn, told = shown.tell(
            f"""(() => {{
              const t = kanalyzeTimeline; t.view(t.length - {expression}, t.length); t.draw();
              const row = t.rows.find(({{label}}) => label === "utilisation");
              let drawn = 0, told = 0;
              t.means(row, (column, value) => {{
                const from = t.low + column / t.scale, until = Math.min(from + 1 / t.scale, t.high);
                drawn += value * (until - from);
              }});
              row.t.forEach((from, at) => {{
                const until = at + 1 < row.t.length ? row.t[at + 1] : t.length;
                told += row.value[at] * Math.max(Math.min(until, t.high) - Math.max(from, t.low), 0);
              }});
              return [drawn, told];
            }})()"""
        )
        assert drawn == pytest.approx(told, rel=1e-3)
        assert told > 0


def test_a_cell_of_a_notebook_shows_the_timeline(browser, tmp_path):
    page = tmp_path / "notebook.html"
    cells = [kanalyze.timeline(kanalyze.read(MLP / "nsys.sqlite"))._repr_html_() for _ in range(2)]
    page.write_text(f"<!doctype html><title>cells</title><script>var secret = 1</script>{''.join(cells)}")
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    shown, said = context.new_page(), []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.goto(page.as_uri())
    for frame in shown.frames[1:]:
        frame.wait_for_selector("#timeline[data-ready=yes]", state="attached", timeout=60_000)
        frame.click("button[data-act=in]")
        assert frame.evaluate("kanalyzeTimeline.high - kanalyzeTimeline.low < kanalyzeTimeline.length")
        assert frame.evaluate("(() => { try { return parent.secret } catch { return 'another origin' } })()") == (
            "another origin"
        )
    assert len(shown.frames) == 3
    if folder := os.environ.get("KANALYZE_SCREENSHOTS"):
        shown.screenshot(path=f"{folder}/cell.png")
    assert said == []
    context.close()


def test_steps_of_an_engine_stand_before_the_timeline_and_every_section_has_a_title(opened, html):
    found = opened(html(next((SAMPLES / "serving").glob("*.sqlite"))))
    titles = [text.strip() for text in found.page.locator("h2").all_text_contents()]
    assert all(titles)
    place = {title.split("  ")[0].split("\n")[0]: at for at, title in enumerate(titles)}
    engine = next(at for title, at in place.items() if title.startswith("Engine steps"))
    assert engine < next(at for title, at in place.items() if title.startswith("Timeline"))
