"""The lines of a program in a capture: as written, on the recording's clock; a damaged file is told, not believed."""

import gzip
import json
from pathlib import Path

import pytest

import kanalyze
from kanalyze.collectors.in_workload import notes as collector
from kanalyze.errors import DamagedReportError
from kanalyze.readers.capture.read_capture import lines_file, lines_tables
from support.command import ADD, captured, run

UNIX = 1_700_000_000_000_000_000
LINES = {"times": [200, 300, 100], "places": [0, 1, -1]}
CONTENT = {
    "schema": 1,
    "process": 12,
    "exact": True,
    "clocks": [[UNIX, 100], [UNIX + 1_000, 1_100]],
    "files": ["train.py", "sub/model.py"],
    "places": [[0, 3, "main", "step()"], [1, 41, "Model.forward", "x = self.fc(x)"]],
    "threads": [{"id": 12, "lines": LINES, "loops": {"times": [250, 100], "places": [1, 1]}}],
}


def in_line(times, places, number=12, loops=((), ())):
    """A file whose only thread was in those places."""
    parts = {"lines": (times, places), "loops": loops}
    told = {part: {"times": [*own[0]], "places": [*own[1]]} for part, own in parts.items()}
    return CONTENT | {"threads": [{"id": number} | told]}


@pytest.fixture
def recording(tmp_path):
    return tmp_path / "nsys.sqlite"


def source_lines(recording, origin_unix_ns):
    return lines_tables(recording, origin_unix_ns)["source_lines"]


def write(recording, content):
    path = lines_file(recording)
    packed = content if isinstance(content, bytes) else gzip.compress(json.dumps(content).encode())
    path.write_bytes(packed)
    return path


def test_stretches_are_on_the_clock_of_the_recording(recording):
    write(recording, CONTENT)
    rows = source_lines(recording, UNIX - 5_000)
    assert rows.select("process_id", "thread_id", "start_ns", "dur_ns", "file", "line", "function", "text").rows() == [
        (12, 12, 5_100, 300, "train.py", 3, "main", "step()"),
        (12, 12, 5_400, 100, "sub/model.py", 41, "Model.forward", "x = self.fc(x)"),
    ]


def test_generated_code_is_of_the_line_before_it(recording):
    generated = f"/var/torchinductor_me/ab/c{'a2' * 25}z.py"
    content = in_line([200, 100, 100, 100], [1, 2, 1, 2], loops=([250], [2]))
    helper = {**content["threads"][0], "id": 13, "lines": {"times": [200, 100], "places": [-1, 2]}}
    content = content | {"files": [*CONTENT["files"], generated], "threads": [*content["threads"], helper]}
    write(recording, content | {"places": [*CONTENT["places"], [2, 900, "call", "extern_kernels.mm(a, b)"]]})
    rows = source_lines(recording, UNIX)
    assert rows.select("thread_id", "file", "line").unique().rows() == [(12, "sub/model.py", 41)]
    assert rows.get_column("dur_ns").sum() == 900  # nothing is lost, and the other thread was in no line
    assert lines_tables(recording, UNIX)["loop_passes"].is_empty()


def test_the_last_line_of_a_thread_goes_on_to_the_end(recording):
    write(recording, in_line([200], [0]))
    assert source_lines(recording, UNIX).get_column("dur_ns").to_list() == [900]


def test_passes_of_loops_are_told_by_the_line_in_which_the_loop_begins(recording):
    write(recording, CONTENT)
    rows = lines_tables(recording, UNIX - 5_000)["loop_passes"]
    assert rows.rows() == [(12, 12, 5_150, "sub/model.py", 41), (12, 12, 5_250, "sub/model.py", 41)]


def test_a_clock_that_drifts_is_followed(recording):
    """Over 1,000 ns of its own Unix time went on by 2,000."""
    write(recording, CONTENT | {"clocks": [[UNIX, 100], [UNIX + 2_000, 1_100]]})
    assert source_lines(recording, UNIX).select("start_ns", "dur_ns").rows() == [(200, 600), (800, 200)]


@pytest.mark.parametrize(
    ("recorded", "lines"),
    [
        ("nsys.sqlite", "lines-nsys.json.gz"),
        ("nsys-2.sqlite", "lines-nsys-2.json.gz"),
        ("torch-rank3.json.gz", "lines-torch-rank3.json.gz"),
        ("torch-cycle2.json", "lines-torch.json.gz"),
    ],
)
def test_each_recording_has_lines_of_its_own(recorded, lines):
    assert lines_file(Path(recorded)).name == lines


def test_without_a_file_or_without_a_date_there_are_none(recording):
    assert source_lines(recording, UNIX).is_empty()
    write(recording, CONTENT)
    assert source_lines(recording, None).is_empty()


def test_threads_of_one_number_are_one_in_order(recording):
    (thread,) = CONTENT["threads"]
    write(recording, CONTENT | {"threads": [thread, thread]})
    tables = lines_tables(recording, UNIX)
    assert tables["source_lines"].get_column("start_ns").is_sorted()
    assert tables["loop_passes"].get_column("time_ns").to_list() == [150, 150, 250, 250]


def test_nothing_noted_is_no_damage(recording):
    write(recording, CONTENT | {"files": [], "places": [], "threads": []})
    assert source_lines(recording, UNIX).is_empty()


DAMAGE = {
    "no gzip": b"{}",
    "cut off": gzip.compress(json.dumps(CONTENT).encode())[:-20],
    "no JSON": gzip.compress(b"{"),
    "a list": [],
    "no clocks": CONTENT | {"clocks": []},
    "a clock that stands before its start": CONTENT | {"clocks": [[UNIX, 100], [UNIX, 50]]},
    "a clock beyond 64 bits": CONTENT | {"clocks": [[UNIX, 100], [1 << 70, 200]]},
    "times that go back": in_line([200, -100], [0, 1]),
    "times beyond 64 bits": in_line([(1 << 63) - 1, 5], [0, 1]),
    "texts for times": in_line(["x"], [0]),
    "fewer places than times": in_line([200, 5], [0]),
    "a thread without a number": in_line([200], [0], number="x"),
    "passes that go back": in_line([200], [0], loops=([300, -1], [1, 1])),
    "no passes": CONTENT | {"threads": [{"id": 1, "lines": {"times": [1], "places": [0]}}]},
    "an unknown file": CONTENT | {"places": [[7, 3, "main", ""]]},
    "a place without a line": CONTENT | {"places": [[0, "main", ""]]},
    "a line that is none": CONTENT | {"places": [[0, "x", "main", ""]]},
    "numbers for texts": CONTENT | {"places": [[0, 3, 4, 5]]},
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_told_with_the_file(recording, content):
    write(recording, content)
    with pytest.raises(DamagedReportError, match=r"lines-nsys\.json\.gz: .*the lines of the program"):
        source_lines(recording, UNIX)


@pytest.fixture
def capture(tmp_path):
    """A capture whose only process is in one line all the time."""
    folder = captured(tmp_path / "run", nsys_sqlite=ADD)
    report = kanalyze.read(folder)
    began, (first, last) = report.meta.origin_unix_ns, report.recorded
    process, number = report.kind("api").select("process_id", "thread_id").row(0)
    clocks = [[began + first - 1_000, 0], [began + last + 1_000, last - first + 2_000]]
    write(folder / "nsys.sqlite", in_line([0], [1], number) | {"process": process, "clocks": clocks})
    return folder


def test_the_page_shows_it(capture):
    text = run("summarize", capture, columns=100).text
    assert "WHERE IN YOUR CODE" in text
    assert [line for line in text.splitlines() if "model.py:41  x = self.fc(x)" in line]


def test_damage_is_a_doubt_of_the_page_and_an_error_of_the_table(capture):
    write(capture / "nsys.sqlite", DAMAGE["no JSON"])
    page = run("summarize", capture)
    assert page.status == 0
    assert "WHERE IN YOUR CODE" not in page.text
    assert "of the program's lines" in page.text
    table = run("show", "source_lines", capture, "--no-cache")
    assert (table.status, table.text) == (2, "")
    assert "lines-nsys.json.gz" in table.error


def test_what_the_collector_writes_is_read(recording):
    assert source_lines(recording, UNIX).is_empty()
    with collector.lines_noted(lines_file(recording), __file__):
        for number in range(20_000):
            assert number >= 0
    assert CONTENT["schema"] == collector.SCHEMA
    rows = source_lines(recording, UNIX)
    assert {*rows.get_column("file")} <= {Path(__file__).name}
