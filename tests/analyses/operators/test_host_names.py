"""Host time of nsys takes names from the trace of the same program, between launches that are aligned."""

import shutil
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import strategies as st

from kanalyze import culprits, gaps, read, read_all
from kanalyze.analyses.findings.say import sites_of_launches
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.operators import _host_names
from kanalyze.analyses.page.overview_page import overview
from kanalyze.errors import ClosedReportError
from support.build import call, host, kernel, memcpy, nvtx, report
from support.command import SAMPLES
from support.launches import launches
from support.strategies import few_given


def beside(base, trace):
    return replace(report(base), beside=lambda: report(trace, kinds=("op", "range")))


def op(name, start, end, **keys):
    return host("op", name, start, end, **keys)


def host_rows(made):
    return dict(culprits(made).filter(pl.col("bucket") == "host").select("culprit", "ns").iter_rows())


def test_time_between_aligned_launches_has_the_name_of_the_trace():
    trace = [*launches("abc", apart=120_000), op("aten::randn", 20_000, 110_000), op("aten::t", 30_000, 31_000)]
    made = beside(launches("abc"), trace)
    # the trace has no event between the second and the third: nsys' own calls name that
    between = "between cudaLaunchKernel and cudaLaunchKernel"
    assert host_rows(made) == {"aten::randn": 89_000, between: 89_000}
    shares = culprits(made).filter(pl.col("bucket") == "host").select("culprit", "aligned_share").rows()
    assert dict(shares) == {"aten::randn": 1.0, between: None}
    assert _host_names.told(made, culprits(made)).startswith("The trace names host time, too: 100.0 % of the launches")
    assert _host_names.told_briefly(made, culprits(made)) == "host time named by the trace (100.0 % aligned)"
    assert gaps(made).filter(pl.col("culprit") == "aten::randn").get_column("aligned_share").to_list() == [1.0]
    assert gaps(made, by="culprit").filter(pl.col("culprit") == "aten::randn").item(0, "aligned_share") == 1


STEP_OF_PROGRAM = host("python", "train.py(31): step", 12_000, 99_000)
WAITS = [call("cudaStreamSynchronize", 20_000, 90_000), op("aten::item", 15_000, 91_000)]


@pytest.mark.parametrize(
    ("events", "free_ns", "name"),
    [
        # an event names time that most of it was in
        ([op("aten::big", 50_000, 95_000)], 90_000, "aten::big"),
        ([op("aten::big", 50_000, 70_000)], 90_000, "between cudaLaunchKernel and aten::big"),
        # of 20 µs outside the call 6 µs are in aten::item and 8.5 µs in aten::randn; none has half of it
        ([*WAITS, op("aten::randn", 91_000, 99_500)], 20_000, None),
        ([*WAITS, op("aten::randn", 91_000, 99_500), op("aten::rand", 90_500, 99_900)], 20_000, None),
        # the program's function is told with the event
        ([STEP_OF_PROGRAM, op("aten::randn", 20_000, 95_000)], 90_000, "aten::randn in train.py(31): step"),
        ([STEP_OF_PROGRAM], 90_000, "train.py(31): step"),
    ],
)
def test_the_name_of_the_time_between_two_launches(events, free_ns, name):
    made = report([*launches("ab"), *events], kinds=("op", "python"))
    spans = pl.DataFrame({"start": [10_000], "end": [100_000]})
    assert _host_names.events_between(made, (1, 1), spans).rows() == [(free_ns, name)]


def test_too_few_aligned_launches_name_nothing_and_that_is_said():
    made = beside(launches("abcdefgh"), [*launches("ab"), op("aten::randn", 11_000, 99_000)])
    assert _host_names.host_names(made).share == 2 / 8
    assert "aten::randn" not in host_rows(made)
    assert _host_names.told(made, culprits(made)) == (
        "The trace names no host time: only 25.0 % of the launches are aligned with its own."
    )
    assert _host_names.told_briefly(made, culprits(made)) == ""


def test_several_processes_have_no_alignment():
    both = [*launches("ab"), *launches("ab", process=2, thread=2)]
    assert _host_names.align(report(both), report(both)) is None


def test_threads_are_the_same_that_launch_the_same():
    left = report([*launches("abab", thread=1), *launches("cdcd", thread=2)])
    right = report([*launches("cdcd", thread=7), *launches("abab", thread=8)])
    threads, _ = _host_names.align(left, right)
    pairs = {(pair.left, pair.right, pair.pairs.height) for pair in threads}
    assert pairs == {((1, 1), (1, 8), 4), ((1, 2), (1, 7), 4)}
    assert all(pair.complete for pair in threads)


def test_what_a_call_launched_tells_it():
    def of(*work):
        made = []
        for number, one in enumerate(work):
            made += [call("cuda", 100 * number, 100 * number + 10, correlation=number)]
            made += [replace(one, correlation=number)]
        return report(made)

    same = (memcpy(5, 6, size_bytes=8), kernel(7, 8, name="f<(int)4>"))
    alike = (memcpy(5, 6, size_bytes=8), kernel(7, 8, name="f<4>"))
    one = of(kernel(1, 2, name="k", grid=(1, 1, 1)), memcpy(3, 4, size_bytes=8, direction="Peer-to-Peer"), *same)
    other = of(kernel(1, 2, name="k", grid=(2, 1, 1)), memcpy(3, 4, size_bytes=9, direction="Peer-to-Peer"), *alike)
    (thread,), calls = _host_names.align(one, other)
    assert (thread.pairs.rows(), calls) == ([(2, 2), (3, 3)], 4)


def test_a_kernel_that_a_trace_calls_by_its_symbol_has_its_partner():
    symbols = [{"name": "a", "symbol": "_Z1av"}]
    own, other = (report(launches([name]), symbols=given) for name, given in (("a", symbols), ("_Z1av", [])))
    assert _host_names.align(own, other)[0][0].complete


EVENTS = st.lists(
    st.tuples(st.sampled_from(["x", "y", "z"]), st.integers(0, 700_000), st.integers(1, 300_000)), max_size=8
)


@few_given(st.text("abc", min_size=2, max_size=8), st.text("abc", min_size=2, max_size=8), EVENTS)
def test_names_change_no_time_of_any_bucket(own, others, events):
    trace = [*launches(others), *(op(name, start, start + length) for name, start, length in events)]
    made, alone = beside(launches(own), trace), report(launches(own))
    assert ledger(made).equals(ledger(alone))
    assert culprits(made).get_column("ns").sum() == culprits(alone).get_column("ns").sum()
    tables = map(culprits, (made, alone))
    sums = [rows.group_by("device", "bucket").agg(pl.col("ns").sum()).sort("bucket") for rows in tables]
    assert sums[0].equals(sums[1])
    times = [gaps(one, threshold_ns=0).drop("culprit", "aligned_share", "reason") for one in (made, alone)]
    assert times[0].equals(times[1])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("sample", ["cdist", "gelu", "square", "launch_bound_plain", "launch_bound_graph"])
def test_launches_of_both_passes_are_aligned(sample):
    reports = read_all(SAMPLES / sample)
    base, trace = reports[0], next(one for one in reports if one.meta.tool == "torch.profiler")
    assert base.beside().source is trace.source
    threads, calls = _host_names.align(base, trace)
    assert sum(thread.pairs.height for thread in threads) > 0.97 * calls


def test_a_trace_that_its_owner_closed_or_that_cannot_be_read_names_nothing(tmp_path):
    base, trace, *_ = read_all(SAMPLES / "cdist")
    trace.close()
    assert culprits(base).get_column("aligned_share").is_null().all()
    folder = tmp_path / "cdist"
    shutil.copytree(SAMPLES / "cdist", folder)
    (folder / "torch.json.gz").write_bytes(b"\x1f\x8b no trace")
    assert read(folder).beside() is None
    assert culprits(read(folder)).get_column("aligned_share").is_null().all()


@pytest.mark.slow
def test_a_trace_of_one_phase_names_nothing_of_two():
    capture = read(SAMPLES / "mlp_train")
    assert 0.4 < _host_names.host_names(capture).share < 0.5
    assert not _host_names.host_names(capture).lines
    assert overview(capture).named == ""


STEP = "abcdefghij"


def of_steps(count):
    """A trace of `count` steps, in each of which the time after the third launch is named, and after the last."""
    at = range(0, count * 1_000_000, 1_000_000)
    loads = [op("aten::to", start + 911_000, start + 999_000) for start in at]
    return [*launches(STEP * count), *(op("aten::randn", start + 211_000, start + 299_000) for start in at), *loads]


def test_a_trace_of_two_steps_names_the_other_steps():
    made = beside(launches("xyz" + STEP * 30 + "zyx"), of_steps(2))
    known = _host_names.host_names(made)
    # of the first and the last four launches the surroundings are others
    assert known.recurring
    assert known.share == (300 - 7) / 306
    assert host_rows(made)["aten::randn"] == 29 * 89_000
    assert host_rows(made)["aten::to"] == 29 * 89_000
    assert _host_names.told(made, culprits(made)).endswith("95.8 % of the launches are made as in its few steps.")
    assert _host_names.told_briefly(made, culprits(made)) == "host time named by the trace (95.8 % as in its steps)"


@pytest.mark.parametrize(("steps", "least"), [(STEP * 2, 10), ("abcd" * 3, 8)])
def test_a_stretch_that_recurs_is_half_of_the_trace_or_all_around_a_launch(steps, least):
    """A launch recurs with the three before it and the four after it."""
    for length in (least - 1, least):
        own = report(launches("xyz" + (steps * 2)[: length + 7] + "zyx"))
        (pair,), _ = _host_names.align(own, report(launches(steps)))
        assert _host_names.recurring(pair).arg_true().to_list() == [*range(6, 6 + length)] * (length == least)


def test_a_read_lies_where_its_copy_lies_in_the_trace():
    trace = [*launches("abc"), op("aten::item", 99_000, 111_000)]
    made = beside(launches("abc"), trace)
    points = pl.DataFrame({"process_id": [1] * 3, "thread_id": [1] * 3, "at": [115_000, 50_000, -5]})
    assert _host_names.launches_beside(made, points).get_column("at").to_list() == [100_000, 0, None]
    found = sites_of_launches(made, points).get_column("operator").to_list()
    assert found == ["aten::item (.item())", None, None]
    fewer = beside(launches("abcd"), trace)
    assert _host_names.launches_beside(fewer, points).get_column("at").is_null().all()
    assert sites_of_launches(report(launches("abc")), points).get_column("operator").is_null().all()


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LOADING = [nvtx(LOADER, 12_000, 99_000), op("aten::stack", 20_000, 50_000)]
RANDN = op("aten::randn", 11_000, 99_000)
LATE = [*launches("a"), *(replace(event, correlation=1_001) for event in launches("b", first=5_000_000))]
USUAL = [op("aten::randn", at + 11_000, at + 99_000) for at in range(0, 600_000, 200_000)]
ODD = [*USUAL[:2], op("aten::save", 411_000, 499_000)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("made", "named", "unnamed"),
    [
        (report(launches("abc")), {"between cudaLaunchKernel and cudaLaunchKernel"}, set()),
        # the loader has the name that users know
        (beside(launches("ab"), [*launches("ab"), *LOADING]), {"DataLoader.__next__"}, set()),
        # a range of the report itself goes before, and far longer time has no name
        (beside([*launches("abc"), nvtx("load", 0, 100_000)], [*launches("abc"), RANDN]), {"load"}, {"aten::randn"}),
        (beside(LATE, [*launches("ab"), RANDN]), set(), {"aten::randn"}),
        # where launches lack a partner only usual names count
        (beside(launches("abababab"), [*launches("ababab"), *USUAL]), {"aten::randn"}, {"aten::save"}),
        (beside(launches("abababab"), [*launches("ababab"), *ODD]), {"aten::randn"}, {"aten::save"}),
        (beside(launches("ababab"), [*launches("ababab"), *ODD]), {"aten::save"}, set()),
    ],
)
def test_what_is_named_by_the_trace(made, named, unnamed):
    assert host_rows(made).keys() >= named
    assert not host_rows(made).keys() & unnamed
    told = [say(made, culprits(made)) for say in (_host_names.told, _host_names.told_briefly)]
    assert made.beside() is not None or told == ["", ""]


def test_what_shares_launches_with_a_step_is_none():
    # an evaluation has the forward pass of a step, and other launches after it
    made = beside(launches(STEP * 30 + "abcdefghuvw" * 20), of_steps(2))
    assert host_rows(made)["aten::randn"] == 30 * 89_000


@pytest.mark.slow
def test_a_capture_opens_its_trace_once_and_closes_it():
    with read(SAMPLES / "cdist") as capture:
        trace = capture.beside()
        assert trace.meta.tool == "torch.profiler"
        assert capture.beside() is capture.narrow(device=0).beside() is trace
        assert culprits(capture).get_column("aligned_share").drop_nulls().len() > 0
    with pytest.raises(ClosedReportError):
        trace.table("op_detail")
    assert overview(read(SAMPLES / "cdist")).named == "host time named by the trace (100.0 % aligned)"
