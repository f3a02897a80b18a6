"""Opens the runs of two sides, one after the other: to compare them, and to draw one of each."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from kanalyze import errors, files, machinery
from kanalyze.analyses import declarations, homes_of_sides
from kanalyze.analyses.comparing import _comparison, _pair
from kanalyze.reduction.baselines import LAUNCHES, STEADY, SUFFIX, WHOLE, Digest, Part, loaded
from kanalyze.report import BareRuns, Meta, Report, Where
from kanalyze.several import Asked
from kanalyze.tools import TOOLS, tool_of
from kanalyze.window import Scope, Window

with machinery.late():  # two baselines need no reader, and what draws is for files alone
    from kanalyze.analyses.comparing import _digesting
    from kanalyze.analyses.iterations import phases
    from kanalyze.analyses.page import file_page
    from kanalyze.analyses.timeline import _tracks
    from kanalyze.readers.capture import reports as captures

_TWO: Final = 2


def given(reports: Sequence[Path], base: Sequence[Path] = ()) -> tuple[list[Path], list[Path]]:
    """The paths of base and of new: two of them, the folder of an interleaved collection, or those of base apart.

    Raises IncomparableError if that is not clear.
    """
    if base:
        return [*base], [*reports]
    if len(reports) == 1 and (both := captures.sides_in(reports[0])):
        return [both[0]], [both[1]]
    if len(reports) != _TWO:
        raise errors.IncomparableError.unclear(len(reports))
    return [reports[0]], [reports[1]]


def comparison(base: Sequence[Report | Path], new: Sequence[Report | Path], asked: Asked) -> _comparison.Comparison:
    """Compares two sides, each of reports, folders of them, captures or baselines.

    Of captures with several tools the first that gives time on both sides is compared; those of the others are
    :attr:`Comparison.others`. Where no tool recorded both sides, the first of each that tells the time.

    Raises IncomparableError if a side is empty, only one tells the time, or they have no rank or step in common.
    """
    return comparisons(base, new, asked, several=False)[None]


def comparisons(
    base: Sequence[Report | Path], new: Sequence[Report | Path], asked: Asked, *, several: bool
) -> dict[str | None, _comparison.Comparison]:
    """The same; for `several` windows one for each by its name, as the first report of base tells: each is opened once.

    One without a name, where there is but one window.
    """
    windows: list[str | None] = [] if several else [None]
    before, after = (_by_window(side, asked, STEADY, windows) for side in (base, new))
    paths = (_paths(base), _paths(new))
    by_window = {}
    for window in before:
        sides = before[window], after.get(window, {})
        for name, side in zip(("base", "new"), sides, strict=True):
            if not any(side.values()):
                raise errors.IncomparableError.empty(name)
        tools = []
        for both in _in_common(*sides):
            runs = _alike(*(side[tool] for side, tool in zip(sides, both, strict=True)))
            first, second = (_Runs(*one, asked) for one in zip(runs, (base, new), both, strict=True))
            tools.append((both[0], _of_tool(first, second, (_called(paths[0]), _called(paths[1])))))
        by_window[window] = replace(tools[0][1], paths=paths, scope=_scope(asked, window), others=dict(tools[1:]))
    return by_window


def _scope(asked: Asked, name: str | None) -> Scope:
    """The part of each run that is compared, of several windows the one called `name`."""
    where, window = asked.where, name or asked.where.get("window")
    at = Window(name=str(window)) if window is not None else None
    return Scope(at, where.get("device"), where.get("process"), tuple(where.get("steps") or ()), asked.capture)


def _in_common(*sides: dict[str, list[Digest]]) -> list[tuple[str, ...]]:
    """The tools that recorded both sides, twice each; without any the first of each side that tells the time.

    Raises IncomparableError if one side has none that does.
    """
    common = [tool.name for tool in TOOLS if all(side.get(tool.name) for side in sides)]
    if common:
        return [(name,) * len(sides) for name in common]
    first = [next((tool.name for tool in TOOLS if tool.timed and side.get(tool.name)), None) for side in sides]
    timed = tuple(name for name in first if name)
    if len(timed) < len(sides):
        raise errors.IncomparableError.tools(*([*side] for side in sides))
    return [timed]


def _alike(*sides: Sequence[Digest]) -> list[list[Digest]]:
    """The runs of some sides without the profiler, where all are told so; else each as recorded, where it is."""

    def names(runs: Sequence[Digest]) -> Counter[tuple[str, int]]:
        return Counter((run.about.name, run.about.rank) for run in runs)

    plain, recorded = ([[run for run in side if run.about.unprofiled is so] for side in sides] for so in (True, False))
    if not any(names(some) - names(without) for some, without in zip(recorded, plain, strict=True)):
        return plain
    return [
        some + [run for run in without if (run.about.name, run.about.rank) not in names(some)]
        for some, without in zip(recorded, plain, strict=True)
    ]


class _Runs(NamedTuple):
    """The runs of a side by one tool, and what they are of."""

    digests: list[Digest]
    sources: Sequence[Report | Path]
    tool: str
    asked: Asked

    def of_part(self, part: Part) -> list[Digest]:
        """As wholes, or with the iterations that launches tell; empty where that needs the reports of a baseline."""
        if all(part in (one.about.scope, one.about.found_by) for one in self.digests):
            return self.digests
        if any(isinstance(path, Path) and path.suffix == SUFFIX for path in self.sources):
            return []
        return digests(self.sources, self.asked, part)[self.tool]


def _of_tool(base: _Runs, new: _Runs, names: tuple[str, str]) -> _comparison.Comparison:
    """The comparison of what one tool recorded: of iterations where both sides have the same, else of the whole."""
    before, after, reason, note = base.digests, new.digests, "", ""
    if base.asked.where.get("window") is None and any(one.about.scope in (STEADY, WHOLE) for one in (*before, *after)):
        before, after, note = _found_alike(base, new)
        reason = "" if note else _pair.steps_in_common(before, after)
    if reason:
        before, after = base.of_part(WHOLE), new.of_part(WHOLE)
        if not (before and after):
            raise errors.IncomparableError.steps(reason)
    before, of_ranks = _same_rank(before, after, base.asked)
    notes = "; ".join(filter(None, (note, of_ranks)))
    return replace(_comparison.compared(before, after, names, reason, base.asked.limits or _pair.Limits()), note=notes)


def _found_alike(base: _Runs, new: _Runs) -> tuple[list[Digest], list[Digest], str]:
    """Sides whose iterations were found in different ways, with what makes them comparable; else the sides alone.

    Launches tell the iterations of both where they can; else those that were found have the same launches.
    """
    sides = base.digests, new.digests
    otherwise = _pair.found_otherwise(*sides)
    if not otherwise or any(one.about.scope != STEADY for side in sides for one in side):
        return *sides, ""
    before, after = base.of_part(LAUNCHES), new.of_part(LAUNCHES)
    if before and after and not _pair.steps_in_common(before, after):
        return before, after, f"{otherwise}; here by launches in both"
    return *sides, f"{otherwise}, of mostly the same launches" if _pair.same_launches(*sides) else ""


def _same_rank(base: list[Digest], new: list[Digest], asked: Asked) -> tuple[list[Digest], str]:
    """The runs of base, and a note where their one rank takes the number of the other one of new."""
    ranks = [sorted({run.about.rank for run in side}) for side in (base, new)]
    if {*ranks[0]} & {*ranks[1]}:
        return base, ""
    if not asked.other_ranks or max(map(len, ranks)) > 1:
        raise errors.IncomparableError.ranks(*ranks)
    (before,), (after,) = ranks
    as_new = [replace(run, about=replace(run.about, rank=after)) for run in base]
    return as_new, f"rank {before} of base is compared with rank {after} of new"


def digests(sources: Sequence[Report | Path], asked: Asked, part: Part = STEADY) -> dict[str, list[Digest]]:
    """The runs of a side by tool, all ranks of each; a report is closed before the next one is opened.

    Raises IncomparableError if a path is given twice: a run that counts as two makes any difference look sure, or none.
    """
    return _by_window(sources, asked, part, [None])[None]


def _by_window(
    sources: Sequence[Report | Path], asked: Asked, part: Part, names: list[str | None]
) -> dict[str | None, dict[str, list[Digest]]]:
    """The same by the windows `names`; an empty list of them becomes those of the first report that are asked for."""
    seen = set()
    for path in (source for source in sources if isinstance(source, Path)):
        if (place := os.path.realpath(path)) in seen:  # which raises nothing of a link to itself
            raise errors.IncomparableError(f"{path} is given twice.", "Give each run of a side once.")
        seen.add(place)
    by_window: dict[str | None, dict[str, list[Digest]]] = {}
    for source in sources:
        if not isinstance(source, Path) and len(sources) > 1:  # by the same run without a profiler they would not vary
            source = replace(source, bare=BareRuns)  # noqa: PLW2901
        for name, digest in _runs_of(source, asked, part, names):
            by_window.setdefault(name, {}).setdefault(digest.about.tools_name, []).append(digest)
    return by_window or {None: {}}


def _runs_of(
    source: Report | Path, asked: Asked, part: Part, names: list[str | None]
) -> Iterator[tuple[str | None, Digest]]:
    """The runs of one report or baseline, with the windows that they are of.

    Windows are those of the first tool that gives the time; a report of another one that lacks them is left out.
    """
    if isinstance(source, Path) and source.suffix == SUFFIX:
        yield from product(names or [None], _stored(source, asked.where.get("window")))
        return
    first = None
    for report in opened_of(source, asked):
        first = first or (None if report.meta.timeless else report.meta.tool)
        if not (names or report.meta.timeless):
            several = report.narrow(**(asked.where | {"window": None})).windows(str(asked.where.get("window")))
            names += [str(at) for at in several] if len(several) > 1 else [None]
        windows = [(name, asked.where if name is None else asked.where | {"window": name}) for name in names or [None]]
        try:
            runs = [(name, digest) for name, where in windows for digest in _of_report(report, where, part)]
        except (errors.UnknownNameError, errors.BadWindowError) as error:
            if report.meta.tool == first:
                raise
            if asked.left_out is not None:
                asked.left_out(errors.IncomparableError(f"{report.meta.path}: {error}", error.remedy))
        else:
            yield from runs


def _stored(path: Path, window: object) -> list[Digest]:
    """The runs in a baseline, which has to be of the window if one is asked for."""
    with files.readable(path), files.open_regular(path) as file:
        runs = loaded(file.read(), path)
    if window is not None and str(window) != STEADY and any(run.about.scope in (STEADY, WHOLE) for run in runs):
        raise errors.IncomparableError.steps(f"{path} was made without --window {str(window)!r}")
    return runs


def runs_of_one_tool(sources: Sequence[Report | Path], asked: Asked) -> list[Digest]:
    """The runs of one program by the first tool that tells their time; as wholes unless all have steady iterations."""
    by_tool = digests(sources, asked)
    tool = next((one.name for one in TOOLS if by_tool.get(one.name)), None)
    if tool is None:
        raise errors.IncomparableError.empty("base")
    (alike,) = _alike(by_tool[tool])
    runs = [run for run in alike if run.about.rank == alike[0].about.rank]
    if len({run.about.scope for run in runs}) > 1:
        runs = digests(sources, asked, WHOLE)[tool]
    return runs


def _of_report(report: Report, where: Where, part: Part) -> list[Digest]:
    """The digests of a report as recorded, and those without the profiler, where that is told of its iterations."""
    if report.meta.timeless:
        return _digesting.digests_of(report.narrow(device=where.get("device"), process=where.get("process")))
    view = report.narrow(**where)
    whole = part == STEADY and view.scope.window is None
    recorded = _digesting.digests_of(view, part) if report.meta.slower is None or not whole else []
    return [*recorded, *(_digesting.unprofiled_digests(view) if whole else [])]


def _of_run(bare: Callable[[], BareRuns], number: int) -> BareRuns:
    """The run without a profiler beside a recorded one: several runs, each by all, would seem not to vary."""
    runs = bare()
    return runs._replace(marked=tuple(one for one in runs.marked if one.number == number))


def opened_of(source: Report | Path, asked: Asked) -> Iterator[Report]:
    """Each report of a side; those that are opened here are closed when the next one is asked for."""
    if not isinstance(source, Path):
        yield source
        return
    runs = captures.runs_of(source, asked.progress, cache=asked.cache)
    timed = any(tool_of(run.tool).timed for run in runs)
    for run in runs:
        try:
            opened = run.opened()
        except errors.KanalyzeError as error:
            if asked.left_out is None or not timed or not tool_of(run.tool).counts:
                raise
            asked.left_out(error)
            continue
        with opened as report:
            named = report if asked.named is None or report.meta.timeless else asked.named(report)
            yield replace(named, bare=partial(_of_run, report.bare, run.number))
            if asked.done is not None:
                asked.done(report)


def _called(paths: tuple[str, ...]) -> str:
    """Name of a side: its report, or the first of several and their number."""
    return f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else paths[0]


def _paths(sources: Sequence[Report | Path]) -> tuple[str, ...]:
    return tuple(str(source if isinstance(source, Path) else source.meta.path) for source in sources)


# What a file is of.


def file_page_of_sides(base: Sequence[Path], new: Sequence[Path], asked: Asked, most: int) -> "file_page.FilePage":
    """The content of an HTML report of two sides: the comparison, its tables, and a timeline of a run of each.

    Both begin their first steady iteration at the same place; without such, their first work on a device. The timeline
    has about `most` events, half of them of each side. Raises what :func:`comparison` does.
    """
    result = comparison(base, new, asked)
    drawn = [(name, *one) for name, side in (("base", base), ("new", new)) for one in _first_drawn(side, asked, most)]
    places = [(name, drawn[0][1] - anchor_ns, timeline) for name, anchor_ns, timeline, _ in drawn]
    return file_page.FilePage(
        result,
        [meta for *_, meta in drawn],
        [(declarations(module)[name], result.table(name)) for name, module in homes_of_sides().items()],
        _tracks.on_one_clock(places) if places else None,
    )


def _first_drawn(side: Sequence[Path], asked: Asked, most: int) -> "list[tuple[int, _tracks.Timeline, Meta]]":
    """The timeline of the first run of a side that has one, with where its work begins; none of a baseline."""
    for opened in (report for path in side if path.suffix != SUFFIX for report in opened_of(path, asked)):
        if opened.meta.timeless:
            continue
        report = opened.narrow(**asked.where)
        steady, drawn = phases.steady_part(report), _tracks.timeline(report, most // 2)
        begins = drawn.start_ns if steady is None else steady.window.start_ns
        return [(drawn.start_ns if begins is None else begins, drawn, report.meta)]
    return []
