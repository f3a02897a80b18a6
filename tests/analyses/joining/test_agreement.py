"""What two tools tell of one program: equal, explained, or neither, which is a gate that fails."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze.analyses.counters.counters import LATENCY, stall_metric
from kanalyze.analyses.joining._reasons import FIGURES, REASONS, why_apart
from kanalyze.readers.capture.read_capture import selective
from kanalyze.readers.capture.reports import every_report
from kanalyze.readers.ncu.read_csv_rep import chooses
from support.build import call, kernel, memcpy, report
from support.command import REPORTS, SAMPLES, captured, run
from support.counters import measured
from support.exports import altered
from support.real_reports import real_capture

pytestmark = pytest.mark.slow

CONFIG = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 64}


def of_tool(tool, *events):
    return report([call("cudaLaunchKernel", 0, 1), *events], meta={"tool": tool, "path": Path(f"of {tool}")})


def k(start, end, name="k", **config):
    return kernel(start, end, name=name, side=CONFIG | config)


def told(*reports):
    """Figure and what both tell, with verdict and reason."""
    rows = kanalyze.agreement(*reports).select("figure", "first", "second", "verdict", "reason").rows()
    return {(figure, first, second): (verdict, reason or "") for figure, first, second, verdict, reason in rows}


def nsys(*events):
    return of_tool("nsys", *events)


def torch(*events):
    return of_tool("torch.profiler", *events)


def test_the_same_program_is_equal_but_for_its_time():
    assert told(nsys(k(0, 1000)), torch(k(0, 1100))) == {
        ("launches", 1, 1): ("equal", ""),
        ("registers", 32, 32): ("equal", ""),
        ("shared memory", 64, 64): ("equal", ""),
        ("duration", 1000, 1100): ("explained", "spread"),
    }


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([k(0, 1000, registers_per_thread=40)], ("registers", 32, 40)),
        ([k(0, 1000, dynamic_shared_bytes=128)], ("shared memory", 64, 128)),
        ([k(0, 1000), k(2000, 3000)], ("launches", 1, 2)),
        ([k(0, 1000), k(2000, 3000, name="j")], ("launches", None, 1)),
        ([k(0, 9000)], ("duration", 1000, 9000)),
        ([k(0, 1000), memcpy(2000, 2100, size_bytes=7)], ("bytes copied", None, 7)),
    ],
)
def test_what_nothing_explains(other, expected):
    assert told(nsys(k(0, 1000)), torch(*other))[expected] == ("unexplained", "")


def test_of_bytes_that_neither_tool_knows_there_is_no_figure():
    copied = k(0, 1000), memcpy(2000, 2100, size_bytes=None)
    assert ("copies", 1, 1) in told(nsys(*copied), torch(*copied))
    assert not [figure for figure, _, _ in told(nsys(*copied), torch(*copied)) if figure == "bytes copied"]


@pytest.mark.parametrize(
    ("events", "under", "figure", "expected"),
    [
        # ncu measures some launches alone
        ([k(0, 1000), k(2000, 3000)], {}, ("launches", 2, 1), ("explained", "filter")),
        # a kernel that only ncu has, or in another shape, is not explained
        ([k(0, 1000)], {"names": ["other"]}, ("launches", None, 1), ("unexplained", "")),
        ([k(0, 1000), k(2000, 3000)], {"grid": (7, 1, 1)}, ("launches", None, 1), ("unexplained", "")),
    ],
)
def test_launches_under_ncu(events, under, figure, expected):
    reports = nsys(*events), measured({}, **{"names": ["k"], "block": (32, 1, 1), **under})
    assert told(*reports)[figure] == expected
    assert under.get("grid", (1,))[0] in kanalyze.agreement(*reports).filter(figure="launches")["grid_x"]


def fewer_launches(tmp_path, change):
    """What is said of the kernel that ncu measured fewer launches of, after a `change` of its step in the manifest."""
    folder = Path(shutil.copytree(SAMPLES / "streams", tmp_path / "capture"))
    manifest = json.loads((folder / "manifest.json").read_text())
    change(next(step for done in manifest["passes"] for step in done["steps"] if step["name"] == "ncu"))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    rows = kanalyze.agreement(*every_report(folder)).filter(figure="launches", second_tool="ncu")
    (row,) = rows.filter(pl.col("first") != pl.col("second")).to_dicts()
    return row["verdict"], row["reason"], "its command is not known" in (row["why"] or "")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"command": ["ncu", "--kernel-id", "::regex:^k$:1", "program"]}, ("explained", "filter", False)),
        ({"command": ["ncu", "--kernel-name-base", "mangled", "program"]}, ("unexplained", None, False)),
        ({"name": "other"}, ("explained", "filter", True)),  # its command is not known
    ],
)
def test_ncu_s_command_has_to_choose_launches_where_it_is_known(tmp_path, change, expected):
    assert fewer_launches(tmp_path, lambda step: step.update(change)) == expected


SOME, EVERY, NOBODY_KNOWS = ["ncu", "--launch-count", "1", "program"], ["ncu", "program"], ["ncu", "--odd", "program"]


@pytest.mark.parametrize(
    ("runs", "known", "expected"),
    [
        ([SOME, SOME], True, ("explained", "filter")),
        ([SOME, EVERY], False, ("unexplained", "")),
        ([EVERY, NOBODY_KNOWS], False, ("unexplained", "")),
        ([SOME, NOBODY_KNOWS], None, ("explained", "filter")),
    ],
)
def test_of_several_runs_one_that_chose_nothing_should_have_every_launch(runs, known, expected):
    """In one capture as in several."""
    commands = {f"ncu-{at}": command for at, command in enumerate(runs)}
    assert selective(commands, commands) is known
    captures = []
    for at, command in enumerate(runs):
        one = measured({TOOK: 100 + at}, names=["k"], block=(32, 1, 1))
        captures.append(replace(one, meta=replace(one.meta, path=Path(f"run {at}"), selective=chooses(command))))
    assert told(nsys(*(k(1000 * at, 1000 * at + 500) for at in range(3))), *captures)["launches", 3, 2] == expected


@pytest.mark.parametrize(
    ("first", "second", "others", "verdict"),
    [
        *(([100, 110, 120], times, [], "explained") for times in ([115, 120, 130], [121, 125, 130])),
        ([100, 110, 120], [200, 210, 220], [], "unexplained"),
        ([100] * 40 + [900], [500] * 3, [], "unexplained"),  # one launch that took long is no spread
        ([5000], [5300], [], "explained"),  # one launch each, and nothing else to learn from
        ([5000], [5600], [], "unexplained"),
        ([5000] * 2, [5000, 5001], [], "explained"),
        # other kernels show how far two launches are apart
        ([5000], [5400], [5000, 6000], "explained"),
        ([5000], [5400], [5000, 5010], "unexplained"),
    ],
)
def test_durations_of_two_runs_are_held_against_their_spread(first, second, others, verdict):
    def launches(tool, times):
        rows = [*((took, "k") for took in times), *((took, "j") for took in others)]
        return of_tool(tool, *(k(at * 10_000, at * 10_000 + took, name) for at, (took, name) in enumerate(rows)))

    rows = kanalyze.agreement(launches("nsys", first), launches("torch.profiler", second))
    assert rows.filter(figure="duration", name="k")["verdict"].to_list() == [verdict]


CLOCK, TOOK = "gpc__cycles_elapsed.avg.per_second", "gpu__time_duration.sum"
GPU = {"clock_hz": 2_000_000_000, "l2_bytes": 50_000_000, "memory_bandwidth_bytes_per_s": 10**12}


def under_ncu(took, *, base=(), waits=0.0, clock=1.0e9, more=()):
    """The reason for a kernel of 10 µs that takes another time under ncu."""
    stalls = {stall_metric("long_scoreboard"): 10 * waits, stall_metric("selected"): 1.0, LATENCY: 10.0}
    counters = {TOOK: took, CLOCK: clock, **stalls, **dict(more)}
    events = [call("cudaLaunchKernel", 0, 1), k(100, 10_100), *base]
    program = report(events, limits=GPU, meta={"tool": "nsys", "path": Path("of nsys")})
    rows = kanalyze.agreement(program, measured(counters, names=["k"], block=(32, 1, 1))).filter(figure="duration")
    return rows["reason"].to_list()[0]


WRITING_BACK = {"dram__bytes_read.sum": 2e6, "dram__bytes_write.sum": 0.0}.items()  # of 2 µs


@pytest.mark.parametrize(
    ("took", "more", "reason"),
    [
        (10_100, {}, "spread"),
        (20_000, {}, "clocks"),  # half the clock
        (24_000, {}, None),
        (24_000, {"waits": 0.3}, "caches"),
        (40_000, {"waits": 0.3}, None),
        (24_000, {"clock": 2.0e9, "waits": 0.1}, None),
        # faster than in the program, where it had something to wait for
        (8000, {}, None),
        (8000, {"base": [kernel(4000, 6000, name="j", stream=8)]}, "beside others"),
        (8000, {"base": [memcpy(4000, 6000, direction="Unified Host-to-Device")]}, "page faults"),
        (8000, {"more": WRITING_BACK}, "caches"),
        (4000, {"more": WRITING_BACK}, None),
    ],
)
def test_what_measuring_with_ncu_explains_and_no_more(took, more, reason):
    assert under_ncu(took, **more) == reason


def test_a_window_explains_what_agrees_without_it_and_nothing_else():
    events = k(0, 1000), k(2000, 3000), k(4000, 5000, name="j"), memcpy(6000, 6100, size_bytes=7)
    ncu = measured({}, {TOOK: 9000.0}, names=["j", "k"], block=(32, 1, 1))
    assert told(nsys(*events), ncu)["duration", 1000, 9000] == ("explained", "replay")  # no clocks tell how much
    rows = kanalyze.agreement(nsys(*events), torch(*events), ncu, window="0ns..1500ns")
    assert "unexplained" not in rows["verdict"]
    explained = rows.filter(reason="window").select("figure", "second_tool", "name", "first", "second", "why")
    assert {row[:3] for row in explained.rows()} > {("launches", tool, "j") for tool in ("torch.profiler", "ncu")} | {
        ("launches", "torch.profiler", "k")
    }
    assert explained["why"].unique().to_list() == ["equal in the whole report"]

    more = torch(*[k(at, at + 1000) for at in (0, 2000, 4000)], k(6000, 7000, name="other"))
    rows = kanalyze.agreement(nsys(*events), more, window="0ns..1500ns").filter(
        verdict="unexplained", figure="launches"
    )
    assert sorted(rows["name"]) == ["k", "other"]


def with_trials(count, flush, *, tried, tool="nsys"):
    events = [call("cudaLaunchKernel", 0, 1)]
    for at in range(count):
        events += [kernel(100 * at, 100 * at + 10, name="fill", side=CONFIG)] * flush
        events += [kernel(100 * at + 50, 100 * at + 60, name="tuned", side=CONFIG)]
    row = {"source": "triton", "num_warps": 4, "num_stages": 1}
    compiled = [{"name": name, "hash": f"{number}", **row} for number, name in enumerate(tried)]
    events.append(k(99_000, 99_010))
    return report(events, meta={"tool": tool, "path": Path(f"of {tool}")}, compiled_kernels=compiled)


def reasons(*, tried):
    of_torch = with_trials(5, 1, tried=(), tool="torch.profiler")
    rows = kanalyze.agreement(with_trials(3, 1, tried=tried), of_torch).filter(figure="launches")
    return dict(rows.select("name", "reason").iter_rows())


def test_trials_of_triton_s_autotuner_are_those_of_kernels_with_several_variants():
    assert reasons(tried=["tuned", "tuned"]) == {"tuned": "autotuner", "fill": "autotuner", "k": None}
    assert reasons(tried=["tuned", "k"]) == {"tuned": None, "fill": None, "k": None}


def test_what_torch_compile_measured_is_counted():
    """106 launches of each of two variants, 412 fills of the cache, 24 copies: all that was launched meanwhile."""
    rows = kanalyze.agreement(*real_capture(SAMPLES / "gelu")).filter(reason="compile")
    assert sorted(rows["difference"].fill_null(0)) == [0] * 6 + [106]
    assert "412 of 412 by torch.profiler; the rest is equal" in rows["why"].to_list()


def test_the_launch_that_ncu_measured_is_compared_and_not_the_mean():
    rows, joined = (make(*real_capture(SAMPLES / "square")) for make in (kanalyze.agreement, kanalyze.joined))
    exact = joined.filter(ncu_match="exact")["launch_ns"].cast(float)
    assert sorted(rows.filter(figure="duration", second_tool="ncu")["first"]) == sorted(exact)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SAMPLES.glob("*/manifest.json")))
def test_tools_agree_on_the_samples(name):
    rows = kanalyze.agreement(*real_capture(SAMPLES / name))
    assert rows.filter(verdict="unexplained").is_empty()
    assert rows.filter(figure="registers")["verdict"].unique().to_list() == ["equal"]


def test_the_command_fails_where_nothing_explains_it():
    """Reports of two different programs."""
    files = (SAMPLES / "square" / "nsys.sqlite", SAMPLES / "cdist" / "torch.json.gz")
    ran = run("verify", *files, "--format", "json")
    assert (ran.status, ran.error) == (1, "")
    assert "unexplained" in {row["verdict"] for row in json.loads(ran.text)}


# Sampled counters of a GPU against those that ncu counted of the same kernel.


SAMPLED, COUNTED = REPORTS / "metrics_matmul.sqlite", REPORTS / "ncu" / "matmul.raw.csv"


def sampled(*reports):
    found = kanalyze.agreement(*map(kanalyze.read, reports))
    return {row["figure"]: row for row in found.iter_rows(named=True) if row["figure"] in FIGURES}


def test_a_product_of_an_h200_was_sampled_and_counted_alike():
    found = sampled(SAMPLED, COUNTED)
    assert list(found) == [*FIGURES]
    read, written, active, tensor = found.values()
    assert (read["first"], read["second"]) == (pytest.approx(1.2505e9, rel=0.005), 1_250_500_096)
    assert abs(written["first"] - written["second"]) < 0.025e9
    assert (active["first"], tensor["first"]) == (pytest.approx(0.967, abs=0.002), pytest.approx(0.938, abs=0.002))
    assert tensor["second"] == pytest.approx(0.9345)
    assert {(row["verdict"], row["reason"]) for row in found.values()} == {("explained", "samples")}
    assert {(row["first_tool"], row["second_tool"]) for row in found.values()} == {("nsys", "ncu")}


def test_what_is_further_apart_is_told_and_fails_the_gate(tmp_path):
    other = tmp_path / "other.raw.csv"
    text = COUNTED.read_text()
    assert "1,250,500,096" in text
    other.write_text(text.replace("1,250,500,096", "2,250,500,096"))
    assert {name for name, row in sampled(SAMPLED, other).items() if row["verdict"] == "unexplained"} == {"DRAM read"}
    ran = run("verify", SAMPLED, other)
    assert (ran.status, "DRAM read" in ran.text) == (1, True)


def test_of_a_capture_the_samples_are_those_of_their_own_pass(tmp_path):
    plain = altered(tmp_path, SAMPLED, "DROP TABLE GPU_METRICS")
    folder = captured(tmp_path / "run", samples_sqlite=SAMPLED, ncu_raw_csv=COUNTED, nsys_sqlite=plain)
    ran = run("verify", "--all", folder)
    assert ran.status == 0
    assert "tensor cores active    93.8 %    93.5 %" in ran.text
    assert "samples: as near as samples of another run tell" in ran.text


ROW = {"unit": "bytes", "first": 1e6, "second": 1e6, "step": 1e4, "samples": 30, "l2_bytes": 10**6, "crowded": False}
SHARE = {**ROW, "unit": "share", "first": 0.5, "second": 0.5, "step": 0.01, "clock_hz": 1e9, "ncu_clock_hz": 1e9}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**ROW, "second": 1.12e6}, "samples"),
        ({**ROW, "second": 2.1e6}, "caches"),
        ({**ROW, "second": 0.5e6}, "caches"),
        ({**ROW, "second": 2.6e6}, None),
        ({**ROW, "second": 2.6e6, "crowded": True}, "beside others"),
        ({**ROW, "second": 2.1e6, "l2_bytes": None}, None),
        ({**SHARE, "second": 0.55}, "samples"),
        ({**SHARE, "second": 0.7}, None),
        ({**SHARE, "second": 0.7, "ncu_clock_hz": 1.5e9}, "clocks"),
        ({**SHARE, "second": 0.7, "ncu_clock_hz": None}, None),
        ({**SHARE, "first": 0.0, "second": 0.01}, "samples"),
    ],
)
def test_what_explains_a_difference(row, reason):
    found = why_apart(row)
    assert (found[0] if found else None) == reason
    assert found is None or found[0] in REASONS
