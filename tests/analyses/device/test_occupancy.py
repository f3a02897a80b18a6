"""Occupancy, waves and what a grid leaves unused; the calculation itself: test_calculator.py."""

import math
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from kanalyze.analyses.device.kernels import kernels
from kanalyze.analyses.device.occupancy import BY_DEVICE, BY_KERNEL, TABLE, occupancy
from kanalyze.window import Window
from support.build import graph, kernel, memcpy, report

#: 2 SMs of capability 9.0.
SMALL = {"compute_capability": "9.0", "sm_count": 2}


def launch(start, end, *, blocks=1, threads=256, registers=32, dynamic=0, setting=None, **keys):  # noqa: PLR0913 - a launch has as many
    """A kernel of one-dimensional grid and block; all of the SM's shared memory serves unless there is a `setting`."""
    side = {
        "registers_per_thread": registers, "static_shared_bytes": 0, "dynamic_shared_bytes": dynamic,
        "shared_config_bytes": setting,
    }  # fmt: skip
    return kernel(start, end, grid=(blocks, 1, 1), block=(threads, 1, 1), side=side, **keys)


def only(events, limits=None, **where):
    return occupancy(report(events, limits=SMALL if limits is None else limits), **where).row(0, named=True)


def told(row, *columns):
    return tuple(row[column] for column in columns)


def test_one_launch_whole():
    # 64 registers: 8 warps of 64 * 32 are 16,384 of 65,536, so 4 blocks; 2 SMs hold 8 of the 20 at once
    assert only([launch(0, 300, name="k", blocks=20, registers=64)]) == {
        "name": "k", "device": 0, "count": 1, "total_ns": 300, "exclusive_ns": 300, "alone_ns": 300, "grid_x": 20,
        "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1, "registers_per_thread": 64,
        "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "shared_config_bytes": None, "limit_registers": 4,
        "limit_shared_memory": 228, "limit_warps": 8, "limit_blocks": 32, "blocks_per_sm": 4, "warps_per_sm": 32,
        "occupancy_share": 0.5, "limiter": "registers", "waves": 2.5, "full_waves": 2,
        "tail_share": pytest.approx(1 / 6), "idle_sms": 0, "idle_sm_ns": 0, "tail_ns": 50, "low_occupancy_ns": 125,
        "unknown": None,
    }  # fmt: skip


def test_launches_of_a_shape_are_one_row_and_the_heaviest_is_first():
    events = [launch(0, 10), launch(10, 30), launch(30, 50, blocks=4), launch(50, 51, registers=40)]
    found = occupancy(report(events, limits=SMALL))
    assert found.select("count", "total_ns", "exclusive_ns", "grid_x", "registers_per_thread").rows() == [
        (2, 30, 30, 1, 32), (1, 20, 20, 4, 32), (1, 1, 1, 1, 40),
    ]  # fmt: skip


def test_only_time_without_other_kernels_is_at_stake():
    events = [launch(0, 100, blocks=1, name="a"), launch(50, 200, blocks=3, name="b"), memcpy(0, 200)]
    rows = {row["name"]: row for row in occupancy(report(events, limits=SMALL)).iter_rows(named=True)}
    assert told(rows["a"], "exclusive_ns", "alone_ns", "idle_sm_ns") == (100, 50, 25)
    assert told(rows["b"], "exclusive_ns", "alone_ns", "idle_sm_ns") == (100, 100, 0)


def without(launched, **side):
    """The same launch of which the report lacks something."""
    return replace(launched, side={**launched.side, **side})


LACKS = "the report lacks {}"
OF_LAUNCH = LACKS.format("the block, registers or shared memory of the launch")
TOO_LARGE = launch(0, 10, threads=1024, registers=255)
UNKNOWN_SHARED = "how compute capability 13.0 hands out shared memory is not known"


@pytest.mark.parametrize(
    ("event", "limits", "reason"),
    [
        (without(launch(0, 10), registers_per_thread=None), SMALL, OF_LAUNCH),
        (without(launch(0, 10), dynamic_shared_bytes=None), SMALL, OF_LAUNCH),
        (launch(0, 10, registers=-1), SMALL, OF_LAUNCH),
        (launch(0, 10, threads=0), SMALL, OF_LAUNCH),
        (launch(0, 10), {"sm_count": 2}, LACKS.format("the GPU's compute capability")),
        (launch(0, 10), {"sm_count": 2, "compute_capability": "13.0", "max_warps_per_sm": 64}, UNKNOWN_SHARED),
        (TOO_LARGE, SMALL, "by what the report says of the launch and the GPU, it could not have run"),
    ],
)
def test_what_cannot_be_told_is_null_and_says_why(event, limits, reason):
    row = only([event], limits)
    assert row["unknown"] == reason
    answers = ("limit_registers", "limit_blocks", "blocks_per_sm", "occupancy_share", "limiter", "waves", "tail_share")
    assert told(row, *answers, "tail_ns", "low_occupancy_ns") == (None,) * 9
    assert told(row, "count", "total_ns", "exclusive_ns") == (1, 10, 10)


def test_by_kernel_is_weighted_by_exclusive_time():
    events = [
        launch(0, 20, name="a", blocks=8), launch(20, 30, name="a", blocks=8, registers=64),
        launch(40, 60, name="b", registers=255), without(launch(70, 80), registers_per_thread=None),
    ]  # fmt: skip
    found = occupancy(report(events, limits=SMALL), by="kernel")
    columns = ("name", "shapes", "count", "exclusive_ns", "known_ns", "occupancy_share", "least_share", "idle_sm_ns")
    assert found.select(columns).rows() == [
        ("a", 2, 2, 30, 30, pytest.approx((20 + 10 * 0.5) / 30), 0.5, 0),
        ("b", 1, 1, 20, 20, 0.125, 0.125, 10),
        ("k", 1, 1, 10, 0, None, None, 5),
    ]


LAUNCHES = st.builds(
    lambda start, dur, **shape: launch(start, start + dur, **shape),
    st.integers(0, 500),
    st.integers(0, 300),
    blocks=st.integers(1, 70),
    threads=st.sampled_from([32, 96, 256, 1000, 1024]),
    registers=st.sampled_from([0, 16, 40, 64, 128, 255, None]),
    dynamic=st.sampled_from([0, 1000, 50_000, 200_000]),
    setting=st.sampled_from([None, 8192, 102_400, 233_472]),
    name=st.sampled_from(["gemm", "softmax", "ncclDevKernel_AllReduce", None]),
    device=st.sampled_from([0, 0, 1]),
)
EVENTS = st.lists(st.one_of(LAUNCHES, LAUNCHES, st.just(graph(100, 200))), max_size=8)


def rounds(blocks, room):
    """How many blocks each wave holds if every block takes equally long."""
    held = []
    while blocks:
        held.append(min(blocks, room))
        blocks -= held[-1]
    return held


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(EVENTS)
def test_waves_and_costs_are_those_of_blocks_dealt_out_wave_by_wave(events):
    for row in occupancy(report(events, limits=SMALL)).iter_rows(named=True):
        if row["blocks_per_sm"] is None:
            assert row["unknown"]
            continue
        room, blocks, alone = 2 * row["blocks_per_sm"], row["grid_x"], row["alone_ns"]
        waves = rounds(blocks, room)
        empty = room - waves[-1] if len(waves) > 1 else 0
        assert row["full_waves"] == sum(held == room for held in waves)
        assert row["waves"] == pytest.approx(blocks / room)
        assert row["tail_share"] == pytest.approx(empty / (len(waves) * room))
        assert row["tail_ns"] == alone * empty // (len(waves) * room)
        assert row["idle_sm_ns"] == alone * max(2 - blocks, 0) // 2
        warps = math.ceil(row["block_x"] / 32)
        could = min(2 * 64, blocks * warps)
        kept_out = could - room * warps if len(waves) > 1 else 0
        assert row["low_occupancy_ns"] == (alone - row["tail_ns"]) * kept_out // could
        assert row["idle_sm_ns"] + row["tail_ns"] + row["low_occupancy_ns"] <= alone <= row["exclusive_ns"]


@settings(max_examples=max(settings.default.max_examples // 2, 1))
@given(EVENTS, st.sampled_from([None, Window(50, 200)]))
def test_the_forms_of_the_table_add_up_to_the_kernels(events, window):
    of = report(events, limits=SMALL)
    every = occupancy(of, window=window)
    assert every.columns == list(TABLE.schema)
    exclusive = kernels(of, window=window).get_column("exclusive_ns").sum()
    for by, table in ((None, TABLE), ("kernel", BY_KERNEL), ("device", BY_DEVICE)):
        found = occupancy(of, by=by, window=window)
        assert found.columns == list(table.schema)
        assert found.get_column("exclusive_ns").sum() == exclusive
        for cost in ("alone_ns", "idle_sm_ns", "tail_ns", "low_occupancy_ns"):
            assert found.get_column(cost).sum() == every.get_column(cost).sum()
    known = every.filter(pl.col("occupancy_share").is_not_null())
    assert (
        occupancy(of, by="device", window=window).get_column("known_ns").sum() == known.get_column("exclusive_ns").sum()
    )
