"""Host time by operator, annotation and Python function: by hand, then against a model that goes instant by instant."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.idle._idle_parts import IDLE
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.gaps import gaps
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, report
from support.large import in_batches
from support.real_reports import real_report
from support.slow_frames import SlowFrames, frame_reports
from support.strategies import FEWER, WINDOWS

SAMPLES = sorted((Path(__file__).parents[3] / "sample_reports").glob("*/torch.json.gz"))
REPORTS = Path(__file__).parents[2] / "reports" / "torch"


def op(name, start, end, **keys):
    return host("op", name, start, end, **keys)


def python(name, start, end, **keys):
    return host("python", name, start, end, **keys)


def waiting(*events):
    """A device that is idle from 10 to 100, while thread 1 does what `events` say, and launches at the end."""
    work = [call("cudaLaunchKernel", 0, 5, correlation=1), kernel(5, 10, correlation=1)]
    return report([*events, *work, call("cudaLaunchKernel", 100, 105, correlation=2), kernel(105, 110, correlation=2)])


def host_time(of):
    """Culprit, range and nanoseconds of the host."""
    return culprits(of).filter(pl.col("bucket") == "host").select("culprit", "range", "ns").rows()


def test_the_innermost_operator_names_the_time():
    events = [nvtx("forward", 5, 95), op("aten::to", 20, 60), op("aten::copy_", 30, 40)]
    assert host_time(waiting(*events)) == [
        ("forward", "forward", 45),
        ("aten::to", "forward", 30),
        ("aten::copy_", "forward", 10),
        ("between forward and cudaLaunchKernel", None, 5),
    ]


def test_it_is_told_with_the_function_of_the_program_around_it():
    events = [
        python("train.py(1): main", 0, 120),
        python("train.py(31): step", 20, 90, parent=0),
        python("torch/functional.py(2): relu", 30, 80, parent=1),
        op("aten::relu", 40, 70),
    ]
    assert host_time(waiting(*events)) == [
        ("aten::relu in train.py(31): step", None, 30),
        ("torch/functional.py(2): relu in train.py(31): step", None, 20),
        ("train.py(1): main", None, 20),
        ("train.py(31): step", None, 20),
    ]


def test_what_passes_a_call_on_is_not_named():
    events = [
        python("train.py(31): step", 0, 120),
        python("torch/nn/modules/module.py(9): _call_impl", 10, 60, parent=0),
        python("nn.Module: Net_0", 15, 60, parent=1),
        python("mine/net.py(3): forward", 20, 55, parent=2),
        python("<built-in function len>", 60, 70, parent=0),
        python("torch/optim/optimizer.py(5): wrapper", 70, 100, parent=0),
        python("torch/optim/sgd.py(8): step", 75, 100, parent=5),
    ]
    assert host_time(waiting(*events)) == [
        ("mine/net.py(3): forward", None, 35),
        ("torch/optim/sgd.py(8): step in train.py(31): step", None, 25),
        ("train.py(31): step", None, 20),
        ("nn.Module: Net_0 in train.py(31): step", None, 10),
    ]


def test_an_operator_around_a_function_does_not_name_it():
    events = [op("MyFunction", 0, 120), python("mine/op.py(3): forward", 20, 90)]
    assert host_time(waiting(*events)) == [("mine/op.py(3): forward", None, 70), ("MyFunction", None, 20)]


@pytest.mark.parametrize(
    ("begin", "end", "told"),
    [
        (20, 59, [("aten::mm in train.py(31): step", 39), ("train.py(31): step", 1)]),
        (20, 60, [("train.py(31): step", 40)]),
        (20, 80, [("train.py(31): step", 40), ("aten::mm", 20)]),
        (21, 60, [("aten::mm in train.py(31): step", 39), ("train.py(31): step", 1)]),
    ],
)
def test_an_operator_is_in_a_function_that_it_shares_a_side_with_only_if_it_is_shorter(begin, end, told):
    events = [python("train.py(31): step", 20, 60), op("aten::mm", begin, end)]
    inside = [(culprit, ns) for culprit, _, ns in host_time(waiting(*events)) if not culprit.startswith("between")]
    assert inside == told


def test_of_things_that_start_together_the_longest_is_at_the_side():
    together = [op(f"aten::op{number}", 60, 60 + number) for number in range(30)]
    found = host_time(waiting(op("aten::to", 10, 50), *together))
    assert ("between aten::to and aten::op29", None, 10) in found


def test_of_things_that_last_as_long_an_annotation_is_at_the_side_then_the_first_operator():
    times = [(60, 70), (90, 99), (75, 85)]  # they are to be sorted
    together = [op(f"aten::op{number}", *times[number % 3]) for number in range(300)]
    found = host_time(waiting(op("aten::to", 10, 50), *together))
    assert ("between aten::to and aten::op0", None, 10) in found
    found = host_time(waiting(op("aten::to", 10, 50), *together, nvtx("forward", 60, 70)))
    assert ("between aten::to and forward", None, 10) in found


def test_without_the_programs_own_functions_the_innermost_one_counts():
    events = [
        python("torch/utils/data/_utils/pin_memory.py(1): _pin", 0, 120),
        python("<built-in method acquire of _thread.lock object at 0x7f00>", 20, 90, parent=0),
    ]
    assert host_time(waiting(*events)) == [
        ("<built-in method acquire of _thread.lock object>", None, 70),
        ("torch/utils/data/_utils/pin_memory.py(1): _pin", None, 20),
    ]


def test_a_step_of_the_profiler_names_nothing_and_is_one_range_for_all():
    events = [
        nvtx("ProfilerStep#7", 0, 60),
        nvtx("ProfilerStep#8", 60, 120),
        op("aten::mm", 0, 30),
        op("aten::add", 90, 99),
    ]
    assert host_time(waiting(*events)) == [
        ("between aten::mm and aten::add", "ProfilerStep*", 60),
        ("aten::mm", "ProfilerStep*", 20),
        ("aten::add", "ProfilerStep*", 9),
        ("between aten::add and cudaLaunchKernel", "ProfilerStep*", 1),
    ]


def test_other_threads_do_not_matter():
    events = [op("aten::mm", 0, 120, thread=2), python("train.py(1): f", 0, 120, thread=2)]
    assert host_time(waiting(*events)) == [("between cudaLaunchKernel and cudaLaunchKernel", None, 90)]


def test_gaps_have_the_same_culprits():
    events = [op("aten::to", 20, 80), nvtx("ProfilerStep#7", 0, 120)]
    assert gaps(waiting(*events), threshold_ns=50).select("reason", "culprit").rows() == [("host", "aten::to")]


def test_a_caller_that_calls_itself_is_no_trouble():
    events = [python("<built-in function len>", 0, 120, parent=0), python("torch/a.py(3): f", 10, 110, parent=0)]
    assert host_time(waiting(*events)) == [("torch/a.py(3): f", None, 90)]


@pytest.mark.slow
@given(frame_reports(), WINDOWS, st.sampled_from([1, 2, 3, 1_000]))
def test_culprits_equal_the_model(made, window, batch):
    events, records = made
    narrowed = report(events, event_records=records).narrow(window=Window(*window))
    with pytest.MonkeyPatch.context() as patch:
        in_batches(patch, batch)
        found = culprits(narrowed)
    keys = ("device", "bucket", "culprit", "range")
    got = {row[:4]: row[4:] for row in found.select(*keys, "ns", "gaps", "longest_ns").iter_rows()}
    assert len(got) == found.height
    assert got == SlowFrames(events, window, records).culprits()


@FEWER
@given(frame_reports())
@pytest.mark.slow
def test_culprits_sum_to_the_ledger(made):
    events, records = made
    of = report(events, event_records=records)
    assert sums(culprits(of)) == sums(ledger(of))


def sums(rows):
    idle = rows.filter(pl.col("bucket").cast(pl.String).is_in(IDLE))
    return sorted(idle.group_by("device", pl.col("bucket").cast(pl.String)).agg(pl.col("ns").sum()).rows())


def test_a_pause_to_collect_garbage_is_found_in_the_function_that_it_stopped():
    longest = culprits(real_report(REPORTS / "gc_pauses.json.gz")).filter(pl.col("ns") == pl.col("ns").max())
    (culprit,) = longest.get_column("culprit")
    assert culprit.startswith("Python GC in ")


@pytest.mark.parametrize(
    "path", [*SAMPLES, REPORTS / "with_modules.json.gz"], ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_culprits_of_real_traces_sum_to_the_ledger_and_have_names(path):
    of = real_report(path)
    found = culprits(of)
    assert sums(found) == sums(ledger(of))
    named = found.filter(pl.col("bucket").cast(pl.String) == "host").get_column("culprit")
    assert not named.null_count()
    assert not named.str.contains("ProfilerStep#").any()
