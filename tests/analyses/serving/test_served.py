"""Gaps, sizes of graphs, padding and what to do first, on engines whose times are known; and their pages."""

import json
from collections import defaultdict
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import strategies as st

import kanalyze
from kanalyze.analyses.ranges.instances import compare
from kanalyze.analyses.serving.engine_steps import engine_steps, graph_sizes
from kanalyze.analyses.serving.served import by_kind, served, size_to_capture
from kanalyze.renderers.formats import json as json_pages, markdown, terminal
from kanalyze.renderers.page import Look
from support.build import host, kernel, launched, memcpy, nvtx, report
from support.command import SAMPLES
from support.page_schema import mistakes
from support.real_reports import real_report
from support.serving import HOST, PER_REQUEST, SAMPLER, SIZES, USUAL, atom, events_of
from support.strategies import slow_given

ENGINE = report(events_of(USUAL, label=atom))


def test_gaps_by_what_the_gpu_waited_for_add_up_to_them():
    steps, gaps = engine_steps(ENGINE), engine_steps(ENGINE, by="gap")
    for kind, rows in gaps.partition_by("kind", as_dict=True).items():
        assert rows["ns"].sum() == steps.filter(kind=kind[0])["gap_ns"].sum()
    assert gaps["share"].sum() == pytest.approx(steps["gap_ns"].sum() / (steps["gap_ns"].sum() + steps["dur_ns"].sum()))
    decode = {
        (bucket, culprit): (ns, number)
        for bucket, culprit, ns, number in gaps.filter(kind="decode").select("bucket", "culprit", "ns", "gaps").rows()
    }
    number = steps.filter(kind="decode").height
    assert decode["kernel", "argmax"] == (SAMPLER * number, number)
    assert decode["host", "schedule"] == ((HOST - 10_000) * number, number)


def test_gaps_are_cut_by_the_window():
    third = engine_steps(ENGINE).row(2, named=True)["gpu_start_ns"]
    gaps = engine_steps(ENGINE, by="gap", window=f"{third - 5_000}ns..{third + 5_000}ns")
    assert (gaps["ns"].sum(), gaps["share"].sum()) == (5_000, 0.5)


def test_gaps_that_nothing_but_labels_names_have_one_name():
    events = [one for one in events_of(USUAL, label=atom) if one.name not in {"schedule", "sample"}]
    bare = report([*events, host("op", "aten::empty", 1_000_000, 1_000_100)])
    gaps = engine_steps(bare, by="gap").filter(bucket="host", kind="decode")
    assert set(gaps["culprit"]) == {"decode step", "between cudaStreamSynchronize and decode step"}


@pytest.mark.parametrize(
    ("text", "number"), [("decode step#*", 68), ("mixed step", 4), ("*step", 76), ("decode*#2", 1), ("step", 76)]
)
def test_steps_are_windows_by_their_kind_and_none_is_odd(text, number):
    found = compare([ENGINE.narrow(window=one) for one in ENGINE.windows(text)]).instances
    assert (found.height, found["odd"].any()) == (number, False)


def test_steps_of_an_engine_are_no_variants_of_one_another():
    assert kanalyze.variants(real_report(SAMPLES / "serving" / "vllm.sqlite")).is_empty()


def test_shares_are_of_the_window_and_sizes_in_order():
    kinds, graphs = engine_steps(ENGINE, by="kind"), engine_steps(ENGINE, by="graph")
    assert kinds["share"].to_list() == [ns / kinds["ns"].sum() for ns in kinds["ns"]]
    assert graphs.filter(kind="decode").select("mode", "padded").rows() == [
        *(("graph", 4), ("graph", 8), ("graph", 16), ("eager", None))
    ]
    columns = ("device", "kind", "mode", "padded", "requests", "dur_ns", "unseen_ns")
    rows = [(0, "decode", "graph", 4, 4, ns, None) for ns in (10, 10, 100)] + [(0, "decode", "graph", 8, 8, 70, 40)]
    assert graph_sizes(pl.DataFrame(rows, columns, orient="row"))["median_ns"].to_list() == [10, 30]


@slow_given(st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_padding_takes_what_the_engine_was_made_to_take(requests):
    of = report(events_of([(0, number) for number in requests], label=atom))
    sizes = {row["padded"]: row for row in engine_steps(of, by="graph").filter(mode="graph").to_dicts()}
    asked = defaultdict(list)
    for number in requests:
        if number <= SIZES[-1]:
            asked[next(size for size in SIZES if size >= number)].append(number)
    assert {size: row["count"] for size, row in sizes.items()} == {size: len(of) for size, of in asked.items()}
    for place, (size, numbers) in enumerate(sorted(asked.items())):
        row = sizes[size]
        assert (row["least_requests"], row["most_requests"]) == (min(numbers), max(numbers))
        assert row["lost_ns"] == (PER_REQUEST * sum(size - number for number in numbers) if place else None)
    saved = defaultdict(int)
    for size, numbers in sorted(asked.items())[1:]:
        for other in {*numbers} - {size}:
            saved[other] += PER_REQUEST * (size - other) * sum(number <= other for number in numbers)
    best = size_to_capture(engine_steps(of), engine_steps(of, by="graph"))
    most = max(saved.values(), default=0)
    expected = min((size for size, ns in saved.items() if ns == most), default=None)
    assert best == (None if expected is None else (expected, pytest.approx(most)))


SLOW_HOST = {"host": 60_000, "sizes": (16,), "apart": 900_000}
PREPARE = "prepare a step while the one before runs: the program's own code outside CUDA, most in schedule"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"host": 400_000}, PREPARE),
        ({"host": 60_000, "sizes": (1, 16)}, "capture a graph of 3 requests as well: padding takes 7.800 ms"),
        (SLOW_HOST, "capture graphs for all decode steps: 8 of 68 run without one, up to 18 requests"),
    ],
)
def test_what_to_do_first_is_what_takes_most(engine, said):
    steps = USUAL if len(engine.get("sizes", SIZES)) != 2 else [(0, 1), *[(0, 3)] * 30, *[(0, 16)] * 4]
    of = report(events_of(steps, label=atom, **engine))
    assert served(of).remarks["engine_steps"].startswith(f"For the engine: {said} (at most ")


@pytest.mark.slow
def test_a_step_that_prepares_long_holds_the_gpu_up_itself():
    events = events_of([(0, number) for number in (3, 5, 6, 9, 12)] * 4, label=atom)
    early = [one for one in events if one.name != "schedule"]
    slow = [replace(one, start=one.start - 120_000) if one.name.startswith("decode[") else one for one in early]
    found = served(report(slow))
    assert found.sentence.endswith("most for the program's own code outside CUDA (the decode step itself).")
    assert "most in the decode step itself (at most " in found.remarks["engine_steps"]


@pytest.mark.slow
def test_an_engine_that_wastes_nothing_has_nothing_to_do():
    assert served(report(events_of([(0, 4)] * 20, label=atom, slower=40))).remarks == {}


@pytest.mark.slow
def test_a_report_without_an_engine_has_none_of_it():
    of = report(events_of([(0, 4)] * 4, label=lambda *_: "work"))
    assert served(of) is None
    assert "ENGINE STEPS" not in terminal.render([kanalyze.overview(of)], Look(80), 6)


def test_the_page_names_the_step_and_its_kinds(gold):
    page = kanalyze.overview(ENGINE)
    assert page.answer.startswith("76 steps of ATOM: 68 decode (")
    gold(terminal.render([page], Look(80), None), "overview_engine_80.txt")
    gold(terminal.render([page], Look(100), 6), "overview_engine_100.txt")


def test_what_is_not_recorded_is_no_time_of_a_step():
    copy, late = memcpy(5_000, 9_000, stream=9), kernel(800_000_000, 802_000_000, correlation=2)
    begun = *launched(1_000, 2_000, copy, "cudaMemcpyAsync"), *launched(10_000, 11_000, late)
    assert kanalyze.overview(report([nvtx(atom(0, 4, 4), 0, 12_000), *begun])).answer == (
        "1 step of ATOM: 1 decode (2.006 ms, 501.5 µs a token). The GPU limits the decode step. A decode step takes "
        "802.0 ms under test, of which the recording does not show 800.0 ms."
    )


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_steps_without_labels_are_learned_from_what_they_run(slower):
    of = report(events_of([(9, 0), *USUAL], label=None, layers=5, slower=slower))
    steps = engine_steps(of)
    kinds = ["prefill" if not many else "mixed" if prompt or many > SIZES[-1] else "decode" for prompt, many in USUAL]
    assert steps["kind"].to_list() == kinds  # of the first one nobody knows where it begins
    assert {*steps["engine"]} == {"an engine without labels"}
    assert served(of).sentence.startswith("76 steps of an engine without labels: ")
    assert {*kanalyze.iterations(of)["kind"]} == {"steady"}
    if slower == 1:
        of = report([*events_of([(9, 0), *USUAL], label=None, layers=5), nvtx("gpu_model_runner: forward", 0, 10**9)])
        assert engine_steps(of).select("engine", "kind").rows() == [("vLLM", kind) for kind in kinds]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("steps", "more"),
    [
        ([(0, 4)] * 40, {}),  # a loop that replays one graph
        (USUAL[:8], {}),  # few
        (USUAL, {"sizes": (16,)}),  # one size
        (USUAL, {"sizes": (16,), "noted": True}),
        ([(0, number) for _, number in USUAL if 0 < number <= 16], {}),  # nothing attends kernel by kernel
        (USUAL, {"backward": True}),
    ],
)
def test_nothing_is_learned_of_other_programs(steps, more):
    more = dict(more)
    further = [kernel(0, 1, name="flash_bwd_kernel")] * more.pop("backward", False)
    if more.pop("noted", False):  # now and then a kernel of its own after the graph
        for at in range(1, 10):
            further += launched(10**7 * at, 10**7 * at + 1, kernel(10**7 * at + 5, 10**7 * at + 9, correlation=-at))
    assert engine_steps(report([*events_of(steps, label=None, layers=5, **more), *further])).is_empty()


@pytest.mark.slow
def test_every_format_has_the_sections_and_the_schema_their_tables():
    for make, kind in ((kanalyze.overview, "first_page"), (kanalyze.summarize, "full")):
        page = make(ENGINE)
        text = markdown.render([page], None)
        assert all(title in text for title in ("Engine steps", "Between steps", "Sizes of graphs"))
        found = json.loads(json_pages.render([page]))
        assert found["engine_steps"][1]["kind"] == "decode"
        assert not mistakes(found, kind)


@pytest.mark.slow
def test_one_step_is_a_report_of_one_step_with_what_repeats_in_it():
    of = report(events_of([(500, 3)], layers=40))
    rows = kanalyze.iterations(of)
    assert rows.select("name", "kind", "found_by").rows() == [("mixed step", "steady", "engine steps")]
    page = kanalyze.overview(of)
    assert page.answer.startswith("1 step of vLLM: 1 mixed (")
    assert "In it launches repeat at least 39 times" in page.answer
    assert kanalyze.phases(of).filter(phase="steady")["part"].to_list() == ["mixed step"]


@pytest.mark.slow
def test_labels_of_a_kind_are_one_row_among_the_operators():
    labels = ("step[DECODE bs=2]", "step[DECODE bs=3]", "step[EXTEND bs=1 toks=4]", "aten::mm")
    events = [host("op", name, 100 * number, 100 * number + 90) for number, name in enumerate(labels)]
    events += [nvtx(name, 100 * number, 100 * number + 90) for number, name in enumerate(labels[:3])]
    for start, length in ((0, 10), (100, 20), (200, 5), (300, 25)):
        ran = kernel(start + 10, start + 10 + length, correlation=start)
        events += launched(start + 5, start + 8, ran)
    of = report(events)
    told = by_kind(of, kanalyze.ops(of)).select("name", "count", "exclusive_device_ns").rows()
    assert told == [("decode step", 2, 30), ("aten::mm", 1, 25), ("prefill step", 1, 5)]
    assert by_kind(report(events[3:4]), kanalyze.ops(report(events))).equals(kanalyze.ops(report(events)))


def test_nothing_that_is_served_is_odd():
    rows = kanalyze.iterations(ENGINE)
    shown = rows.group_by("name", "kind").len().sort("name").rows()
    assert shown == [("decode step", "steady", 68), ("mixed step", "steady", 4), ("prefill step", "steady", 4)]
    assert rows["window"][0] == "prefill step#1"
    assert kanalyze.ledger(ENGINE, window="decode step#3")["ns"].sum() == rows.filter(name="decode step")["dur_ns"][2]
    culprits = kanalyze.culprits(ENGINE)
    assert {*culprits["range"].cast(pl.String).drop_nulls()} <= {
        "decode step", "mixed step", "prefill step", "schedule", "sample",
    }  # fmt: skip
