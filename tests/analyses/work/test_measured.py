"""Work that tools measured: as ncu counted it, and as GPU metrics sampled it."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import kanalyze
from analyses.work.test_roofs import OTHER, program
from kanalyze.analyses.counters.roofline import _CORES, BUSY
from kanalyze.readers.capture.reports import counters_at
from support.command import REPORTS, SAMPLES
from support.counters import measured
from support.real_reports import real_report

CYCLES, OPS = 1000, [op for ops, _ in _CORES.values() for op in ops]


def counted(*launches, name=OTHER):
    """What ncu counts of launches of one kernel: products in fp32, and bytes, of each."""
    zero = {f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed": 0 for op in OPS} | {BUSY: 0}
    ffma = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum.per_cycle_elapsed"
    return measured(
        *(
            zero
            | {"smsp__cycles_elapsed.avg": CYCLES, ffma: flop / CYCLES / 2}
            | {"dram__bytes_read.sum": moved, "dram__bytes_write.sum": 0}
            for flop, moved in launches
        ),
        names=[name] * len(launches),
    )


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["add", "add_parallel", "square", "launch_bound_plain"])
def test_a_launch_that_ncu_counted_has_its_figures(name):
    report = real_report(SAMPLES / name)
    joined = kanalyze.joined(report, counters_at(SAMPLES / name)).drop_nulls(["launch_event_id", "dram_bytes_per_s"])
    work = kanalyze.work(report).filter(measured="exact", kernels=1)
    both = work.join(joined, left_on="event_id", right_on="launch_event_id")
    assert both.height
    counts = kanalyze.roofline(counters_at(SAMPLES / name)).select("event_id", "dram_bytes", "flop")
    told = both.join(counts, left_on="event_id_right", right_on="event_id", suffix="_ncu")
    assert told.get_column("dram_bytes").to_list() == told.get_column("dram_bytes_ncu").to_list()
    assert told.get_column("flop").to_list() == pytest.approx(told.get_column("flop_ncu").to_list(), abs=1)


SHAPES = st.sampled_from([None, [[64, 32], [32, 64]], [[64, 96], [96, 64]]])
COUNTS = st.tuples(st.sampled_from([2_000, 4_000]), st.sampled_from([10_000, 30_000]))


@pytest.mark.slow
@given(st.lists(st.tuples(SHAPES, st.sampled_from([100_000, 101_000, 200_000])), min_size=1, max_size=5),
       st.lists(COUNTS, min_size=1, max_size=3))  # fmt: skip
def test_counts_of_others_are_taken_where_inputs_or_times_are_the_same(launches, counts):
    made = program([(shapes, OTHER, ns) for shapes, ns in launches])
    ncu = counted(*counts)
    found = kanalyze.work(replace(made, counted=lambda: ncu))
    shapes, times = {str(one) for one, _ in launches}, [ns for _, ns in launches]
    alike = None
    if len({flop for flop, _ in counts}) == len({moved for _, moved in counts}) == 1:
        if len(counts) == len(launches) or (len(shapes) == 1 and "None" not in shapes):
            alike = "exact"
        elif max(times) <= 1.2 * min(times):
            alike = "alike"
    assert set(found.get_column("measured")) == {alike}
    assert set(found.get_column("dram_bytes")) == {counts[0][1] if alike else None}
    rows = found.filter(known="model").select("flop", "bytes").rows()
    assert rows == kanalyze.work(made).filter(known="model").select("flop", "bytes").rows()
    assert {*found.filter(known=alike or "none").get_column("flop")} <= {counts[0][0]}


def test_products_by_gpu_metrics_are_those_of_their_shape():
    """17 products of 8,192 × 8,192, under a clock that falls."""
    row = kanalyze.work(real_report(REPORTS / "metrics_matmul.sqlite")).row(0, named=True)
    assert (row["known"], row["measured"], row["type"], row["group"]) == ("sampled", "sampled", "bf16", "products")
    assert row["flop"] == pytest.approx(17 * 2 * 8192**3, rel=0.03)
    assert row["roof_ns"] == pytest.approx(0.94 * row["dur_ns"], rel=0.01)  # the share of time of its tensor cores


def test_copies_by_gpu_metrics_move_what_they_copy():
    row = kanalyze.work(real_report(REPORTS / "gpu_metrics.sqlite")).row(0, named=True)
    assert (row["flop"], row["bound"]) == (0, "memory")
    assert row["dram_bytes"] == row["bytes"] == pytest.approx(11 * 2 * (4 << 30), rel=0.01)


def test_shares_that_whole_percents_cannot_tell_are_not_told():
    work = kanalyze.work(real_report(REPORTS / "metrics_phases.sqlite"))
    assert work.select("dram_bytes", "measured", "known").null_count().row(0) == (work.height,) * 3
