"""Communication that nothing hides: by collective, per step, and not where kernels run beside it."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.findings.rules.launches import exposed_communication
from kanalyze.analyses.idle.exposure import exposure
from kanalyze.window import Window
from support.build import kernel, report
from support.real_reports import real_report

REPORTS = Path(__file__).parents[3] / "reports"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(at, *, hidden=20, **keys):
    """A kernel of 50, of which the last `hidden` are beside an all-reduce of 40; then an all-gather of 10."""
    start = at + 50 - hidden
    return [
        kernel(at, at + 50, **keys),
        kernel(start, start + 40, name=REDUCE, stream=8),
        kernel(at + 90, at + 100, name=GATHER, stream=8),
    ]


def test_what_is_exposed_of_each_collective():
    of = report([*step(0), *step(100)]).narrow(window=Window(0, 200, count=2, each="step"))
    (one,) = exposed_communication(of)
    assert (one.rule, one.device, one.at_stake_ns, one.table) == ("exposed-communication", 0, 2 * 30, "exposure")
    assert one.text == (
        "GPU 0 does nothing but communicate for 30 ns a step, 60.0 % of the time of its collectives: allreduce 20 ns a "
        "step (1 kernel a step), allgather 10 ns a step (1 kernel a step). Any waiting for the slowest "
        "rank is in it."
    )
    assert (one.headline, one.where) == ("The GPU does nothing beside allreduce", "")


def test_the_collective_goes_by_the_trace_where_it_is_recorded():
    events = step(0, name="void at::native::add()")
    rows = [{"event_id": 1, "collective": "reduce{scatter}"}]
    (one,) = exposed_communication(report(events, collective_detail=rows))
    assert (
        one.text.format().partition("collectives: ")[2].startswith("reduce{scatter} 20 ns (1 kernel), allgather 10 ns")
    )
    assert one.headline.format() == "The GPU does nothing beside reduce{scatter}"
    assert "DDP buckets" in one.action


@pytest.mark.parametrize(
    "events",
    [
        [kernel(0, 100)],
        [kernel(0, 100), kernel(10, 90, name=REDUCE, stream=8)],  # all of it hidden
        [kernel(0, 1_000), kernel(980, 1_010, name=REDUCE, stream=8)],  # less than a hundredth is not
    ],
)
def test_what_does_not_raise_it(events):
    assert exposed_communication(report(events)) == []


def ranks(*exposed):
    """Two steps of a GPU for each number: work, and a collective that is alone for so long."""
    return report(
        [
            event
            for device, alone in enumerate(exposed)
            for at in (0, 1_000)
            for event in (
                kernel(at, at + 900 - alone, device=device),
                kernel(at + 800 - alone, at + 900, name=REDUCE, stream=8, device=device),
            )
        ]
    )


def test_of_several_ranks_the_least_is_what_overlap_can_gain():
    waits, late = exposed_communication(ranks(400, 150))
    assert (waits.at_stake_ns, late.at_stake_ns) == (300, 300)
    assert waits.text.startswith("GPU 0 does nothing but communicate for 800 ns")
    assert waits.text.endswith("is in it: GPU 1, which runs as many, has 300 ns, and what is more here may be a wait.")
    assert late.text.endswith("Any waiting for the slowest rank is in it.")


def test_where_another_rank_hardly_waits_it_is_balance_that_lacks():
    (one,) = exposed_communication(ranks(400, 1))
    assert (one.device, one.at_stake_ns) == (0, 800)
    assert one.action == "Balance the work of ranks: GPU 1 hardly communicates alone"


def test_a_gpu_with_other_collectives_tells_nothing_of_this_one():
    of = report(
        [
            *(kernel(at, at + 50, device=device) for device in (0, 1) for at in (0, 1_000)),
            kernel(50, 450, name=REDUCE, stream=8),
            kernel(1_050, 1_450, name=REDUCE, stream=8),
            kernel(50, 60, name=GATHER, stream=8, device=1),
        ]
    )
    assert exposed_communication(of)[0].at_stake_ns == 800


@pytest.mark.parametrize("name", ["nccl.sqlite", "torch/ddp.json.gz", "torch/fsdp.json.gz"])
def test_real_programs_of_several_ranks_raise_it(name):
    of = real_report(REPORTS / name)
    if name == "nccl.sqlite":  # most of which is not steady
        of = of.narrow(window="exposed#2")
    rows = exposure(of).filter(pl.col("category") == "communication")
    exposed = dict(rows.select("device", "exposed_ns").iter_rows())
    found = exposed_communication(of)
    assert {device: sum(one.at_stake_ns for one in found if one.device == device) for device in exposed} == exposed
    told = [one.headline + one.where for one in found]
    assert all("reduce" in one or "gather" in one for one in told)


def met(*starts, end, size=2):
    """Two steps of an all_reduce that ranks of one report come to at `starts` and leave at `end`, after work."""
    events = [
        event
        for at in (0, 1_000_000)
        for device, start in enumerate(starts)
        for event in (
            kernel(at, at + start, device=device, process=1 + device),
            kernel(at + start, at + end, name=REDUCE, stream=8, device=device, process=1 + device),
        )
    ]
    said = {"collective": "allreduce", "group_size": size, "group": "0"}
    talks = [at for at, event in enumerate(events) if event.name == REDUCE]
    return report(events, collective_detail=[{"event_id": at, **said} for at in talks])


def test_waiting_for_a_partner_of_the_same_report_is_no_cost_of_communication():
    moves, waits = exposed_communication(met(400_000, 800_000, end=900_000))[:2]
    assert (moves.device, moves.at_stake_ns) == (0, 2 * 100_000)
    assert "800.0 µs of that is waiting, mostly for GPU 1." in moves.text
    assert moves.action == "Overlap it with computation"
    assert (waits.device, waits.at_stake_ns) == (0, 2 * 400_000)
    assert waits.headline == "The GPU waits for GPU 1, which is late to collectives"
    assert waits.action == "Balance the work of ranks: GPU 1 comes last"
    assert waits.text.startswith("GPU 0 waits 800.0 µs in collectives with nothing else to do, mostly for GPU 1")


def test_the_last_rank_only_transfers():
    (of_last,) = [one for one in exposed_communication(met(400_000, 800_000, end=900_000)) if one.device == 1]
    assert of_last.at_stake_ns == 2 * 100_000
    assert "waiting" not in of_last.text


def test_where_ranks_are_missing_waiting_is_not_told_apart():
    (first, second) = exposed_communication(met(400_000, 800_000, end=900_000, size=4))
    assert (first.at_stake_ns, second.at_stake_ns) == (200_000, 200_000)
    assert "Any waiting for the slowest rank is in it" in first.text
