"""Tensors that PyTorch makes on the CPU and at once copies to the GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, launching_calls, with_facts
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._mendings import nothing_within
from kanalyze.analyses.findings.rules._sites import events_around, site_text, sites
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.idle._attribution import WITHIN, idle_within
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import beside
from kanalyze.units import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

_TO_DEVICE: Final = "Host-to-Device"

#: Operators that copy a tensor to another device.
_MOVES: Final = ("aten::to", "aten::_to_copy", "aten::copy_")

#: Operators that fill a tensor.
_FILLS: Final = (
    *("zeros", "ones", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "randint", "randperm"),
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "scalar_tensor"),
    *("fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "tril_indices", "triu_indices"),
)
_FILL_NAMES: Final = [f"aten::{name}" for name in _FILLS]

#: What torch.tensor(…) ends with, after an aten::to that does nothing on the CPU.
_LIFT: Final = "aten::lift_fresh"
_DETACH: Final = "aten::detach_"
_TENSOR: Final = "torch.tensor"

_IN_PLACE: Final = [name for name in _FILL_NAMES if name.endswith("_")]

#: The first of the shapes of an operator's inputs, as recorded.
_FIRST_SHAPE: Final = r"^\[(\[[^\]]*\])"

#: Most operators, with those inside of them, between the filling of a tensor and its copy: it may be changed meanwhile.
_BETWEEN: Final = 8

#: A few such copies are a start-up; from so many on, or in half of a window's iterations, there is a finding.
_FEWEST: Final = 3
_OFTEN: Final = 0.5


def extra_copy(report: Report) -> list[Finding]:
    """At most one finding per device, on all such copies together."""
    found = []
    for device, pieces in _idle(report).items():
        copies = _moved(report).filter(pl.col("device") == device)
        found.append(_finding(report, device, intervals.length(pieces) + total(copies, "exclusive_ns"), copies))
    return found


def idle_for_extra_copies(report: Report, device: int) -> pl.DataFrame:
    """The idle time of a device that :func:`extra_copy` tells of: columns of `idle_within`."""
    return _idle(report).get(device, pl.DataFrame(schema=WITHIN))


@once_per_report
def _idle(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time while such tensors are made and sent, by device, where the copies are worth a finding."""
    window = report.scope.window
    fewest = max(_OFTEN * window.count, 1) if window is not None and window.count else _FEWEST
    found: dict[int, pl.DataFrame] = {}
    for (device,), copies in _moved(report).partition_by("device", as_dict=True, maintain_order=True).items():
        number = int(str(device))
        if copies.height >= fewest and number in least_worth_saying(report):
            pieces = idle_within(report, copies.select(*THREAD, start="made", end="until"))[number]
            if intervals.length(pieces) + total(copies, "exclusive_ns") >= max(least_worth_saying(report)[number], 1):
                found[number] = pieces
    return found


def _finding(report: Report, device: int, stake: int, copies: pl.DataFrame) -> Finding:
    per, top = per_iteration(report), copies.group_by("maker").len().sort("len", "maker", descending=[True, False])
    makers = ", ".join(f"{literal(maker)} ({per.plural(number, 'time')})" for maker, number in top.head(3).iter_rows())
    at = sites(report, copies.select(*THREAD, at="made")).select("function", "range")
    places = at.with_columns(operator=pl.lit(None, dtype=pl.String)).select(place=site_text()).drop_nulls()
    common = places.group_by("place").len().sort("len", "place", descending=[True, False])
    where = literal(common.item(0, "place")) if common.height else ""
    largest = longest(copies.with_columns(pl.col("size_bytes").fill_null(0)), "size_bytes")
    text = (
        f"{per.plural(copies.height, 'copy')} to GPU {device} of a tensor that was filled on the CPU right before, by "
        f"{makers}{f', most in {where}' if where else ''}, up to {size(largest)} each. The GPU idles while they are "
        f"made and sent, or does nothing but copy, for {per.time(stake)}."
    )
    name = str(top.item(0, "maker")).removeprefix("aten::")
    made = "zeros" if name.endswith("_") or name == _TENSOR else name
    remedy = (
        "Make the tensor on the GPU, torch.zeros(…, device=x.device), or once before the loop; from Python lists and "
        "numbers, once before the loop."
    )
    return Finding(
        "extra-copy",
        device,
        stake,
        text,
        remedy,
        "copies",
        headline="Tensors are made on the CPU and copied to the GPU",
        action=f"torch.{made}(…, device='cuda') in place of .to('cuda')",
        where=where,
        mending=partial(nothing_within, spans=copies.select(*THREAD, start="made", end="until")),
    )


@once_per_report
def _moved(report: Report) -> pl.DataFrame:
    """The copies to a device in scope right after an operator of their thread that filled a tensor on the CPU.

    Columns: device, exclusive_ns, size_bytes, process_id, thread_id, moved (when the operator that copied it began),
    until (its end), maker (the operator that filled it), made (its start).
    """
    work = exclusive_operations(report).filter((pl.col("kind") == "memcpy") & ("op" in report.kinds))
    copies = work.filter(pl.col("detail").cast(pl.String) == _TO_DEVICE)
    told = with_facts(report, copies, "size_bytes", "thread_id", "call_start").drop_nulls("call_start")
    told = told.select("device", "process_id", "exclusive_ns", "size_bytes", "thread_id", "call_start")
    told = told.with_row_index("point")
    moves = events_around(report, "op", _known(report, _MOVES), told.select("point", *THREAD, at="call_start"))
    outermost = moves.sort("start", "end", descending=[False, True]).unique("point", keep="first")
    found = told.join(outermost.select("point", moved="start", until="end"), on="point").sort("point")
    parts = [_with_makers(report, key, part) for key, part in parts_by(found, THREAD).items()]
    return pl.concat(parts) if parts else found.with_columns(maker=pl.lit(""), made="moved").clear()


def _known(report: Report, names: Sequence[str]) -> pl.Series:
    """The names of operators in the report that are among `names`."""
    every = report.kind("op").get_column("name").unique()
    return every.filter(every.cast(pl.String).is_in(names))


def _with_makers(report: Report, key: ThreadKey, copies: pl.DataFrame) -> pl.DataFrame:
    """The copies of one thread whose tensor was filled on the CPU right before; adds by which operator, and when.

    Where shapes are recorded, that is the last operator that filled a tensor of the shape that was copied, with at most
    :data:`_BETWEEN` operators after it; else the last one that filled any, with none after it.
    """
    process, thread = (pl.lit(value, dtype=pl.Int64) for value in key)
    ops = report.kind("op").filter(pl.col("process_id").eq_missing(process) & pl.col("thread_id").eq_missing(thread))
    shaped = beside(ops, report.table("op_detail"), "input_shapes")
    shape = pl.col("input_shapes").cast(pl.String).str.extract(_FIRST_SHAPE).alias("shape")
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    known = shaped.select(pl.col("name").cast(pl.String), shape, start="start_ns", end=end)
    moves = known.filter(pl.col("name").is_in(_MOVES)).select("shape", moved="start").unique("moved", keep="first")
    line = copies.join(moves, on="moved", how="left", maintain_order="left").sort("moved")
    makers = _makers(known).sort("end", "start", descending=[False, True])
    found = []
    for own, same in ((line.drop_nulls("shape"), ["shape"]), (line, [])):
        fills = makers.select("maker", "shape", made="start", filled="end")
        fills = fills if same else fills.drop("shape")
        found.append(
            own.join_asof(
                fills, left_on="moved", right_on="filled", by=same or None, check_sortedness=False
            ).drop_nulls("maker")
        )
    launches, begun = _launches(report, key), known.filter(pl.col("name") != _DETACH).get_column("start").sort()
    by_shape, any_shape = (
        _nearby(part, launches, begun, most) for part, most in zip(found, (_BETWEEN, 0), strict=True)
    )
    unknown = any_shape.filter(pl.col("shape").is_null() | ~_tells(any_shape, makers))
    every = pl.concat([part.select(*copies.columns, "maker", "made") for part in (by_shape, unknown)])
    return every.unique("point", keep="first", maintain_order=True)


def _tells(copies: pl.DataFrame, makers: pl.DataFrame) -> pl.Series:
    """Whether the shape that the operator before each of `copies` filled is known."""
    known = makers.drop_nulls("shape").get_column("start")
    return copies.get_column("made").is_in(known.implode())


def _nearby(copies: pl.DataFrame, launches: pl.Series, begun: pl.Series, most: int) -> pl.DataFrame:
    """Those of `copies` since whose filling nothing was launched, and at most so many operators began."""
    made, filled, moved = (copies.get_column(name) for name in ("made", "filled", "moved"))
    launched = launches.search_sorted(moved, side="left") > launches.search_sorted(made, side="left")
    between = begun.search_sorted(moved, side="left").cast(pl.Int64) - begun.search_sorted(filled, side="left")
    return copies.filter(~launched & (between <= most))


def _launches(report: Report, key: ThreadKey) -> pl.Series:
    """When a thread launched, sorted."""
    process, thread = key
    calls = launching_calls(report).get(process) if process is not None else None
    if calls is None:
        return pl.Series("call_start", dtype=pl.Int64)
    return calls.filter(pl.col("thread_id") == thread).get_column("call_start").sort()


def _makers(ops: pl.DataFrame) -> pl.DataFrame:
    """The operators of a thread that fill a tensor, torch.tensor among them: maker (the name), start, end, shape."""
    fills = ops.filter(pl.col("name").is_in(_FILL_NAMES)).sort("start")
    lifts = ops.filter(pl.col("name") == _LIFT).sort("start")
    copies = ops.filter(pl.col("name") == _MOVES[0]).select(copied="start", done="end").sort("done")
    lifted = lifts.join_asof(copies, left_on="start", right_on="done", check_sortedness=False).drop_nulls("copied")
    made = fills.select("start", "end", maker="name", shape=_filled(fills, ops))
    return pl.concat(
        [made, lifted.select("shape", start="copied", end="end", maker=pl.lit(_TENSOR)).select(made.columns)]
    )


def _filled(fills: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """The shape that each of `fills` filled: that of the last operator in it that fills in place, null if unknown."""
    inner = ops.filter(pl.col("name").is_in(_IN_PLACE)).select(at="start", inner="shape").sort("at")
    found = fills.join_asof(inner, left_on="end", right_on="at", check_sortedness=False)
    inside = (pl.col("at") >= pl.col("start")).fill_null(value=False)
    return found.select(pl.when(inside).then("inner")).to_series().alias("shape")


RULES: Final = (extra_copy,)
