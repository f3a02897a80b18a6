"""Which range a thread was in, whose its Python functions are, and names of host time: by hand, then against models."""

import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.analyses.host._range_lines import named_ranges, range_lines, ranges_at, roles
from kanalyze.analyses.idle._idle_parts import IDLE
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.idle.ledger import gaps, ledger
from kanalyze.window import Window
from support.build import call, host, kernel, nvtx, report, timeline
from support.large import in_batches
from support.real_reports import real_report
from support.slow_frames import SlowFrames, frame_reports
from support.slow_ranges import OPEN_UNTIL, SlowRanges, reports
from support.strategies import WINDOWS


@given(reports())
def test_every_instant_of_every_thread(events):
    made, model = report(events), SlowRanges(events)
    points = [(p, t, at) for p in (1, 2, 3) for t in (1, 2) for at in range(-1, OPEN_UNTIL + 2)]
    found = ranges_at(made, pl.DataFrame(points, schema=["process_id", "thread_id", "at"], orient="row"))
    ids = named_ranges(made)["event_id"].gather(found).to_list()
    assert ids == [model.line(*point) for point in points]
    for spans in range_lines(made).values():
        assert (spans["end"] > spans["start"]).all()
        assert (spans["start"] >= spans["end"].shift(1)).fill_null(value=True).all()


def role_of(name):
    return roles(pl.Series([name], dtype=pl.Categorical)).select("role", pl.col("shown").cast(pl.String)).row(0)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("train.py(31): step", "program"),
        ("mine/data/loader.py(5): __getitem__", "program"),
        ("transformers/trainer.py(5): train", "program"),
        ("/home/me/work/train.py(5): main", "program"),
        ("C:/Users/me/train.py(5): main", "program"),
        ("<ipython-input-3-ab>(5): <module>", "program"),
        ("<stdin>(1): <module>", "program"),
        ("profile.py(3): main", "program"),  # Python has a module of that name
        ("train.py(5): wrapper", "program"),
        ("torch/_tensor.py(576): backward", "library"),
        ("contextlib.py(132): __enter__", "library"),
        ("json/decoder.py(1): decode", "library"),
        ("<frozen os>(12): fspath", "library"),
        ("<string>(1): __init__", "library"),
        ("<eval_with_key>.16(3): forward", "library"),
        ("/var/torchinductor_me/ys/cys3.py(23): call", "library"),
        ("/usr/lib/python3.10/threading.py(1): run", "library"),
        ("<built-in function sleep>", "library"),
        ("<built-in method append of MyList object>", "library"),
        ("<built-in function isinstance>", "passing"),
        ("<built-in method append of list object>", "passing"),
        ("torch/nn/modules/module.py(1783): _call_impl", "passing"),
        ("torch/utils/_contextlib.py(120): decorate_context", "passing"),
        ("nn.Module: Linear_0", "module"),
        ("Python GC", "module"),
        (None, "library"),
    ],
)
def test_roles(name, role):
    assert role_of(name) == (role, name)


@pytest.mark.parametrize(
    ("name", "role", "shown"),
    [
        (
            "<built-in method item of Tensor object at 0x7f6f8d0ff8e0>",
            "library",
            "<built-in method item of Tensor object>",
        ),
        ("<built-in method get of dict object at 0x7f6f>", "passing", "<built-in method get of dict object>"),
        ("/opt/lib/python3.10/site-packages/torch/x.py(5): f", "library", "torch/x.py(5): f"),
        ("/opt/lib/python3.10/site-packages/mine/x.py(5): f", "program", "mine/x.py(5): f"),
    ],
)
def test_what_differs_between_runs_is_not_shown(name, role, shown):
    assert role_of(name) == (role, shown)


SAMPLES = sorted((Path(__file__).parents[3] / "sample_reports").glob("*/torch.json.gz"))
REPORTS = Path(__file__).parents[2] / "reports" / "torch"


def op(name, start, end, **keys):
    return host("op", name, start, end, **keys)


def waiting(*events):
    """A device that is idle from 10 to 100, while thread 1 does what `events` say, and launches at the end."""
    work = [call("cudaLaunchKernel", 0, 5, correlation=1), kernel(5, 10, correlation=1)]
    return report([*events, *work, call("cudaLaunchKernel", 100, 105, correlation=2), kernel(105, 110, correlation=2)])


def host_time(of):
    """Culprit, range and nanoseconds of the host."""
    return culprits(of).filter(pl.col("bucket") == "host").select("culprit", "range", "ns").rows()


#: By block: what it shows; events of the waiting thread; and after = time by culprit, and the range after @.
HOST_TIMES = """
the innermost operator names the time
    5-95 [forward]; 20-60 op:aten::to; 30-40 op:aten::copy_
    = 45 forward @forward; 30 aten::to @forward; 10 aten::copy_ @forward; 5 between forward and cudaLaunchKernel

it is told with the function of the program around it
    0-120 python:train.py(1): main; 20-90 python:train.py(31): step ^0; 30-80 python:torch/functional.py(2): relu ^1
    40-70 op:aten::relu
    = 30 aten::relu in train.py(31): step; 20 torch/functional.py(2): relu in train.py(31): step
      20 train.py(1): main; 20 train.py(31): step

what passes a call on is not named
    0-120 python:train.py(31): step; 10-60 python:torch/nn/modules/module.py(9): _call_impl ^0
    15-60 python:nn.Module: Net_0 ^1; 20-55 python:mine/net.py(3): forward ^2
    60-70 python:<built-in function len> ^0; 70-100 python:torch/optim/optimizer.py(5): wrapper ^0
    75-100 python:torch/optim/sgd.py(8): step ^5
    = 35 mine/net.py(3): forward; 25 torch/optim/sgd.py(8): step in train.py(31): step; 20 train.py(31): step
      10 nn.Module: Net_0 in train.py(31): step

without the programs own functions the innermost one counts
    0-120 python:torch/utils/data/_utils/pin_memory.py(1): _pin
    20-90 python:<built-in method acquire of _thread.lock object at 0x7f00> ^0
    = 70 <built-in method acquire of _thread.lock object>; 20 torch/utils/data/_utils/pin_memory.py(1): _pin

a step of the profiler names nothing and is one range for all
    0-60 [ProfilerStep#7]; 60-120 [ProfilerStep#8]; 0-30 op:aten::mm; 90-99 op:aten::add
    = 60 between aten::mm and aten::add @ProfilerStep*; 20 aten::mm @ProfilerStep*; 9 aten::add @ProfilerStep*
      1 between aten::add and cudaLaunchKernel @ProfilerStep*

a caller that calls itself is no trouble
    0-120 python:<built-in function len> ^0; 10-110 python:torch/a.py(3): f ^0
    = 90 torch/a.py(3): f
"""


@pytest.mark.parametrize("block", HOST_TIMES.strip().split("\n\n"), ids=lambda block: block.partition("\n")[0])
def test_names_of_host_time(block):
    events, _, expected = block.partition("\n")[2].partition("\n    = ")
    found = host_time(waiting(*timeline(events)))
    told = [f"{ns} {culprit}{f' @{around}' if around else ''}" for culprit, around, ns in found]
    assert told == re.split(r"; |;?\n\s+", expected)


def test_of_things_that_last_as_long_an_annotation_is_at_the_side_then_the_first_operator():
    times = [(60, 70), (90, 99), (75, 85)]  # they are to be sorted
    together = [op(f"aten::op{number}", *times[number % 3]) for number in range(300)]
    found = host_time(waiting(op("aten::to", 10, 50), *together))
    assert ("between aten::to and aten::op0", None, 10) in found
    found = host_time(waiting(op("aten::to", 10, 50), *together, nvtx("forward", 60, 70)))
    assert ("between aten::to and forward", None, 10) in found


def test_gaps_have_the_same_culprits():
    events = [op("aten::to", 20, 80), nvtx("ProfilerStep#7", 0, 120)]
    assert gaps(waiting(*events), threshold_ns=50).select("reason", "culprit").rows() == [("host", "aten::to")]


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
