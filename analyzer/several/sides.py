"""Opens the runs of two sides, one after the other, and compares them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kanalyze.analyses.comparing._comparison import Comparison, compared
from kanalyze.analyses.comparing._pair import Limits, found_otherwise, same_launches, steps_in_common
from kanalyze.errors import IncomparableError, KanalyzeError
from kanalyze.files.regular import open_regular, readable
from kanalyze.reduction.baselines import LAUNCHES, STEADY, SUFFIX, WHOLE, Digest, Part, loaded
from kanalyze.report import Report
from kanalyze.tools import TOOLS, tool_of

if TYPE_CHECKING:
    from kanalyze.several import Asked

_TWO: Final = 2


def given(reports: Sequence[Path], base: Sequence[Path] = ()) -> tuple[list[Path], list[Path]]:
    """The paths of base and of new: two of them, the folder of an interleaved collection, or those of base apart.

    Raises:
        IncomparableError: That is not clear.
    """
    if base:
        return [*base], [*reports]
    if len(reports) == 1:
        from kanalyze.readers.capture.reports import sides_in  # noqa: PLC0415 - two baselines need no reader

        if both := sides_in(reports[0]):
            return [both[0]], [both[1]]
    if len(reports) != _TWO:
        raise IncomparableError.unclear(len(reports))
    return [reports[0]], [reports[1]]


def _refuse_twice(given: Sequence[Report | Path]) -> None:
    """Refuses a path that a side has twice: one run that counts as two makes any difference look sure, or none."""
    seen = set()
    for one in given:
        if not isinstance(one, Path):
            continue
        if (place := os.path.realpath(one)) in seen:  # which raises nothing of a link to itself
            raise IncomparableError(f"{one} is given twice.", "Give each run of a side once.")
        seen.add(place)


def comparison(base: Sequence[Report | Path], new: Sequence[Report | Path], asked: Asked) -> Comparison:
    """Compares two sides, each of reports, folders of them, captures or baselines.

    Of captures with several tools the first that gives time on both sides is compared; those of the others are
    :attr:`Comparison.others`.

    Raises:
        IncomparableError: A side is empty, or they have no tool, rank or step in common.
    """
    sides = digests(base, asked), digests(new, asked)
    for name, side in zip(("base", "new"), sides, strict=True):
        if not any(side.values()):
            raise IncomparableError.empty(name)
    common = [one.name for one in TOOLS if sides[0].get(one.name) and sides[1].get(one.name)]
    if not common:
        raise IncomparableError.tools(*([*side] for side in sides))
    names = (_called(base), _called(new))
    found = [
        _of_tool(_Runs(sides[0][tool], tool, base, asked), _Runs(sides[1][tool], tool, new, asked), names)
        for tool in common
    ]
    paths = (_paths(base), _paths(new))
    return replace(found[0], paths=paths, others=dict(zip(common[1:], found[1:], strict=True)))


class _Runs(NamedTuple):
    """The runs of a side by one tool, and what they are of."""

    digests: list[Digest]
    tool: str
    given: Sequence[Report | Path]
    asked: Asked

    def of_part(self, part: Part) -> list[Digest]:
        """As wholes, or with the iterations that launches tell; empty where that needs the reports of a baseline."""
        if all(part in (one.about.scope, one.about.found_by) for one in self.digests):
            return self.digests
        if any(isinstance(path, Path) and path.suffix == SUFFIX for path in self.given):
            return []
        return digests(self.given, self.asked, part)[self.tool]


def _of_tool(base: _Runs, new: _Runs, names: tuple[str, str]) -> Comparison:
    """The comparison of what one tool recorded: of iterations where both sides have the same, else of the whole."""
    before, after, reason, note = base.digests, new.digests, "", ""
    if base.asked.where.get("window") is None and any(one.about.scope in (STEADY, WHOLE) for one in (*before, *after)):
        before, after, note = _found_alike(base, new)
        reason = "" if note else steps_in_common(before, after)
    if reason:
        before, after = (_whole(side, reason) for side in (base, new))
    before, of_ranks = _same_rank(before, after, base.asked)
    notes = "; ".join(one for one in (note, of_ranks) if one)
    return replace(compared(before, after, names, reason, base.asked.limits or Limits()), note=notes)


def _whole(side: _Runs, reason: str) -> list[Digest]:
    if found := side.of_part(WHOLE):
        return found
    raise IncomparableError.steps(reason)


def _found_alike(base: _Runs, new: _Runs) -> tuple[list[Digest], list[Digest], str]:
    """Sides whose iterations were found in different ways, with what makes them comparable; else the sides alone.

    Launches tell the iterations of both where they can; else those that were found have the same launches.
    """
    sides = base.digests, new.digests
    otherwise = found_otherwise(*sides)
    if not otherwise or any(one.about.scope != STEADY for side in sides for one in side):
        return *sides, ""
    before, after = base.of_part(LAUNCHES), new.of_part(LAUNCHES)
    if before and after and not steps_in_common(before, after):
        return before, after, f"{otherwise}; here by launches in both"
    return *sides, f"{otherwise}, of mostly the same launches" if same_launches(*sides) else ""


def _same_rank(base: list[Digest], new: list[Digest], asked: Asked) -> tuple[list[Digest], str]:
    """The runs of base, and a note where their one rank takes the number of the other one of new.

    Raises:
        IncomparableError: No rank is on both sides, and there are several, or it was not asked for.
    """
    ranks = [sorted({one.about.rank for one in side}) for side in (base, new)]
    if {*ranks[0]} & {*ranks[1]}:
        return base, ""
    if not asked.other_ranks or max(map(len, ranks)) > 1:
        raise IncomparableError.ranks(*ranks)
    (before,), (after,) = ranks
    as_new = [replace(one, about=replace(one.about, rank=after)) for one in base]
    return as_new, f"rank {before} of base is compared with rank {after} of new"


def digests(given: Sequence[Report | Path], asked: Asked, part: Part = STEADY) -> dict[str, list[Digest]]:
    """The runs of a side by tool, all ranks of each; a report is closed before the next one is opened."""
    _refuse_twice(given)
    found: dict[str, list[Digest]] = {}
    for one in given:
        if isinstance(one, Path) and one.suffix == SUFFIX:
            every = _in_window(loaded(_bytes(one), one), one, asked)
        else:
            every = [digest for report in opened_of(one, asked) for digest in _of_report(report, asked, part)]
        for digest in every:
            found.setdefault(digest.about.tool.partition(" ")[0], []).append(digest)
    return found


def _in_window(runs: list[Digest], path: Path, asked: Asked) -> list[Digest]:
    """The runs of a baseline, which was made of a window where one is asked for."""
    window = asked.where.get("window")
    if window is not None and str(window) != STEADY and any(one.about.scope in (STEADY, WHOLE) for one in runs):
        raise IncomparableError.steps(f"{path} was made without --window {str(window)!r}")
    return runs


def runs_of_one_tool(given: Sequence[Report | Path], asked: Asked) -> list[Digest]:
    """The runs of one program by the first tool that tells their time; as wholes unless all have steady iterations."""
    found = digests(given, asked)
    tool = next((one.name for one in TOOLS if found.get(one.name)), None)
    if tool is None:
        raise IncomparableError.empty("base")
    runs = [one for one in found[tool] if one.about.rank == found[tool][0].about.rank]
    if len({one.about.scope for one in runs}) > 1:
        runs = digests(given, asked, WHOLE)[tool]
    return runs


def _of_report(report: Report, asked: Asked, part: Part) -> list[Digest]:
    from kanalyze.analyses.comparing._digesting import digests_of  # noqa: PLC0415 - baselines are digests

    where = asked.where
    if report.meta.timeless:
        return digests_of(report.narrow(device=where.get("device"), process=where.get("process")))
    return digests_of(report.narrow(**where), part)


def opened_of(one: Report | Path, asked: Asked) -> Iterator[Report]:
    """Each report of a side; those that are opened here are closed when the next one is asked for."""
    from kanalyze.readers.capture.reports import runs_of  # noqa: PLC0415 - baselines need no reader

    if not isinstance(one, Path):
        yield one
        return
    runs = runs_of(one, asked.progress, cache=asked.cache)
    timed = any(tool_of(run.tool).timed for run in runs)
    for run in runs:
        try:
            opened = run.opened()
        except KanalyzeError as error:
            if asked.left_out is None or not timed or not tool_of(run.tool).counts:
                raise
            asked.left_out(error)
            continue
        with opened as report:
            yield report
            if asked.done is not None:
                asked.done(report)


def _bytes(path: Path) -> bytes:
    with readable(path), open_regular(path) as file:
        return file.read()


def _called(given: Sequence[Report | Path]) -> str:
    """Name of a side: its report, or the first of several and their number."""
    first, *more = _paths(given)
    return f"{first} and {len(more)} more" if more else first


def _paths(given: Sequence[Report | Path]) -> tuple[str, ...]:
    return tuple(str(one if isinstance(one, Path) else one.meta.path) for one in given)
