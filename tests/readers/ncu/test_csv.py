"""CSV pages of ncu in every layout, and numbers, units and names as it prints them."""

import shutil

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import kanalyze
from kanalyze.errors import CannotTellError, DamagedReportError, UnknownFormatError
from kanalyze.model import EVENTS
from kanalyze.readers import read
from kanalyze.readers.ncu.csv import COMMA, POINT, AmbiguousError, base_unit, numbers, separators
from kanalyze.readers.ncu.read_csv_rep import with_whole_names
from support.command import REPORTS, SAMPLES

ADD = REPORTS / "ncu" / "add.details.csv"

NO_KERNELS = "==PROF==\n==WARNING== No kernels were profiled.\n"
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description",'
    '"Estimated Speedup Type","Estimated Speedup"'
)
LAUNCH = '"{id}","{process}","app","127.0.0.1","{name}","1","7","(256, 1, 1)","(4096, 1, 1)","0","9.0"'


def launch(number=0, process=1, name="k(int)"):
    return LAUNCH.format(id=number, process=process, name=name)


def metric(section, label, unit, value, **of):
    return f'{launch(**of)},"{section}","{label}","{unit}","{value}",'


def rule(section, *said, **of):
    """A result of a rule: its name, kind and message, and the scope and share of an estimate."""
    fields = ",".join(f'"{text}"' for text in [*said, "", ""][:5])
    return f'{launch(**of)},"{section}","","","",{fields}'


DURATION = metric("GPU Speed Of Light Throughput", "Duration", "us", "5.89")


def page(*lines):
    return "\n".join([HEAD, *lines, ""])


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.fixture
def details(tmp_path):
    return lambda *lines: read(write(tmp_path / "k.csv", page(*lines)))


def metrics(report):
    return report.table("metrics").rows()


def test_details_page_gives_kernels_metrics_and_rules(details):
    report = details(
        DURATION,
        metric("Launch Statistics", "Function Cache Configuration", "", "CachePreferNone"),
        metric("Launch Statistics", "Dynamic Shared Memory Per Block", "Kbyte/block", "2.05"),
        metric("Command line profiler metrics", "sm__cycles_active.avg", "cycle", "1,234.50"),
        metric("My Section", "My Label", "", "7"),
        metric("Memory Workload Analysis", "L2 Hit Rate", "%", "n/a"),
        rule("SpeedOfLight", "SOLBottleneck", "OPT", "Do better."),
        rule("LaunchStats", "LaunchConfiguration", "OPT", "A tail, a tail.", "global", "25"),
    )
    assert metrics(report) == [
        (0, "My Section", "My Label", 7.0, None, None),
        (0, "SpeedOfLight", "gpu__time_duration.sum", 5890.0, None, "ns"),
        (0, "LaunchStats", "launch__func_cache_config", None, "CachePreferNone", None),
        (0, "LaunchStats", "launch__shared_mem_per_block_dynamic", 2050.0, None, "byte/block"),
        (0, "SpeedOfLight", "sm__cycles_active.avg", 1234.5, None, "cycle"),
    ]
    assert report.table("rule_results").rows() == [
        (0, "LaunchStats", "LaunchConfiguration", "optimization", "A tail, a tail.", "global", 0.25),
        (0, "SpeedOfLight", "SOLBottleneck", "optimization", "Do better.", None, None),
    ]
    assert report.kernel_config.row(0)[:10] == (0, 4096, 1, 1, 256, 1, 1, None, None, 2050)
    assert report.processes.rows() == [(1, "app", None, 0)]
    assert report.devices.select("device", "compute_capability").rows() == [(0, "9.0")]
    told = report.table("notes").select("check", "count").rows()
    assert told == [("metrics of unknown label", 1), ("missing page", 1), ("kernels without LaunchStats", 1)]


def test_kernels_follow_one_another_and_have_no_place_in_time(details):
    report = details(DURATION, metric("GPU Speed Of Light Throughput", "Duration", "ns", "110", number=1, name="j"))
    shown = report.kind("kernel").select("event_id", "name", "start_ns", "dur_ns").rows()
    assert shown == [(0, "k(int)", 0, 5890), (1, "j", 5890, 110)]
    assert report.kinds == ("kernel",)
    assert report.kind("api").equals(EVENTS.empty())
    assert report.meta.timeless


def test_a_log_with_lines_of_others_is_the_same_as_its_page(tmp_path):
    lines = ADD.read_text().splitlines()
    noise = [
        'he said "hello',
        "==PROF== Connected to process 1319 (add)",
        "==WARNING== Note: Running with unmodified GPU clocks.",
        "==WARNING== Unable to access the following 2 metrics: a, b.",
        "",
        *lines[:3],
        "Max error: 0",
        "==PROF== Disconnected from process 1319",
        *lines[3:],
        "bye, bye",
    ]
    found = read(write(tmp_path / "add.log", "\r\n".join(noise)))
    shutil.copy(ADD, tmp_path / "alone.csv")
    alone = read(tmp_path / "alone.csv")
    for name in ("events", "metrics", "rule_results", "kernel_config", "devices", "processes"):
        assert_frame_equal(found.table(name), alone.table(name), categorical_as_str=True)
    wanted = [("missing page", 1), ("run with clocks that vary", 1), ("metrics that ncu could not collect", 2)]
    assert found.table("notes").select("check", "count").rows() == wanted


def test_a_message_may_go_on_over_several_lines_and_powershell_writes_utf_16(tmp_path):
    text = page(DURATION, rule("SpeedOfLight", "R", "WRN", "one\n==two==\n, three"))
    report = read(write(tmp_path / "k.csv", text, "utf-16"))
    assert report.table("rule_results").select("kind", "message").rows() == [("warning", "one\n==two==\n, three")]
    assert report.kind("kernel").get_column("dur_ns").to_list() == [5890]


@pytest.mark.parametrize("swapped", [",.", ".,"], ids=["English", "German"])
def test_scaled_units_and_separators_of_a_locale_are_undone(tmp_path, swapped):
    """The page in scaled units, in two locales, has the values of the raw page within its two decimals."""
    table = str.maketrans({",": swapped[0], ".": swapped[1]})
    rows = pl.read_csv(ADD, infer_schema=False).with_columns(
        pl.col("Metric Value").map_elements(
            lambda text: text.translate(table) if text and text[0].isdigit() else text, return_dtype=pl.String
        )
    )
    rows.write_csv(tmp_path / "add.csv", quote_style="always")
    found = read(tmp_path / "add.csv").table("metrics")
    both = found.join(read(ADD).table("metrics"), on=["event_id", "metric"], suffix="_exact")
    assert both.height == found.height == 86
    assert both.get_column("unit").equals(both.get_column("unit_exact"), null_equal=True)
    assert both.get_column("text").equals(both.get_column("text_exact"), null_equal=True)
    # two decimals of a unit 1000 times or, with bytes, a million times as large
    steps = {"ns": 1e3, "byte": 1e6, "hz": 1e9, "byte/s": 1e12, "byte/block": 1e3}
    least = pl.col("unit").replace_strict(steps, default=1.0) * 0.0051
    off = both.filter((pl.col("value") - pl.col("value_exact")).abs() > least)
    assert off.is_empty(), off


def test_the_raw_page_beside_the_details_page_has_the_values():
    report = read(ADD)
    found = report.table("metrics")
    duration = found.filter(pl.col("metric") == "gpu__time_duration.sum")
    assert duration.rows() == [(0, "SpeedOfLight", "gpu__time_duration.sum", 5888.0, None, "ns")]
    assert found.height == 2212
    assert report.table("rule_results").height == 12
    assert report.table("notes").is_empty()
    assert report.devices.select("name", "sm_count", "memory_bandwidth_bytes_per_s").rows() == [
        ("NVIDIA H200", 132, 4_814_304_000_000)
    ]


@pytest.mark.parametrize("given", ["add.details.csv", "add.raw.csv", ""])
def test_either_page_and_their_folder_give_the_same(tmp_path, given):
    for ending in ("details", "raw"):
        shutil.copy(REPORTS / "ncu" / f"add.{ending}.csv", tmp_path)
    found, expected = read(tmp_path / given), read(ADD)
    for name in ("events", "metrics", "rule_results", "kernel_config", "devices", "processes"):
        assert_frame_equal(found.table(name), expected.table(name), categorical_as_str=True)


def test_runs_of_a_capture_follow_one_another(tmp_path):
    capture = SAMPLES / "launch_bound_graph"
    for path in capture.glob("ncu*.csv"):
        shutil.copy(path, tmp_path)
    shutil.copy(capture / "manifest.json", tmp_path)
    both, first, second = read(tmp_path), read(capture / "ncu.details.csv"), read(capture / "ncu-2.details.csv")
    assert both.meta.tool == "ncu"
    counts = [report.kind("kernel").height for report in (both, first, second)]
    assert counts == [5, 2, 3]
    assert both.kind("kernel").get_column("event_id").to_list() == [0, 1, 2, 3, 4]
    assert both.kind("kernel").get_column("start_ns").is_sorted()
    later = both.table("metrics").filter(pl.col("event_id") >= 2).with_columns(pl.col("event_id") - 2)
    assert_frame_equal(later, second.table("metrics"))


def test_a_page_of_another_run_beside_is_left_out_and_told(tmp_path):
    write(tmp_path / "k.details.csv", page(DURATION))
    shutil.copy(REPORTS / "ncu" / "add.raw.csv", tmp_path / "k.raw.csv")
    report = read(tmp_path / "k.details.csv")
    assert report.kind("kernel").get_column("dur_ns").to_list() == [5890]
    (note,) = report.table("notes").filter(pl.col("check") == "page beside it left out").get_column("effect")
    assert "not of the same run" in note
    with pytest.raises(DamagedReportError, match=r"not of the same run .* \(process 1 here, 1319 there\)"):
        read(tmp_path)


def test_a_file_that_is_cut_off_gives_what_is_whole(tmp_path):
    whole = page(DURATION, rule("SpeedOfLight", "R", "OPT", "said"))
    report = read(write(tmp_path / "k.csv", whole[:-8]))
    assert report.kind("kernel").height == 1
    assert report.table("rule_results").is_empty()
    assert ("record cut off", 1) in report.table("notes").select("check", "count").rows()


@pytest.mark.parametrize(
    ("text", "found", "remedy"),
    [
        *((text, "a log of ncu, which profiled no kernel", "--kernel-name") for text in (f"{HEAD}\n", NO_KERNELS)),
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access performance counters\n",
            "a log of ncu, which was not allowed to read the GPU's performance counters (ERR_NVGPUCTRPERM)",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            "==ERROR== Failed to find metric x\n\n==ERROR== Failed to profile k\n==ERROR== error code (9).\n",
            "a log of ncu, which failed (Failed to find metric x; Failed to profile k)",
            "run ncu again",
        ),
        ("==ERROR== Unknown metrics.\n", "a log of ncu, which failed (Unknown metrics)", "run ncu again"),
        ("==PROF== Connected\nhello\n", "a log of ncu without a page in CSV", "--page details"),
        ("a,b\n1,2\n", "a file in an unknown format", ""),
    ],
)
def test_logs_without_kernels_say_why(tmp_path, text, found, remedy):
    path = write(tmp_path / "k.log", text)
    with pytest.raises(UnknownFormatError) as caught:
        read(path)
    assert str(caught.value) == f"{path}: {found}, not a report that kanalyze reads."
    assert remedy in caught.value.remedy


def test_numbers_that_can_be_read_in_two_ways_are_refused_unless_the_launch_decides(details):
    with pytest.raises(DamagedReportError, match=r"'16\.896' can be a number of thousands"):
        details(metric("Instruction Statistics", "Executed Instructions", "inst", "16.896"))
    executed = metric("Instruction Statistics", "Executed Instructions", "inst", "16.896")
    report = details(executed, metric("Launch Statistics", "Grid Size", "", "4.096"))
    assert [row[3] for row in metrics(report)] == [4096, 16896]


def test_errors_of_ncu_around_a_page_are_told(tmp_path):
    """Of a program of several processes ncu may measure one, and fail in another."""
    said = "==ERROR== ERR_NVGPUCTRPERM (process 2)\n==ERROR== Failed to profile j in process 2\n==WARNING== Careful.\n"
    report = read(write(tmp_path / "k.log", said + page(DURATION)))
    assert report.kind("kernel").height == 1
    notes = report.table("notes").filter(pl.col("check").str.ends_with("of ncu")).select("check", "effect").rows()
    remedy = notes.pop(1)[1]
    assert remedy.startswith("ERR_NVGPUCTRPERM (process 2) ")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in remedy
    assert notes == [("warning of ncu", "Careful."), ("error of ncu", "Failed to profile j in process 2")]


def test_raw_pages_of_different_units_in_one_file_are_refused(tmp_path):
    raw = '"ID","Kernel Name","gpu__time_duration.sum"\n"","","{unit}"\n"{number}","k","5.89"\n'
    path = write(tmp_path / "k.csv", raw.format(unit="us", number=0) + raw.format(unit="ns", number=1))
    with pytest.raises(DamagedReportError, match="damaged at the raw page: two pages have different units"):
        read(path)
    same = write(tmp_path / "j.csv", raw.format(unit="us", number=0) + raw.format(unit="us", number=1))
    assert read(same).kind("kernel").get_column("dur_ns").to_list() == [5890, 5890]
    without = write(tmp_path / "i.csv", '"ID","Kernel Name","a"\n"0","k","5"\n')
    with pytest.raises(DamagedReportError, match="its first row has no units"):
        read(without)


def test_headings_that_stand_again_at_the_end_add_nothing(tmp_path):
    text = (REPORTS / "ncu" / "add.raw.csv").read_text()
    twice = write(tmp_path / "twice.csv", text + text.splitlines()[0] + "\n")
    assert metrics(read(twice)) == metrics(read(write(tmp_path / "once.csv", text)))


def test_a_raw_page_without_metrics_has_launches(tmp_path):
    keys = ("ID", "Process ID", "Process Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device")
    units, of_launch = ("",) * len(keys), ("0", "1", "app", "k(int)", "1", "7", "(256, 1, 1)", "(4, 1, 1)", "0")
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in (keys, units, of_launch)) + "\n"
    report = read(write(tmp_path / "bare.csv", text))
    assert report.kind("kernel")["name"].to_list() == ["k(int)"]
    assert metrics(report) == []


def test_a_page_of_sources_alone_tells_no_counters(tmp_path):
    source = SAMPLES / "add" / "ncu.source.csv"
    shutil.copy(source, tmp_path / "k.source.csv")
    with pytest.raises(UnknownFormatError, match="page of sources"):
        read(tmp_path / "k.source.csv")
    assert read(source).kind("kernel").height == 1  # with those beside it


def test_what_needs_time_cannot_be_told(details):
    report = details(DURATION)
    with pytest.raises(CannotTellError, match="ncu measures kernels one by one"):
        kanalyze.ledger(report)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        *((f'"{one}"', '"Other"', f"its headings: no column '{one}'") for one in ("Section Name", "Metric Unit")),
        ('"Metric Value"', '"Other"', "its headings: no column 'Metric Value'"),
        ('"0","1","app"', '"x","1","app"', "the column ID: no row has a number there"),
    ],
)
def test_a_page_without_a_heading_or_numbers_of_rows_is_damaged(tmp_path, old, new, found):
    path = write(tmp_path / "k.csv", page(DURATION).replace(old, new))
    with pytest.raises(DamagedReportError, match=found):
        read(path)


def test_a_page_without_the_columns_of_rules_has_metrics_and_no_results(tmp_path):
    text = "\n".join([HEAD.partition(',"Rule Name"')[0], DURATION.removesuffix(","), ""])
    report = read(write(tmp_path / "k.csv", text))
    assert (report.table("metrics").height, report.table("rule_results").height) == (1, 0)


def test_instructions_of_several_runs_are_of_the_kernels_of_their_run(tmp_path):
    for source in (SAMPLES / "square").glob("ncu*.csv"):
        shutil.copy(source, tmp_path)
    shutil.copy(SAMPLES / "square" / "manifest.json", tmp_path)
    first, second = (read(SAMPLES / "square" / f"{name}.details.csv") for name in ("ncu", "ncu-2"))
    moved = second.table("instructions").with_columns(pl.col("event_id") + first.kernel_config.height)
    assert moved.height
    assert_frame_equal(read(tmp_path).table("instructions"), pl.concat([first.table("instructions"), moved]))


def test_a_raw_page_with_a_column_of_the_launch_behind_the_metrics_says_the_same(tmp_path):
    rows = pl.read_csv(SAMPLES / "add_parallel" / "ncu.raw.csv", infer_schema=False)
    rows.write_csv(tmp_path / "usual.csv", quote_style="always")
    last = [*(column for column in rows.columns if column != "Device"), "Device"]
    rows.select(last).write_csv(tmp_path / "moved.csv", quote_style="always")
    usual, moved = (read(tmp_path / f"{name}.csv") for name in ("usual", "moved"))
    assert usual.table("metrics").height
    order = ["event_id", "metric"]
    assert_frame_equal(usual.table("metrics").sort(order), moved.table("metrics").sort(order))
    assert_frame_equal(usual.kernel_config, moved.kernel_config)


def read_numbers(*texts: str) -> list[float | None]:
    """The numbers in a file that holds only `texts`."""
    frame = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    return frame.select(numbers("text", separators(frame.get_column("text")))).to_series().to_list()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        *((("16,896", "28.71"), [16896, 28.71]), (("16.896", "27.595.520"), [16896, 27595520])),
        *((("16.896,50", "3"), [16896.5, 3]), (("16.896", "28,71"), [16896, 28.71])),
        *((("16\u202f896,50", "1 234"), [16896.5, 1234]), (("16'896.50",), [16896.5])),
        (("16,896",), [16896]),  # ncu prints no number with three decimals
        (("0.381", "1.484"), [0.381, 1.484]),  # no group of thousands begins with 0
        *((("1484.092", "2.614"), [1484.092, 2.614]), (("4096.000000", "2,230"), [4096, 2230])),
        *((("-0.14", "1e-05", "+3"), [-0.14, 1e-05, 3]), (("PolicySpread", "all", "0x10"), [None, None, None])),
        (("nan", "inf", "-nan", "1.5"), [None, None, None, 1.5]),
        (("1,160,192 (340,352; 141,440)", "0.5"), [1160192, 0.5]),  # --print-metric-instances
        ((), []),
    ],
)
def test_numbers_are_read_as_they_were_meant(texts, expected):
    assert read_numbers(*texts) == expected


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (("16.896",), "'16.896' can be a number of thousands or one with decimals"),
        (("16.896", "12,345"), "'16.896' can be a number of thousands or one with decimals, and '12,345' occurs, too"),
        (("1,50", "1.50"), "'1.50' has a decimal point, '1,50' a decimal comma"),
    ],
)
def test_numbers_that_can_be_read_in_two_ways_are_refused(texts, reason):
    with pytest.raises(AmbiguousError, match=f"^{reason}$"):
        read_numbers(*texts)


@pytest.mark.parametrize(
    ("text", "value", "way"), [("16.896", 16896, COMMA), ("16.896", 16.896, POINT), ("1,024", 1024, POINT)]
)
def test_a_value_that_is_known_from_elsewhere_decides(text, value, way):
    assert separators(pl.Series([text]), [(text, value)]) == way
    for other in ("16.897", "1.6.896x", "16896"):  # not written so
        with pytest.raises(AmbiguousError):
            separators(pl.Series(["16.896"]), [(other, 16896)])


UNITS = """
ns 1 ns, us 1e3 ns, ms 1e6 ns, s 1e9 ns, usecond 1e3 ns, second 1e9 ns, byte 1 byte, Mbyte 1e6 byte,
Tbyte/s 1e12 byte/s, Gbyte/second 1e9 byte/s, Kbyte/block 1e3 byte/block, Kbyte/cycle 1e3 byte/cycle,
Ghz 1e9 hz, Mhz 1e6 hz, cycle/nsecond 1e9 hz, sector/ns 1e9 sector/s, sector/us 1e6 sector/s, sector/s 1 sector/s,
%/Kbyte 1e3 %/byte, % 1 %, pass 1 pass, SM 1 SM, inst/cycle 1 inst/cycle
"""


def test_scaling_of_units_is_undone():
    for unit, factor, base in (row.split() for row in UNITS.split(",")):
        assert base_unit(unit) == (float(factor), base)
    assert base_unit("") == (1, "")


@pytest.mark.parametrize(
    ("short", "whole", "expected"),
    [
        (["void at::k<4>(int)"], ["void at::native::k<(int)4>(int)"], ["void at::native::k<(int)4>(int)"]),
        (
            ["void un>::k<un>::T<4>"],
            ["void at::<un>::k<at::<un>::T<(int)4>>"],
            ["void at::<un>::k<at::<un>::T<(int)4>>"],
        ),
        (["b", "a"], ["x::b", "x::b", "y::a"], ["x::b", "y::a"]),  # a kernel of two functions
        (["b", "a"], ["x::a", "x::b"], ["b", "a"]),  # of another order: nothing is guessed
        (["k<4>"], ["k<8>"], ["k<4>"]),
        (["k", None], ["k", "k"], ["k", None]),
        ([], ["k"], []),
    ],
)
def test_names_are_completed_in_order_or_not_at_all(short, whole, expected):
    frame = pl.DataFrame({"name": short}, schema={"name": pl.String})
    assert with_whole_names(frame, whole)["name"].to_list() == expected


@pytest.mark.parametrize("workload", ["square", "gelu", "launch_bound_graph"])
def test_samples_have_the_names_that_nsys_prints(workload):
    kernels = kanalyze.read(SAMPLES / workload / "ncu.details.csv").kind("kernel").get_column("name").cast(pl.String)
    known = set(kanalyze.read(SAMPLES / workload / "nsys.sqlite").kind("kernel").get_column("name").cast(pl.String))
    assert set(kernels) <= known
