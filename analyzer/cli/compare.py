"""``kanalyze compare``: faster or slower, by how much, where the difference went, and how sure that is; a gate."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kanalyze.cli import _options
from kanalyze.cli._late import late
from kanalyze.cli._output import InputPath, emit, emit_pages, emit_rows
from kanalyze.errors import BadThresholdError, IncomparableError, OutputError, UnknownNameError
from kanalyze.files.regular import open_regular, readable
from kanalyze.units import parse_percent

with late():
    from kanalyze.analyses.comparing import _gate, _pair
    from kanalyze.reduction import baselines
    from kanalyze.renderers.formats import json
    from kanalyze.several import sides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.several.sides import Asked

#: The exit status of a gate.
_STATUS: Final = {"held": 0, "failed": 1, "cannot judge": 3}

#: The least change that counts, unless told.
_LEAST: Final = "2%"

_FILE: Final = InputPath(path_type=Path, dir_okay=False)


@click.command()
@click.argument("reports", nargs=-1, type=_options.READ)
@click.option("--base", multiple=True, type=_options.READ, metavar="RUN", help="A run of base.")
@click.option("--baseline", type=_FILE, metavar="FILE", help="What --save wrote, as base.")
@_options.scope
@_options.top(None, "Rows in each table of the page.")
@click.option("--least", default=_LEAST, metavar="SHARE", show_default=True, help="The least change that counts.")
@click.option("--floor", type=_FILE, metavar="FILE", help="The noise floor that --noise stored, for one run a side.")
@click.option(
    "--save", type=_options.WRITTEN, metavar="FILE.kz", help="Reduce REPORTS, runs of base, to a baseline of 0.1 MB."
)
@click.option("--noise", is_flag=True, help="How much REPORTS, runs of one program, differ; -o FILE.json stores it.")
@click.option("--fail-above", metavar="SHARE", help="End with 1 if new takes more than that longer, 3 if unsure.")
@click.option(
    "--metric", default="step", metavar="step|quick|busy|bucket:NAME|kernel:NAME", help="What the gate measures."
)
@click.option("--allow", multiple=True, metavar="KIND", help="Judge even so: runs, cold, gpu, driver, clocks, tool, …")
@_options.formats("markdown", "json", "csv", "junit")
@_options.no_formulas
@_options.output
@_options.in_one_thread_if_small
def compare(reports: Sequence[Path], base: Sequence[Path], output: Path | None, **options: Any) -> None:  # noqa: ANN401 - each has its own type
    """Compare BASE with NEW: reports, folders of them, captures with --repeat, or baselines.

    Several runs a side, such as `kanalyze collect --repeat 4 --against OTHER` makes, show how sure the answer is.

    Exit status with --fail-above: 0 if new is within the limit, 1 if it is beyond, 3 if that cannot be judged (the page
    has the reason, and the --allow that judges even so), 2 for bad input or use.
    """
    asked = _asked(options)
    if options["save"] is not None:
        _save([*base, *reports], options["save"], asked)
        return
    if options["noise"]:
        _store_noise([*base, *reports], output, options, asked)
        return
    before = [*base, options["baseline"]] if options["baseline"] is not None else base
    found = sides.comparison(*sides.given(reports, before), asked)
    status = 0
    if options["fail_above"] is not None:
        limit = parse_percent(options["fail_above"])
        if limit is None or not isfinite(limit):
            raise BadThresholdError.of(options["fail_above"], "a share, 0 % or more", "3%", "--fail-above")
        gate = _gate.gate_of(found, limit, options["metric"], options["allow"])
        found, status = replace(found, gate=gate), _STATUS[gate.state]
    form = options["form"]
    if form == "csv":
        emit_rows(found.table("compare"), form, output, no_formulas=options["no_formulas"])
    elif form == "junit":
        emit(json.junit(found).encode(), output)
    else:
        emit_pages([found], form, options["top"], output)
    if status:
        raise click.exceptions.Exit(status)  # which leaves the reports open until their doubts are told


def shown(base: Path, new: Path) -> None:
    """Print the page of two sides, whole, as the command does that is given no option."""
    asked = _asked({**_options.WHOLE, "least": _LEAST, "floor": None, "allow": ()})
    emit_pages([sides.comparison([base], [new], asked)], "terminal", None, None)


def _asked(options: dict[str, Any]) -> Asked:
    """How the sides are read and compared."""
    effect, floor = parse_percent(options["least"]), options["floor"]
    if effect is None or not 0 < effect < 1:
        raise BadThresholdError.of(options["least"], "a share between 0 and 100 %", _LEAST, "--least")
    if floor is None:
        limits = _pair.Limits(effect)
    else:
        with readable(floor), open_regular(floor) as file:
            limits = _pair.Limits(effect, *_gate.read_floor(file.read(), floor))
    for kind in options["allow"]:
        if kind not in _gate.KINDS:
            raise UnknownNameError.of("kind of doubt", kind, _gate.KINDS)
    asked = _options.asked_of_sides(_options.where_of(options))
    return asked._replace(limits=limits, other_ranks="ranks" in options["allow"])


def _save(reports: Sequence[Path], output: Path, asked: Asked) -> None:
    if output.suffix != baselines.SUFFIX:
        raise OutputError.because(output, f"the name of a baseline ends in {baselines.SUFFIX}")
    found = [one for some in sides.digests(reports, asked).values() for one in some]
    if not found:
        raise IncomparableError.empty("base")
    emit(baselines.dumped(found), output)


def _store_noise(reports: Sequence[Path], output: Path | None, options: dict[str, Any], asked: Asked) -> None:
    """Prints the noise floor of the runs of one program, or stores it."""
    noise, form = _gate.noise_of(sides.runs_of_one_tool(reports, asked)), options["form"]
    if form == "json" or (form == "terminal" and output is not None):
        emit(_gate.stored(noise), output)
    if form != "json":
        emit_pages([noise], form if form == "markdown" else "terminal", options["top"], None)
