"""Builds the first page of a timeline report: a typical iteration, what to do first, kernels, ranges, start-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import units
from kanalyze.named_ranges import of_iteration
from kanalyze.outlets import command
from kanalyze.renderers.page import sections
from kanalyze.renderers.page.time import (
    Block,
    Ledger,
    Page,
    Point,
    Share,
    culprits_of,
    heading,
    health_line,
    ledger,
    options,
    rank_of,
    told_waits,
)
from kanalyze.renderers.text.grid import Column, Section, section, words
from kanalyze.window import PerIteration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.window import Window

#: Most rows of the page's tables, findings, and buckets of a ledger; a page of fewer lines has fewer rows.
ROWS: Final = 6
_FINDINGS: Final = 3
_FEWEST: Final = 2
_FEW_ROWS: Final = 2
_TABLES: Final = 2
_BUCKETS: Final = 6
_MORE_BUCKETS: Final = 4
_DETAILS: Final = 3

#: Room for the remark on the times of findings, beside the title at 80 columns.
_REMARK: Final = 62

#: What is left of a ledger beside its largest buckets.
_REST: Final = "rest"

#: A part of a bucket is named from this share of it on.
_WORTH_NAMING: Final = 0.02

#: Parts that are named, of what came before the steady iterations and of the rest.
_PARTS: Final = 5
_PARTS_BESIDE: Final = 2

#: Ranges are told where the host was in them for this part of an iteration.
_LEAST_INSIDE: Final = 0.1
_BETWEEN: Final = "(between them)"

#: What kernels are called that a graph launched, where only the whole graph was recorded.
_GRAPHS: Final = "CUDA graphs"

#: What an iteration is called in titles, where its name is longer than this.
_ITERATION: Final = "iteration"
_LONGEST_NAME: Final = 24

#: The longest name of a range in the detail of a bucket.
_LONGEST_IN: Final = 28

#: Rows with less than this share of the whole are folded.
_LEAST_SHARE: Final = 0.005

_NO_TEXT: Final = pl.lit(None, dtype=pl.String)

#: The parts of a line's time by their headings; all that lies in no line that is shown; the longest name of a line.
_OF_LINE: Final = {"host": "host_ns", "GPU work": "work_ns", "launch": "launch_ns", "wait": "wait_ns"}
_ELSEWHERE: Final = "elsewhere"
_LONGEST_PLACE: Final = 32

#: Buckets without a detail of their own are told by the ranges that they lie in.
_KERNEL: Final = "kernel"
_HOST: Final = "host"
_LOADING: Final = "loading"
_COMMUNICATION: Final = "communication"


def overview_page(found: Overview, top: int) -> Page:
    """Builds the first page of a report, at most `top` rows per table.

    0 is for fewer findings, -1 for no table but that of lines, -2 for none.
    """
    per, rows = _per(found.window), top if top > 0 else _FEW_ROWS
    main = pl.col("device").eq_missing(pl.lit(found.device, dtype=pl.Int64))
    shown, others = found.windows.filter(main), found.windows.filter(~main)
    code = _code(found, per, rows + 1)
    tables = [code, _kernels(found, per, rows)][: max(top + _TABLES, 0)]
    if top > _FEW_ROWS or (code is None and top >= 0):  # lines tell more than ranges and operators
        tables.append(_ranges(found, per, rows + 1) or _operators(found, per, rows))
    to_do = _to_do(found.findings)[: _FINDINGS if top > 0 else _FEWEST]
    findings = [(one, None) for one in found.findings[:top]] if top > ROWS else to_do
    points = [_point(one, per, beside) for one, beside in findings]
    most = min(_BUCKETS, max(top, 0) + _MORE_BUCKETS)
    return Page(
        heading=_heading(found),
        answer=found.answer,
        ledgers=[_ledger(found, per, row, most) for row in shown.sort("device").iter_rows(named=True)],
        sections=[table for table in tables if table is not None],
        more=_more(found),
        points=points,
        points_remark=_points_remark(per, points),
        blocks=[*_other_devices(others), *_blocks(found)],
        overview=True,
        nothing="Nothing that gains a hundredth of it.",
    )


def _per(window: Window | None) -> PerIteration:
    """How times and counts of the page are told: per iteration, where it is of iterations."""
    if window is None or not window.count:
        return PerIteration(None, "")
    each = window.each or _ITERATION
    return PerIteration(window.count, each if len(each) <= _LONGEST_NAME else _ITERATION)


def _words(found: Overview, per: PerIteration) -> str:
    """Remark on times and counts: ``average of 60 steps``; empty where they are totals.

    ``in a row`` where there are more such steps.
    """
    if not per.iterations:
        return ""
    some = found.steady is not None and per.iterations < found.steady.usual.height
    return f"one {per.each}" if per.iterations == 1 else f"average of {per.all}{' in a row' if some else ''}"


def _heading(found: Overview) -> list[str]:
    models = found.windows.group_by("name", maintain_order=True).len()
    parts = [f"{count} × {name or 'GPU'}" if count > 1 else name or "GPU" for name, count in models.iter_rows()]
    parts += [units.plural(found.process_count, "process")] if found.process_count > 1 else []
    if found.others:
        from kanalyze.renderers.page.counters import joined_with  # noqa: PLC0415 - most pages are of one report

        parts += joined_with(found.others, found.tools, found.meta)
    parts += rank_of(found.meta)
    if found.steady is not None:
        parts.append(
            f"{units.count(found.steady.rows.filter(pl.col('name') == found.steady.each).height)} × {found.steady.each}"
        )
    elif found.scope.window is not None:
        parts.append(f"window {found.scope.window}")
    parts += [health_line(found.tables["health"])] if "health" in found.tables else []
    parts += [found.named] if found.named else []
    return heading(found.meta, parts)


def _ledger(found: Overview, per: PerIteration, window: dict[str, Any], most: int) -> Ledger:
    """The ledger of a device, of at most so many buckets; the others become one."""
    rows = found.tables["ledger"].filter(pl.col("device") == window["device"])
    if found.window is None:
        rows = rows.filter(pl.col("bucket") != _LOADING)
    iterations = per.iterations or 1
    spread = _spread(found, round(rows.get_column("ns").sum() / iterations)) if iterations > 1 else {}
    span = " to ".join(units.instant(window[side], found.zero_ns) for side in ("start_ns", "end_ns"))
    apart = ", loading apart" if found.window is None and _once(found) else ""
    words = _words(found, per)
    words = (words and f"{words}; least to most") if spread else words or f"{span}{apart}"
    whole = ledger(
        rows,
        f"GPU {window['device']}, {words}",
        lambda bucket, parts: _detail(found, per, bucket, window["device"], parts),
        found.interface,
        iterations,
    )
    title = f"WHERE A {per.each.upper()} GOES" if per.each == "step" else "WHERE THE TIME WENT"
    shares = [one._replace(spread=spread.get(one.bucket, "")) for one in whole.shares]
    return whole._replace(shares=_with_rest(shares, whole.window_ns, most), title=title)


def _spread(found: Overview, shown_ns: int) -> dict[str, str]:
    """Least and most of each bucket over the steady iterations, in the unit of the ledger."""
    table = found.tables.get("spread")
    if table is None:
        return {}
    return {bucket: units.least_to_most(least, most, shown_ns) for bucket, least, most in table.iter_rows()}


def _with_rest(shares: list[Share], length: int, most: int) -> list[Share]:
    """The largest buckets, and the others as one, which is told by their names."""
    large = [one for one in shares if one.ns >= _LEAST_SHARE * length]
    if len(shares) <= min(most, len(large) + 1):
        return shares
    number = min(most - 1, len(large))
    kept, rest = shares[:number], shares[number:]
    ns, each_ns = (sum(getattr(one, name) for one in rest) for name in ("ns", "each_ns"))
    times_ns = [*(one.each_ns for one in kept), each_ns]
    *texts, last = units.adding_up(times_ns, sum(times_ns))
    named = [one._replace(time=text) for one, text in zip(kept, texts, strict=True)]
    names = ", ".join(one.bucket for one in rest)
    return [*named, Share(_REST, ns, each_ns, last, units.percent(ns / max(length, 1)), names, names)]


def _other_devices(rows: pl.DataFrame) -> list[Block]:
    """How busy each further device was."""
    if rows.is_empty():
        return []
    told = [
        f"GPU {row['device']} {units.percent(row['busy_ns'] / max(row['window_ns'], 1))}"
        for row in rows.sort("device").iter_rows(named=True)
    ]
    return [Block("OTHER GPUS", f"busy {', '.join(told)}; --device N shows one")]


def _detail(found: Overview, per: PerIteration, bucket: str, device: int, details: list[tuple[str | None, int]]) -> str:
    """Largest parts of a bucket: kernel families, ranges, or what held the device up."""
    if bucket == _KERNEL:
        return _families(found)
    if told := told_waits(bucket, details):
        return told
    named = _by_range(found, bucket, device) or _by_culprit(found, bucket, device, details)
    whole = sum(ns for _, ns in details)
    worth = [(name, ns) for name, ns in named if ns >= _WORTH_NAMING * whole][:_DETAILS]
    return ", ".join(f"{sections.unversioned(name)} {per.mean_time(ns)}" for name, ns in worth)


def _families(found: Overview) -> str:
    """The kernel families with most time, and whole graphs, as shares of kernel time without communication."""
    table = found.tables.get("hot_kernels")
    if table is None or table.is_empty():
        return ""
    known = table.with_columns(pl.col("family").fill_null(_GRAPHS)).filter(pl.col("family") != _COMMUNICATION)
    whole = int(known.get_column("exclusive_ns").sum())
    sums = known.group_by("family").agg(pl.col("exclusive_ns").sum()).sort("exclusive_ns", "family", descending=True)
    told = [f"{family} {ns / max(whole, 1):.0%}".replace("%", " %") for family, ns in sums.iter_rows()]
    return ", ".join(told[:_DETAILS])


def _by_range(found: Overview, bucket: str, device: int) -> list[tuple[str, int]]:
    """A bucket by the ranges inside the iterations, where there are some; of the main device.

    Of a range that holds more than half of its part inside another one, that one and the rest are told.
    """
    parts = found.tables.get("parts")
    if parts is None or parts.is_empty() or found.steady is None or device != found.steady.device:
        return []
    rows = zip(parts["range"].to_list(), parts[f"{bucket}_ns"].to_list(), strict=True)
    largest = sorted(rows, key=lambda row: -row[1])
    if largest[0][0].startswith("("):  # most of it lies in none of them
        return []
    inner = {name: rest for name, *rest in found.tables["inner"].filter(bucket=bucket).drop("bucket").iter_rows()}
    told = []
    for name, whole_ns in largest:
        within, ns = inner.get(name, (name, whole_ns))
        told += [(_in(within), ns), (f"elsewhere {_in(name)}", whole_ns - ns)]
    return sorted((part for part in told if part[1]), key=lambda part: -part[1])


def _in(name: str) -> str:
    """A part of an iteration in the detail of a bucket, with room for its time."""
    if name.startswith("("):
        return name.strip("()")
    return f"in {name if len(name) <= _LONGEST_IN else f'{name[: _LONGEST_IN - 1]}…'}"


def _by_culprit(
    found: Overview, bucket: str, device: int, details: list[tuple[str | None, int]]
) -> list[tuple[str, int]]:
    """A bucket by what held the device up: host time by culprit, others by the ledger's own details."""
    reasons = found.tables.get("culprits")
    if bucket == _HOST and reasons is not None:
        sums: dict[str | None, int] = {}
        for name, ns in culprits_of(bucket, reasons.filter(pl.col("device") == device)):
            told = name and of_iteration(name, found.steady.each if found.steady else "")
            sums[told] = sums.get(told, 0) + ns
        named = sorted(sums.items(), key=lambda part: -part[1])
    else:
        named = sorted(details, key=lambda row: -row[1])
    return [(sections.UNNAMED.get(name, name), ns) for name, ns in named if name is not None]


def _code(found: Overview, per: PerIteration, top: int) -> Section | None:
    """The lines of the program with most of the time, and all else as one row, so that they sum to it."""
    table = found.tables.get("code")
    if table is None or found.device is None:
        return None
    own = table.filter(pl.col("device") == found.device).with_columns(ns=pl.sum_horizontal(*_OF_LINE.values()))
    lines = own.drop_nulls("place").with_columns(pl.col("text").fill_null(pl.col("function")).cast(pl.String))
    shown = lines.head(min(_worth_a_row(lines, "share"), top, ROWS - 1))
    if shown.is_empty():
        return None
    parts = ("ns", *_OF_LINE.values())
    left = [pl.col(part).sum() - shown.get_column(part).sum() for part in parts]
    rest = own.select(*left, place=pl.lit(_ELSEWHERE), text=_NO_TEXT).filter(pl.col("ns") > 0)
    rows = pl.concat([shown.select(*parts, "place", "text"), rest])
    least = _LEAST_SHARE * int(own.get_column("ns").sum())
    kept = {title: part for title, part in _OF_LINE.items() if own.get_column(part).sum() >= least}
    unit, times = _in_one_unit(rows, per.iterations or 1)
    columns = (
        Column("time", "ns", str),
        *(Column(title, part, str, spare=True) for title, part in kept.items()),
        Column("line", "place", _fitted_place, left=True),
        words("source" if own.get_column("text").count() else "function", "text", missing=""),
    )
    some = "" if shown.height == lines.height else f"{shown.height} of {units.plural(lines.height, 'line')}"
    remark = "; ".join(part for part in (some, f"{unit} per {per.each}" if per.each else unit) if part)
    return section("WHERE IN YOUR CODE", rows.with_columns(times), columns, remark=remark, cut=True)


def _in_one_unit(rows: pl.DataFrame, iterations: int) -> tuple[str, list[pl.Series]]:
    """The unit of the sum of the times of rows, and each column of times in it, without it; each adds up."""
    whole_ns = round(rows.get_column("ns").sum() / iterations)
    told = []
    for name in ("ns", *_OF_LINE.values()):
        each_ns = [round(ns / iterations) for ns in rows.get_column(name)]
        told.append(pl.Series(name, [text.split()[0] for text in units.adding_up(each_ns, whole_ns)]))
    return units.adding_up([whole_ns], whole_ns)[0].split()[1], told


def _worth_a_row(rows: pl.DataFrame, share: str) -> int:
    """How many of rows, the largest first, have a share that is worth a row; one at least, where there are some."""
    return max(rows.filter(pl.col(share) >= _LEAST_SHARE).height, min(rows.height, 1))


def _fitted_place(place: str) -> str:
    """A line of the program, a long path without its beginning."""
    return place if len(place) <= _LONGEST_PLACE else f"…{place[1 - _LONGEST_PLACE :]}"


def _kernels(found: Overview, per: PerIteration, top: int) -> Section | None:
    table = found.tables.get("hot_kernels")
    if table is None or table.is_empty() or not top:
        return None
    if found.joined is not None:
        from kanalyze.renderers.page.counters import joined_kernels  # noqa: PLC0415 - as above

        return joined_kernels(found.joined, found.tools, top)
    columns = (
        Column("time", "exclusive_ns", per.mean_time),
        Column("of GPU", "busy_share"),
        Column("count", "count", per.mean),
        Column("average", "avg_ns", spare=True),
        words("kernel", "name"),
    )
    remark = f"per {per.each}; share of the GPU's busy time" if per.each else "share of the GPU's busy time"
    return section("KERNELS", table, columns, min(top, _worth_a_row(table, "busy_share")), remark, named=True)


def _ranges(found: Overview, per: PerIteration, top: int) -> Section | None:
    """The parts of an iteration by the program's ranges, which add up to it."""
    parts = found.tables.get("parts")
    if parts is None or parts.height < 2:  # noqa: PLR2004 - a single one tells nothing
        return None
    whole = max(int(parts.get_column("ns").sum()), 1)
    inside = int(parts.filter(pl.col("range") != _BETWEEN).get_column("ns").sum())
    if inside < _LEAST_INSIDE * whole:
        return None
    columns = (
        Column("time", "ns", per.mean_time),
        Column("share", lambda row: units.percent(row["ns"] / whole)),
        Column("GPU busy", lambda row: units.percent(row["busy_ns"] / max(row["ns"], 1))),
        Column("launch", "launch_ns", per.mean_time, spare=True),
        Column("host", "host_ns", per.mean_time, spare=True),
        Column("sync", "sync_ns", per.mean_time, spare=True),
        Column("range", "range", left=True),
    )
    top = min(top, _worth_a_row(parts.select(share=pl.col("ns") / whole), "share"))
    return section("RANGES", parts, columns, top, f"per {per.each}; what the host was in", cut=True)


def _operators(found: Overview, per: PerIteration, top: int) -> Section | None:
    table = found.tables.get("ops")
    if table is None or table.is_empty() or not table.get_column("exclusive_device_ns").sum():
        return None
    columns = (
        Column("device", "exclusive_device_ns", per.mean_time),
        Column("share", "exclusive_share"),
        Column("own host", "self_cpu_ns", per.mean_time),
        Column("count", "count", per.mean),
        words("operator", "name", missing="(no operator)"),
    )
    remark = f"per {per.each}" if per.each else "share of busy time"
    return section("OPERATORS", table, columns, min(top, _worth_a_row(table, "exclusive_share")), remark, cut=True)


#: The finding on host time, which is none of the time that another one is about.
_OF_HOST: Final = "host-computes"


def _to_do(findings: Sequence[Finding]) -> list[tuple[Finding, Finding | None]]:
    """The first finding of each action, what gains most before others, and one on other time with the same action."""
    by_action: dict[str, list[Finding]] = {}
    for one in findings:
        by_action.setdefault(one.brief.action, []).append(one)
    found = []
    for first, *others in by_action.values():
        beside = (one for one in others if (one.rule == _OF_HOST) != (first.rule == _OF_HOST))
        found.append((first, next(beside, None)))
    return found


def _point(finding: Finding, per: PerIteration, beside: Finding | None = None) -> Point:
    brief = finding.brief
    where = brief.line if brief.headline.endswith(f" in {brief.where}") else brief.place
    there = f", in {where}" if where else ""
    replayed_ns = beside.replayed_ns if beside is not None and finding.replayed_ns is None else finding.replayed_ns
    return Point(
        f"{'≤ ' if finding.at_most else ''}{per.mean_time(finding.at_stake_ns)}",
        brief,
        f"{brief.headline}{there}",
        brief.action,
        f"explain {finding.rule}",
        "" if replayed_ns is None else per.mean_time(replayed_ns),
        None if beside is None else _point(beside, per),
    )


def _points_remark(per: PerIteration, points: Sequence[Point]) -> str:
    """Remark on the times of findings, as long as there is room for at 80 columns."""
    takes = "GPU time that it takes"
    told = [f"GPU time {per.of} that it takes", f"GPU time {per.of}", takes] if per.iterations else [takes]
    saved = "; → saved in all, by replay" if any(one.saved for one in points) else ""
    return next((text for one in told if len(text := f"{one}{saved}") <= _REMARK), f"{takes}{saved}")


def _once(found: Overview) -> str:
    """Contexts and loading of the main device, the largest first; empty without any."""
    device = pl.col("device").eq_missing(pl.lit(found.device, dtype=pl.Int64))
    own = device & (pl.col("bucket") == _LOADING)
    rows = found.tables["ledger"].filter(own).sort("ns", "detail", descending=[True, False])
    whole = int(rows.get_column("ns").sum())
    if not whole:
        return ""
    told = [
        f"{sections.unversioned(detail)} {units.time(ns)}"
        for place, (detail, ns) in enumerate(rows.select("detail", "ns").head(_PARTS).iter_rows())
        if not place or ns >= _WORTH_NAMING * whole
    ]
    return f"{units.time(whole)}: {', '.join(told)}"


def _blocks(found: Overview) -> list[Block]:
    """Time outside of the ledger: before, between and after the steady part, or what was paid once."""
    table = found.tables.get("phases")
    if found.window is None and "ledger" in found.tables and (once := _once(found)):
        return [Block("PAID ONCE", once)]
    if table is None or table.is_empty() or found.steady is None:
        return []
    whole_ns = int(table.get_column("ns").sum())
    least = _WORTH_NAMING * whole_ns
    of = {phase: table.filter(pl.col("phase") == phase) for phase in ("before", "between", "after")}
    of = {phase: rows for phase, rows in of.items() if rows.get_column("ns").sum() >= least}
    own = found.steady.each
    before = _phase(of.pop("before", table.clear()), _PARTS, own, f" of {units.time(whole_ns)} recorded")
    rest = [f"{phase} {text}" for phase, rows in of.items() if (text := _phase(rows, _PARTS_BESIDE, own))]
    blocks = [Block("START-UP" if found.starts else "BEFORE", before)] if before else []
    return [*blocks, Block("BESIDE", "; ".join(rest))] if rest else blocks


def _phase(rows: pl.DataFrame, most: int, own: str, of_all: str = "") -> str:
    """A phase with its largest parts; empty if it took no time. `own` is what the page's iterations are called."""
    ns = int(rows.get_column("ns").sum())
    if not ns:
        return ""
    named = rows.filter(pl.col("ns") >= _WORTH_NAMING * ns).head(most)
    parts = [
        (_part(part, count, own), part_ns) for part, part_ns, count in named.select("part", "ns", "count").iter_rows()
    ]
    return f"{units.time(ns)}{of_all}: {', '.join(f'{part} {units.time(part_ns)}' for part, part_ns in parts)}"


def _part(name: str, count: int, own: str) -> str:
    """A part, with its number where it is iterations: ``38 other steps``, of another loop ``38 × 'repetition 2'``."""
    first, _, each = name.partition(" ")
    if first not in ("first", "other", "odd", "cut") or not each:
        return name
    if first == "other" and each != own:
        return f"{units.count(count)} × {each if each.isalpha() else repr(each)}"
    if not each.isalpha():
        return f"{units.count(count)} {first} {each!r}"
    return f"{units.count(count)} {first} {units.plural_of(each) if count > 1 else each}"


def _more(found: Overview) -> str:
    """Commands to type next, one a line."""
    shown = [command("kanalyze", "summarize", found.meta.path, *options(found.scope), "--full")]
    shown += [command("kanalyze", "explain", one.rule) for one in found.findings[:1]]
    return "\n".join(shown)
