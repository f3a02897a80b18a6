"""``kanalyze whatif``: what a change would bring, by a replay of the recording."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Unpack

import click

from kanalyze.cli import _options
from kanalyze.cli._late import late
from kanalyze.cli._output import emit_pages
from kanalyze.errors import BadWindowError
from kanalyze.units import SLOWEST, parse_rate, parse_time_ns

with late():
    from kanalyze.analyses.replay import _changes, _whatif

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


#: What can be left out.
_WITHOUT: Final = ("launch-gaps", "sync", "startup")


@click.command()
@_options.report_argument
@click.option(
    "--faster",
    multiple=True,
    metavar="WHAT=FACTOR",
    help="So many times as fast: kernels by name ('gemm*'), copies, host (code), host:RANGE, or calls (of CUDA).",
)
@click.option("--without", multiple=True, type=click.Choice(_WITHOUT), help="Leave out what takes time.")
@click.option("--without-startup", is_flag=True, help="Leave out one-time costs: as --without startup.")
@click.option("--graph", is_flag=True, help="Launch each sequence that repeats as one CUDA graph.")
@click.option("--copies", metavar="RATE", help="Bandwidth of copies between host and device, such as 50GB/s.")
@click.option("--each", is_flag=True, help="Try single changes, everything twice as fast, by gain.")
@click.option(
    "--measured", metavar="TIME", help="What the window (an iteration of it) takes without a profiler, such as 1.9ms."
)
@_options.without_profiler
@_options.scope
@_options.top(None, "Rows in each table of the page.")
@_options.formats("markdown", "json")
@_options.output
@_options.in_one_thread_if_small
def whatif(  # noqa: PLR0913 - a click command has a parameter per option
    report: Path,
    faster: Sequence[str],
    without: Sequence[str],
    without_startup: bool,  # noqa: FBT001 - as above
    graph: bool,  # noqa: FBT001 - as above
    copies: str | None,
    each: bool,  # noqa: FBT001 - as above
    measured: str | None,
    top: int | None,
    form: str,
    output: Path | None,
    **where: Unpack[_options.Where],
) -> None:
    """Replay REPORT with a change: its operations and calls start anew as soon as what they wait for allows."""
    without = [*dict.fromkeys((*without, *(["startup"] if without_startup else [])))]
    asked = [_faster(one) for one in faster]
    rate = None if copies is None else _rate(copies)
    took = None if measured is None else _time(measured)
    changes = _changes.Changes(tuple(asked), tuple(without), graph, rate)
    parts = _options.opened_parts(report, where)
    if len(parts) > 1:
        raise BadWindowError.of(where["window"] or "", "it is several windows, and one is replayed")
    (part,) = parts.values()
    window = part.scope.window
    whole = None if took is None else took * ((window.count if window else None) or 1)
    found = _whatif.whatif_of(part, changes, changes.options(copies), each=each, measured_ns=whole)
    emit_pages([found], form, top, output)


def _faster(text: str) -> tuple[str, float]:
    what, sign, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not sign or not what or not SLOWEST <= factor < math.inf:
        raise click.BadParameter(
            f"{text!r} is not WHAT=FACTOR of at least {SLOWEST}, such as 'gemm*=2'.", param_hint="--faster"
        )
    return what, factor


def _rate(text: str) -> float:
    rate = parse_rate(text)
    if rate is None:
        raise click.BadParameter(f"{text!r} is not a bandwidth, such as 50GB/s.", param_hint="--copies")
    return rate


def _time(text: str) -> int:
    found = parse_time_ns(text)
    if not found or found < 0:
        raise click.BadParameter(f"{text!r} is not a time with a unit, such as 1.9ms.", param_hint="--measured")
    return found
