"""Content of the HTML report, what shows a finding, and kernels that ncu measured far from their roof."""

import json
import tarfile
from itertools import accumulate

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters import advice
from kanalyze.analyses.counters.counters import hot_lines, stalls
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.page.file_page import LARGE_BYTES, FilePage, _of, copy_points, durations, evidence, file_pages
from kanalyze.analyses.page.overview_page import PageKernels
from kanalyze.analyses.page.proven_causes import slow_kernels
from kanalyze.errors import UnknownNameError
from support.build import in_line as line, kernel, report, timeline
from support.command import REPORTS, ROOT, SAMPLES, run
from support.real_reports import real_report


@pytest.mark.slow
def test_of_a_capture_the_tables_and_the_roofs_of_the_program():
    reports = kanalyze.read_all(SAMPLES / "mlp_train")
    (page,) = file_pages(*reports, most=1000)
    ncu = next(one for one in reports if one.meta.tool == "ncu")
    tables = {table.name: rows for table, rows in page.tables}
    assert tables["roofline"].equals(roofline(ncu))
    assert tables["stalls"].equals(stalls(ncu))
    assert "hot_lines" not in tables  # its pages have no lines
    assert page.roofs is not None
    assert page.roofs.time_from == "nsys"


@pytest.mark.slow
def test_lines_of_a_report_in_ncu_s_own_format():
    pytest.importorskip("ncu_report", reason="the module ncu_report is not installed (extra ncu)")
    reports = kanalyze.read_all(SAMPLES / "add_parallel_explicit")
    ncu = next(one for one in reports if one.meta.tool == "ncu")
    lines = hot_lines(ncu).filter(pl.col("line").is_not_null() & (pl.col("samples") > 0))
    assert lines.height
    found = {table.name: rows for table, rows in FilePage(None, [], []).measuring(reports).tables}
    assert found["hot_lines"].equals(lines)


@pytest.mark.slow
def test_nothing_where_nothing_was_measured_or_no_copy_is_large():
    found = real_report(REPORTS / "torch.sqlite")
    alone = FilePage(None, [], [])
    assert alone.measuring([found]) is alone
    assert file_pages(found, most=1000)[0].roofs is None
    assert copy_points(report([kernel(0, 10)])) is None
    assert copy_points(real_report(REPORTS / "emit_nvtx.sqlite")) is None


def test_copies_by_size_are_all_copies_and_the_line_is_the_fastest_large_one():
    found = kanalyze.read(SAMPLES / "streams" / "nsys.sqlite")
    points = copy_points(found)
    detail = found.copy_detail.select("event_id", "size_bytes", pl.col("direction").cast(pl.String))
    rows = found.kind("memcpy").join(detail, on="event_id").select("direction", "size_bytes", "dur_ns").rows()
    assert points.points.get_column("count").sum() + points.left_out == len(rows)
    expected = {}
    for direction, size, ns in rows:
        if size >= LARGE_BYTES:
            expected[direction] = max(expected.get(direction, 0), size / ns * 1e9)
    told = dict(points.links.select("direction", "bandwidth_bytes_per_s").iter_rows())
    assert told == pytest.approx(expected)
    for row in points.points.iter_rows(named=True):
        own = [ns for direction, size, ns in rows if (direction, size) == (row["direction"], row["size_bytes"])]
        assert row["total_ns"] <= sum(own)
        assert row["bandwidth_bytes_per_s"] == pytest.approx(row["size_bytes"] * row["count"] / row["total_ns"] * 1e9)


def one_after_the_other(*launches):
    ends = accumulate(ns for _, ns in launches)
    return report([kernel(end - ns, end, name=name) for (name, ns), end in zip(launches, ends, strict=True)])


def test_the_kernels_with_most_time_have_one():
    """40 of 42; what one launch takes, or their number, would choose others."""
    once = [(f"once{number:02}", 200) for number in range(39)]
    often, long, many = [("often", 30)] * 10, [("long", 150)], [("many", 1)] * 100
    rows = durations(one_after_the_other(*long, *many, *often, *once))
    assert rows.get_column("name").to_list() == ["often", *(name for name, _ in once)]


def test_a_launch_is_in_the_bin_of_its_logarithm():
    (row,) = durations(one_after_the_other(*(("k", ns) for ns in (10, 100, 100, 1_000)))).to_dicts()
    counts = row.pop("counts")
    assert row == {"name": "k", "least_ns": 10, "most_ns": 1_000}
    last = len(counts) - 1
    assert {at: count for at, count in enumerate(counts) if count} == {0: 1, len(counts) // 2: 2, last: 1}


EVENTS = [
    *timeline("0-100 cudaLaunchKernel #1; 200-600 kernel:first #1; 400-800 cudaStreamSynchronize"),
    *timeline("900-1000 cudaLaunchKernel #2; 1100-1600 kernel:second #2"),
]
LINES = [line(0, 300, 1, "line 1"), line(300, 850, 2, "line 2"), line(850, 2_000, 3, "line 3")]


def made_of(*claims, names=()):
    spans = pl.DataFrame(claims, schema=["start", "end"], orient="row") if claims else None
    found = Finding("rule", 0, 100, "Text.", "Remedy.", "gaps", names=names, claims=spans)
    return _of(report(EVENTS, source_lines=LINES), found)


def test_its_time_is_told_by_line_kernel_and_wait():
    found = made_of((400, 900), (500, 700)).tables  # what is claimed twice counts once
    assert found["lines"].rows() == [("a.py:2", "line 2", 250), ("a.py:1", "line 1", 200), ("a.py:3", "line 3", 50)]
    assert found["kernels"].rows() == [("first", 1, 200)]
    between = ("host", "between cudaStreamSynchronize and cudaLaunchKernel", 1, 100)
    assert found["waits"].rows() == [("sync", "cudaStreamSynchronize", 1, 200), between]


def test_without_a_claim_there_are_the_kernels_that_it_names():
    found = made_of(names=("second",)).tables
    assert found["kernels"].rows() == [("second", 1, 500)]
    assert found["lines"].is_empty()
    assert found["waits"].is_empty()


def test_a_report_without_the_finding_says_which_it_has():
    with pytest.raises(UnknownNameError, match="no finding of made by hand called 'tail'"):
        evidence([report(EVENTS)], "tail")


@pytest.fixture(scope="module")
def counters():
    return kanalyze.read(SAMPLES / "cdist" / "ncu.raw.csv")


@pytest.fixture(scope="module")
def launch_id(counters):
    return counters.kind("kernel").item(0, "event_id")


@pytest.fixture(autouse=True)
def busy(monkeypatch):
    facts = advice.kernel_facts
    monkeypatch.setattr(advice, "kernel_facts", lambda report: facts(report).with_columns(memory_share=pl.lit(0.9)))


def joined(rows, longer=1.0) -> pl.DataFrame:
    """The table `joined` as far as it is read; `rows`: name, event_id, ncu_match, exclusive_ns, roof_share."""
    schema = ("name", "event_id", "ncu_match", "exclusive_ns", "roof_share")
    types = (pl.String, pl.Int64, pl.String, pl.Int64, pl.Float64)
    frame = pl.DataFrame(rows, schema=dict(zip(schema, types, strict=True)), orient="row")
    return frame.with_columns(avg_ns=pl.lit(100.0), ncu_dur_ns=pl.lit(100 * longer))


def page(*hot, whole_ns=1000, told=()) -> PageKernels:
    frame = pl.DataFrame(hot, schema={"name": pl.String, "exclusive_ns": pl.Int64}, orient="row")
    runs = frame.select("name", "exclusive_ns", dur_ns="exclusive_ns")
    return PageKernels(frame.group_by("name").agg(pl.col("exclusive_ns").sum()), 0, whole_ns, set(told), runs)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["square", "gelu", "add", "cdist"])
def test_a_distance_to_the_roof_alone_is_none(name):
    found = json.loads(run("summarize", SAMPLES / name, "--format", "json").text)["findings"]
    assert "far-from-roof" not in {one["rule"] for one in found}


def test_its_roof_is_that_of_the_measured_time(counters, launch_id):
    rows = [("k", launch_id, "exact", 300, 0.5), ("k", launch_id, "exact", 100, 0.1), ("k", None, None, 200, None)]
    (one,) = slow_kernels(joined(rows), counters, page(("k", 500)))
    assert one.at_stake_ns == int(500 * (1 - (300 * 0.5 + 100 * 0.1) / 400))
    assert one.names == ("k",)
    assert "500 ns, 50.0 % of the time" in one.text


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({}, 1),
        ({"roof": 0.6}, 0),  # near enough
        ({"roof": None}, 0),
        ({"match": "name"}, 0),  # perhaps another kernel
        ({"took": 99}, 0),  # little time
        ({"took": 100}, 1),
        ({"told": ["k"]}, 0),
        ({"whole_ns": 0}, 0),
        # other launches of the same shape count where they took about as long
        *(({"match": "shape", "longer": longer}, told) for longer, told in ((1.4, 1), (0.7, 1), (1.6, 0), (0.6, 0))),
    ],
)
def test_what_is_not_sure_is_not_said(counters, launch_id, change, number):
    of = {"match": "exact", "ns": 400, "roof": 0.1, "longer": 1.0, "took": 400, "whole_ns": 1000, "told": ()} | change
    rows = joined([("k", launch_id, of["match"], of["ns"], of["roof"])], of["longer"])
    found = slow_kernels(rows, counters, page(("k", of["took"]), whole_ns=of["whole_ns"], told=of["told"]))
    assert len(found) == number


@pytest.mark.parametrize(("first", "claimed"), [(1.0, 2.0), (1.4, 2.4), (0.6, 1.0)])
def test_counters_tell_of_launches_that_took_as_long(counters, launch_id, first, claimed):
    """Of three launches, one of which takes as long as the measured one, and one a tenth of that."""
    ns = counters.kind("kernel").filter(event_id=launch_id).item(0, "dur_ns")
    took = [("k", int(ns * times)) for times in (first, 0.1, 1.0)]
    (one,) = slow_kernels(joined([("k", launch_id, "exact", 3 * ns, 0.5)]), counters, page(*took, whole_ns=3 * ns))
    assert one.at_stake_ns == pytest.approx(0.5 * claimed * ns, rel=0.01)


def test_a_kernel_that_was_hardly_measured_is_not_said(counters, launch_id):
    slow = joined([("k", launch_id, "exact", 90, 0.1), ("k", None, None, 100, None)])
    assert slow_kernels(slow, counters, page(("k", 190))) == []


def test_counters_prove_causes_of_a_programs_own_kernels(counters, launch_id):
    """61 % of what this launch touches is uncoalesced."""
    (one,) = slow_kernels(joined([("own", launch_id, "exact", 400, 0.1)]), counters, page(("own", 400)))
    assert (one.rule, one.headline) == ("uncoalesced", "61.4 % of a kernel's accesses are uncoalesced: {0}")
    assert one.at_stake_ns == int(400 * 0.6142433234421365)
    name = "void at::native::cat(int)"
    assert slow_kernels(joined([(name, launch_id, "exact", 400, 0.1)]), counters, page((name, 400))) == []


def test_kernels_of_one_cause_are_one_finding(counters, launch_id):
    names = {"one": 400, "two": 300, "three": 200}
    rows = joined([(name, launch_id, "exact", ns, 0.1) for name, ns in names.items()])
    each = [slow_kernels(rows, counters, page((name, ns)))[0].at_stake_ns for name, ns in names.items()]
    (one,) = slow_kernels(rows, counters, page(*names.items()))
    assert (one.names, one.at_stake_ns) == (tuple(names), sum(each))
    assert one.headline == "61.4 % of a kernel's accesses are uncoalesced: {0}, and 2 more"
    assert "The same holds of {1} (" in one.text
    (two,) = slow_kernels(rows, counters, page(*[*names.items()][:2]))
    assert two.headline.endswith(": {0}, and {1}")


@pytest.mark.slow
def test_what_counters_prove_is_on_the_full_page_and_explained_in_the_report(tmp_path):
    with tarfile.open(ROOT / "benchmarks/diagnosis/captures/cuda_row_sums.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    capture = next(tmp_path.glob("**/manifest.json")).parent
    assert "87.5 % of a kernel's accesses are uncoalesced" in run("summarize", capture, "--full").text
    with kanalyze.read(capture) as report:
        (shown,) = evidence([report], "uncoalesced")
        assert shown.findings[0].names == tuple(shown.tables["kernels"].get_column("name"))


UNKNOWN = "uncoalesced_share fp64_flop flop tensor_flop dram_bytes dram_share compute_share spill_share"
UNKNOWN += " sm_active_share tail_share waves occupancy_share limiter constant_share starts_share blocks"
UNKNOWN += " dram_read_bytes dram_write_bytes achieved_occupancy_share"
PLAIN = dict.fromkeys(UNKNOWN.split())
PLAIN |= {"roof_share": 0.01, "bound": "memory", "memory_share": 0.9, "dur_ns": 100_000, "instructions": 1000}
PLAIN |= {"block_x": 128, "block_y": 1, "block_z": 1, "bank_conflict_share": 0.9, "l1_share": 0.5, "top_stall": "wait"}
COUNTED = ("event_id", "sass", "instructions", "thread_instructions", "sectors", "ideal_sectors", "file", "line")


@pytest.fixture
def proven(counters, launch_id, monkeypatch):
    """What is found of a kernel of 400 ns by what its counters say, and by its code: rows of COUNTED without the id."""

    def found(said, code=(), *, roof=0.1, name="own"):
        facts = pl.DataFrame([{"event_id": launch_id, **PLAIN, **said}])
        for what, told in (("kernel_facts", facts), ("bound", "unknown"), ("paragraph", "")):
            monkeypatch.setattr(f"kanalyze.analyses.counters.advice.{what}", lambda _, told=told: told)
        rows = pl.DataFrame([(launch_id, *one) for one in code], schema=COUNTED, orient="row")
        monkeypatch.setattr(type(counters), "table", lambda *_: rows)
        return slow_kernels(joined([(name, launch_id, "exact", 400, roof)]), counters, page((name, 400)))

    return found


def test_double_precision_is_told_near_its_roof_too(proven):
    """What is left lies between half of the time and what memory takes of it."""
    (one,) = proven({"fp64_flop": 8.0, "flop": 10.0, "roof_share": 0.9, "dram_share": 0.1}, roof=0.9)
    assert (one.rule, one.at_stake_ns, one.replayed) == ("float64", 223, (None, 167, 280))


def by_threads(*sass):
    """Instructions, one a line, each with how many threads ran it."""
    return [(name, 0, ran, 0, 0, "src/a.cu", line) for line, (name, ran) in enumerate(sass, 7)]


def loads(name, sectors, ideal, times=1):
    """An instruction of a warp that touches so many sectors, of 32 bytes, and needs fewer."""
    return [(name, times, 32 * times, sectors, ideal, "a.cu", 3)]


def atomics(adds):
    return by_threads(("LDG.E.U8 R5, desc[UR4][R4.64]", 1000.0), ("REDG.E.ADD.STRONG.GPU desc[UR4][R2.64], R7", adds))


def stores(threads):
    return by_threads(("LDG.E R0", 12_800), ("@P2 STG.E desc[UR6][R8.64], R15", threads))


def shared(accesses):
    return by_threads(("LDG.E R0", accesses), ("LDS R1, [R2]", 60), ("STS [R2], R1", 40))


def diverging(active, sass="FFMA R0, R1"):
    return [(sass, 100, 100 * active, 0, 0, "src/a.cu", 7)]


def products(asked_bytes):
    return [("HMMA.16816.F32 R0, R1", 100, 3200, asked_bytes // 32, asked_bytes // 32, "src/a.cu", 7)]


def in_turns(load="LDG.E.128 R0, desc[UR4][R2.64]", turns=32, sass="HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8]"):
    code = [("S2R R0, SR_TID.X", 8), (load, 8 * turns), (sass, 8 * turns)]
    return [(name, ran, 32 * ran, 0, 0, "src/a.py", line) for line, (name, ran) in enumerate(code, 3)]


def called(*times, address="LDC.64 R6, c[0x4][R0]"):
    code = [line for ran in times for line in ((address, ran), ("CALL.ABS.NOINC R6", ran))]
    return [(name, ran, 32 * ran, 0, 0, "src/a.cu", line) for line, (name, ran) in enumerate(code, 6)]


AGAIN = {"l1_share": 0.95, "dram_share": 0.1, "dram_bytes": 1 << 20, "compute_share": 0.9, "bank_conflict_share": None}
TILES = {"bound": "compute", "roof_share": 0.1, "waves": 8.0, "tensor_flop": 2.0**34, "flop": 2.0**34}
CALLS = {"instructions": 10_000, "memory_share": 0.1}
WAITS = TILES | {"roof_share": 0.3, "top_stall": "long_scoreboard"}
FEW = {"limiter": "shared memory", "waves": 1.0, "occupancy_share": 0.0625, "compute_share": 0.2, "memory_share": 0.3}
STARTS = {
    "starts_share": 0.97,
    "blocks": 100,
    "l1_hit_share": 0.75,
    "dram_bytes": 12_800,
    "compute_share": 0.9,
    "dram_share": 0.1,
}
HALF = STARTS | {"starts_share": 0.6, "dram_bytes": 25_600, "dram_read_bytes": 12_800}
READ = {"compute_share": 0.8, "constant_share": 0.8, "memory_share": 0.1}
INDEXED = by_threads(("LDG.E R0", 50), ("LDC R8, c[0x3][R8]", 50))
LOCAL = by_threads(("LDG.E R0", 50), ("LDS R3", 50), ("STL [R1]", 100), ("LDL.LU R2, [R1]", 200))
#: 24 sectors for 16 of a copy to shared memory, as ncu counts them; a header of CUDA is no line of the program.
ASIDE = [("LDGSTS.E.BYPASS.128 [R0]", 0, 32, 24, 16, "/src/a.cu", 3)]
ASIDE += [("DFMA R0", 0, 32, 0, 0, "/usr/local/cuda-13/include/math.hpp", 3)]
#: 128 bytes of 400.
OF_ALL = {"uncoalesced_share": 0.875, "dram_bytes": 400}
SPARE, BANKS, LANES = {"uncoalesced_share": 0.8}, {"l1_share": 0.6}, {"memory_share": 0.1, "block_x": 128}
NEAR = {"uncoalesced_share": 0.6, "dram_bytes": 400, "roof_share": 0.7}


@pytest.mark.parametrize(
    ("said", "code", "roof", "told"),
    [
        # of the bytes that a kernel moves those stay that its threads ask for, where half of its time is the memory's
        (OF_ALL | {"bound": "memory"}, loads("LDG.E R0", 32, 4), 0.5, ("uncoalesced", "a.cu:3", 336)),
        (OF_ALL | {"bound": "compute"}, loads("LDG.E R0", 32, 4), 0.5, ("uncoalesced", "a.cu:3", 200)),
        (OF_ALL | {"bound": "memory"}, loads("LDG.E R0", None, None), 0.5, ("uncoalesced", "", 200)),
        # near its roof by bytes that few threads ask for
        (NEAR, loads("LDG.E R0", 40, 3), 0.7, ("uncoalesced", "a.cu:3", 332)),
        (NEAR, loads("LDG.E R0", 40, 7), 0.7, None),
        # caches serve what is not asked for
        ({"uncoalesced_share": 0.6, "memory_share": 0.3, "dram_bytes": 400}, (), 0.01, None),
        ({"uncoalesced_share": 0.6, "memory_share": 0.6, "dram_bytes": 400}, (), 0.01, ("uncoalesced", "", 240)),
        # of copies to shared memory ncu counts half as many that are none, and arithmetic goes on meanwhile
        (SPARE | {"compute_share": 0.3}, loads("LDG.E R0", 33, 8), 0.1, ("uncoalesced", "a.cu:3", 280)),
        (SPARE | {"compute_share": 0.3}, loads("LDGSTS.E.128 [R0]", 33, 8), 0.1, ("uncoalesced", "a.cu:3", 254)),
        (SPARE | {"compute_share": 0.7}, loads("LDG.E", 33, 8), 0.1, None),
        ({"uncoalesced_share": 0.33, "fp64_flop": 9.0, "flop": 10.0, "compute_share": 0.8}, ASIDE, 0.1,
         ("float64", "", 270)),
        # bytes side by side that begin anywhere touch a sector more; one of three channels of bytes is a cause
        *(({"uncoalesced_share": 0.46}, loads("LDG.E.S8 R0", sectors, 100, 100), 0.1, None) for sectors in (186, 200)),
        ({"uncoalesced_share": 0.46}, loads("LDG.E.S8 R0", 300, 100, 100), 0.1, ("uncoalesced", "a.cu:3", 266)),
        # of blocks: but for a tenth in which it begins and ends, and even blocks do so
        ({"sm_active_share": 0.475, "waves": 3.9}, (), 0.01, ("tail", "", 170)),
        # half of the warps at its end: of the rest a quarter, between none of it and half
        ({"sm_active_share": 0.475, "waves": 3.9, "occupancy_share": 0.8, "achieved_occupancy_share": 0.4}, (), 0.01,
         ("tail", "", 227)),
        ({"sm_active_share": 0.475, "waves": 1.05, "tail_share": 0.475}, (), 0.01, None),
        ({"sm_active_share": 0.475, "waves": 3.9, "tail_share": 0.025}, (), 0.01, ("tail", "", 170)),
        ({"sm_active_share": 0.475, "waves": 3.9, "dur_ns": 10_000}, (), 0.01, None),  # it hardly began
        ({"sm_active_share": 0.475, "waves": 0.9}, (), 0.01, None),  # too few blocks, evenly
        ({"sm_active_share": 0.9, "waves": 3.9}, (), 0.01, None),
        (FEW, (), 0.01, ("low-occupancy", "", 250)),
        # as many blocks as the GPU starts in that time: warps that all do the same, and ones that each do something
        (STARTS, (), 0.1, ("block-starts", "", 310)),
        *((STARTS | more, (), 0.1, None) for more in (
            {"dram_bytes": 64_000}, {"l1_hit_share": 0.0}, {"dram_share": 0.8}, {"starts_share": 0.8},
        )),
        # half as many, of which half of the threads have no result; not where one stores for all, or each reads its own
        (HALF, stores(6400), 0.1, ("block-starts", "", 220)),
        *((HALF, code, 0.1, None) for code in (stores(12_800), [*stores(6400), *by_threads(("UTMASTG", 1))])),
        *((HALF | more, stores(6400), 0.1, None) for more in (
            {"dram_read_bytes": 51_200}, {"l1_hit_share": 0.0}, {"starts_share": 0.4},
        )),
        # more blocks wait (their grid tells), or something else limits them
        *((FEW | more, (), 0.01, None) for more in (
            {"memory_share": 0.45}, {"waves": 3.0}, {"occupancy_share": 0.5}, {"limiter": "registers"}, {"block_y": 4},
            {"memory_share": None},
        )),
        # constants at an index of each thread, and at one that all have
        (READ, INDEXED, 0.1, ("divergent-constants", "a.cu:8", 248)),
        (READ | {"constant_share": 0.5}, INDEXED, 0.1, None),
        (READ, by_threads(("LDG.E R0", 50), ("LDC.64 R2, c[0x0][0x218]", 50)), 0.1, None),
        # atomics of each thread
        ({}, atomics(1000.0), 0.01, ("scatter-atomics", "a.cu:8", 396)),
        ({}, atomics(4.0), 0.01, None),
        # half of the accesses are to shared memory, of which nine tenths wait; no more is gained than the roof leaves
        (BANKS, shared(100), 0.1, ("bank-conflicts", "a.cu:8", 180)),
        ({"top_stall": "short_scoreboard"}, shared(100), 0.1, ("bank-conflicts", "a.cu:8", 180)),
        (BANKS | {"roof_share": 0.59}, shared(10), 0.59, ("bank-conflicts", "a.cu:8", 164)),
        (BANKS | {"bank_conflict_share": 0.2}, shared(100), 0.1, None),
        (BANKS | {"compute_share": 0.7}, shared(100), 0.1, None),  # beside busy arithmetic
        ({"l1_share": None, "top_stall": None}, shared(100), 0.1, None),
        (BANKS, shared(1000), 0.1, None),  # a sum of each block
        ({}, shared(100), 0.1, None),
        # three of four accesses are to local memory, as of arrays with variable indices
        ({"memory_share": 0.9}, LOCAL, 0.1, ("local-memory", "a.cu:10", 300)),
        ({"memory_share": 0.9, "uncoalesced_share": 0.7}, LOCAL, 0.1, ("local-memory", "a.cu:10", 300)),
        ({"memory_share": 0.9, "bound": "memory", "dram_bytes": 4000}, [*LOCAL, *loads("LDG.E R0", 4, 4)], 0.1,
         ("local-memory", "a.cu:10", 387)),  # of the bytes that it moves those stay that its threads ask for
        ({"memory_share": 0.9, "uncoalesced_share": 0.8}, LOCAL, 0.1, ("uncoalesced", "", 320)),
        ({"memory_share": 0.9, "fp64_flop": 1.0, "flop": 10.0}, LOCAL, 0.1, ("float64", "", 30)),
        ({"memory_share": 0.4}, LOCAL, 0.1, None),
        # three of four threads of each warp wait, or every other one; what a busy SM executes is partly nothing
        (LANES, diverging(8), 0.01, ("divergence", "a.cu:7", 300)),
        (LANES, diverging(16), 0.01, ("divergence", "a.cu:7", 200)),
        (LANES | {"compute_share": 0.9}, diverging(16), 0.01, ("divergence", "a.cu:7", 200)),
        (LANES, diverging(24), 0.01, None),
        (LANES | {"block_x": 1}, diverging(8), 0.01, None),  # a block that has no more
        (LANES | {"memory_share": 0.7}, diverging(8), 0.01, None),
        # a product of which each byte is used for 16 FLOP; not where larger tiles would be too few, or rows are
        (TILES, products(1 << 30), 0.1, ("small-tiles", "", 225)),
        (TILES, products(1 << 29), 0.1, None),
        (TILES | {"roof_share": 0.4, "memory_share": 0.8}, products(1 << 30), 0.4, ("small-tiles", "", 225)),
        *((TILES | more, products(1 << 30), 0.1, None) for more in (
            {"bound": "memory"}, {"roof_share": 0.3, "memory_share": 0.5}, {"waves": 2.0}, {"flop": 2.0**35},
        )),
        # L1 answers what threads ask for again and again, and works at its peak; the SM counts that as work
        (AGAIN, loads("LDG.E R0", 1 << 20, 1 << 20), 0.1, ("repeated-loads", "a.cu:3", 200)),
        (AGAIN, loads("LDG.E R0", 1 << 18, 1 << 18), 0.1, None),
        (AGAIN, [*loads("LDG.E R0", 1 << 20, 1 << 20), *shared(1)], 0.1, None),
        *((AGAIN | more, loads("LDG.E R0", 1 << 20, 1 << 20), 0.1, None) for more in (
            {"l1_share": 0.7}, {"dram_share": 0.6}, {"tensor_flop": 1.0}, {"memory_share": 0.9, "dram_bytes": None},
        )),
        # what runs is elsewhere, in functions of CUDA that are called in pairs
        (CALLS, called(8, 8), 0.01, ("allocation-in-loop", "a.cu:9", 396)),
        (CALLS | {"instructions": 60}, called(8, 8), 0.01, None),
        (CALLS | {"instructions": None}, called(8, 8), 0.01, None),
        (CALLS, called(8, 4), 0.01, None),
        (CALLS, called(8, 0), 0.01, None),  # an assertion
        (CALLS, called(8, 8, address="LDG.E.64 R6, desc[UR4][R2.64]"), 0.01, None),  # virtual functions
        # a product that loads in each turn what it multiplies, and waits for it
        (WAITS, in_turns(), 0.3, ("unpipelined-loads", "a.py:4", 200)),
        (WAITS | {"roof_share": 0.5}, in_turns(), 0.5, None),  # as near as others are
        (WAITS | {"top_stall": "barrier"}, in_turns(), 0.3, ("unpipelined-loads", "a.py:4", 200)),
        (WAITS | {"top_stall": "math_pipe_throttle"}, in_turns(), 0.3, None),
        (WAITS | {"tensor_flop": 2.0**33}, in_turns(), 0.3, None),
        (WAITS, in_turns("LDGSTS.E.BYPASS.128 [R0], desc[UR4][R2.64]"), 0.3, None),  # which go on meanwhile
        (WAITS, [*in_turns(), *by_threads(("UTMALDG.2D [UR8], [UR4]", 9))], 0.3, None),
        (WAITS, in_turns(turns=2), 0.3, None),  # no loop
        (WAITS, in_turns(sass="HFMA2.MMA R4, -RZ, RZ, 0, 0"), 0.3, None),
        # a constant that is loaded is no product
        (LANES, diverging(8, "HFMA2.MMA.BF16_V2 R4, -RZ, RZ, 0, 0"), 0.01, ("divergence", "a.cu:7", 300)),
        # turned off by a predicate, one thread waits for all, and products of whole warps
        *((LANES, diverging(8, sass), 0.01, None) for sass in (
            "@P0 FFMA R0, R1", "LDG.E.STRONG.GPU R0, desc[UR4][R2.64]", "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8]",
        )),
    ],
)  # fmt: skip
def test_what_counters_prove_of_a_kernel(proven, said, code, roof, told):
    found = [(one.rule, one.where, one.at_stake_ns) for one in proven(said, code, roof=roof)]
    assert found == ([told] if told else [])


@pytest.mark.parametrize(
    ("spilled", "headline"), [(1.0, "Spilled registers are 75.0 %"), (0.1, "75.0 % of a kernel's")]
)
def test_spilled_registers_are_told_from_arrays(proven, spilled, headline):
    (told,) = proven({"memory_share": 0.9, "spill_share": spilled}, LOCAL, roof=0.1)
    assert told.headline.startswith(headline)


MEAN, MOST = (f"void at::native::reduce_kernel<512, 1, ReduceOp<float, {of}Ops<float>>>" for of in ("Mean", "Max"))


@pytest.mark.parametrize(
    ("name", "sectors", "dram_share", "stake"),
    [
        ("cupy_mean", 3200 << 20, 0.005, 384),  # of 100 bytes that it reads it has read 99 before
        ("cupy_var_core_float32", 3200 << 20, 0.1, 240),  # some passes over memory are left
        (MEAN, 3200 << 20, 0.005, 384),
        (MOST, 3200 << 20, 0.005, None),
        ("cupy_mean", 200 << 20, 0.005, None),  # a variance reads twice
        ("void at::native::sbtopk::gatherTopK<float>", 3200 << 20, 0.005, None),
    ],
)
def test_sums_of_libraries_read_elements_again(proven, name, sectors, dram_share, stake):
    said = {"dram_share": dram_share, "dram_bytes": 1 << 30, "compute_share": 0.9}
    found = proven(said, [("LDG.E R0", 0, 100, sectors, sectors, None, None)], roof=0.01, name=name)
    assert [(one.rule, one.at_stake_ns) for one in found] == [("overlapping-windows", stake)] * bool(stake)
