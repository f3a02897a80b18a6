"""``kanalyze compare`` and ``verify``: gates on two sides of runs, and on what several tools tell of one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kanalyze.cli import _options
from kanalyze.cli._options import (
    NO_FORMULAS,
    OUTPUT,
    READ,
    REPORTS,
    SCOPE,
    Where,
    argument,
    command,
    flag,
    formats,
    option,
    top,
)
from kanalyze.cli._output import InputPath, Out, emit, width
from kanalyze.errors import BadThresholdError, IncomparableError, OutputError, UnknownNameError
from kanalyze.files.regular import open_regular, readable
from kanalyze.machinery import late
from kanalyze.units import parse_percent

with late():
    from kanalyze.analyses.comparing import _gate, _pair
    from kanalyze.analyses.joining import agreement
    from kanalyze.reduction import baselines
    from kanalyze.renderers.formats import json
    from kanalyze.renderers.tables import fitted
    from kanalyze.several import sides

if TYPE_CHECKING:
    from kanalyze.several import Asked

#: The exit status of a gate.
_STATUS: Final = {"held": 0, "failed": 1, "cannot judge": 3}

#: The least change that counts, unless told.
_LEAST: Final = "2%"

_FILE: Final = InputPath(path_type=Path, dir_okay=False)


@command(
    argument("reports", nargs=-1, type=READ),
    option("--base", "A run of base.", "RUN", multiple=True, type=READ),
    option("--baseline", "What --save wrote, as base.", "FILE", type=_FILE),
    *SCOPE,
    top(),
    option("--least", "The least change that counts.", "SHARE", default=_LEAST, show_default=True),
    option("--floor", "The noise floor that --noise stored, for one run a side.", "FILE", type=_FILE),
    option("--save", "Reduce REPORTS, runs of base, to a baseline of 0.1 MB.", "FILE.kz", type=_options.WRITTEN),
    flag("--noise", "How much REPORTS, runs of one program, differ; -o FILE.json stores it."),
    option("--fail-above", "End with 1 if new takes more than that longer, 3 if unsure.", "SHARE"),
    option("--metric", "What the gate measures.", "step|quick|busy|bucket:NAME|kernel:NAME", default="step"),
    option("--allow", "Judge even so: runs, cold, gpu, driver, clocks, tool, …", "KIND", multiple=True),
    formats("markdown", "json", "csv", "junit"),
    NO_FORMULAS,
    OUTPUT,
)
def compare(  # noqa: PLR0913 - a click command has a parameter per option
    reports: Sequence[Path],
    base: Sequence[Path],
    where: Where,
    to: Out,
    baseline: Path | None,
    save: Path | None,
    fail_above: str | None,
    metric: str,
    *,
    noise: bool,
    **limits: Any,  # noqa: ANN401 - as of _asked
) -> None:
    """Compare BASE with NEW: reports, folders of them, captures with --repeat, or baselines.

    Several runs a side, such as `kanalyze collect --repeat 4 --against OTHER` makes, show how sure the answer is.

    Exit status with --fail-above: 0 if new is within the limit, 1 if it is beyond, 3 if that cannot be judged (the page
    has the reason, and the --allow that judges even so), 2 for bad input or use.
    """
    asked = _asked(where, **limits)
    if save is not None:
        _save([*base, *reports], save, asked)
        return
    if noise:
        _store_noise([*base, *reports], to, asked)
        return
    comparison = sides.comparison(*sides.given(reports, base if baseline is None else [*base, baseline]), asked)
    status = 0
    if fail_above is not None:
        limit = parse_percent(fail_above)
        if limit is None or not isfinite(limit):
            raise BadThresholdError.of(fail_above, "a share, 0 % or more", "3%", "--fail-above")
        gate = _gate.gate_of(comparison, limit, metric, limits["allow"])
        comparison, status = replace(comparison, gate=gate), _STATUS[gate.state]
    if to.form == "csv":
        to.emit_rows(comparison.table("compare"))
    elif to.form == "junit":
        to.emit(json.junit(comparison).encode())
    else:
        to.emit_pages([comparison])
    if status:
        raise click.exceptions.Exit(status)  # which leaves the reports open until their doubts are told


def shown(base: Path, new: Path) -> None:
    """Print the page of two sides, whole, as the command does that is given no option."""
    Out().emit_pages([sides.comparison([base], [new], _asked(Where()))])


def _asked(where: Where, least: str = _LEAST, floor: Path | None = None, allow: Sequence[str] = ()) -> Asked:
    """How the sides are read and compared."""
    effect = parse_percent(least)
    measured: tuple[float, ...] = ()
    if effect is None or not 0 < effect < 1:
        raise BadThresholdError.of(least, "a share between 0 and 100 %", _LEAST, "--least")
    if floor is not None:
        with readable(floor), open_regular(floor) as file:
            measured = _gate.read_floor(file.read(), floor)
    for kind in allow:
        if kind not in _gate.KINDS:
            raise UnknownNameError.of("kind of doubt", kind, _gate.KINDS)
    return _options.asked(
        where, done=_options.doubted, limits=_pair.Limits(effect, *measured), other_ranks="ranks" in allow
    )


def _save(reports: Sequence[Path], output: Path, asked: Asked) -> None:
    if output.suffix != baselines.SUFFIX:
        raise OutputError.because(output, f"the name of a baseline ends in {baselines.SUFFIX}")
    runs = [one for some in sides.digests(reports, asked).values() for one in some]
    if not runs:
        raise IncomparableError.empty("base")
    emit(baselines.dumped(runs), output)


def _store_noise(reports: Sequence[Path], to: Out, asked: Asked) -> None:
    """Prints the noise floor of the runs of one program, or stores it."""
    noise = _gate.noise_of(sides.runs_of_one_tool(reports, asked))
    if to.form == "json" or (to.form == "terminal" and to.output is not None):
        to.emit(_gate.stored(noise))
    if to.form != "json":
        Out("markdown" if to.form == "markdown" else "terminal", top=to.top).emit_pages([noise])


@command(
    REPORTS,
    *SCOPE,
    flag("--all every", "Also what is equal."),
    formats("csv", "json"),
    NO_FORMULAS,
    OUTPUT,
)
def verify(reports: Sequence[Path], where: Where, to: Out, *, every: bool) -> None:
    """Hold REPORTS of one program by different tools, or a capture's folder, against each other.

    Shows what two tools tell differently and why; ends with status 1 where nothing explains it.
    """
    rows = agreement.agreement(*_options.opened_together(reports, where), **where.part)
    differing = rows if every else rows.filter(rows.get_column("verdict") != "equal")
    if to.form == "terminal":
        to.emit(fitted.agreement(rows, differing, width()))
    else:
        to.emit_rows(differing)
    if "unexplained" in rows.get_column("verdict"):
        raise click.exceptions.Exit(_STATUS["failed"])  # as above
