"""Builds the first page of a timeline report (a typical iteration, what to do first), and that of a finding in it.

Beside it the sections that it has in common with the page of all tables.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import polars as pl

from kanalyze import machinery, outlets, schema, tools, units
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.page.overview_page import Summary
from kanalyze.renderers import page
from kanalyze.renderers.page import Column, Page, Section, kernel_names, numbers, section, without_folders, words
from kanalyze.window import WORDS, PerIteration, Window, located, of_iteration

with machinery.late():  # most pages are of one report
    from kanalyze.renderers.page import counters


#: Tables by name, and what makes a section of them with so many rows at most.
Tables: TypeAlias = Mapping[str, pl.DataFrame]
Make: TypeAlias = "Callable[[Tables, int], Section]"

#: Rows of the page's tables where it has few lines; room for the remark on the times of findings at 80 columns.
_FEW_ROWS, _REMARK = 2, 62

#: What an iteration is called in titles, where its own name is too long.
_ITERATION: Final = "iteration"

#: The longest name of a range in the detail of a bucket; and of a line of the program.
_LONGEST_IN, _LONGEST = 28, 32

#: Ranges are told where the host was in them for this part of an iteration; rows with less than this share are folded.
_LEAST_INSIDE, _LEAST_SHARE = 0.1, 0.005

#: Self-explanatory bucket names, for buckets without a more specific detail.
_NO_DETAIL: Final = {
    "host": "program code outside CUDA",
    "unknown": "no launch tells which thread",
    "queued": "submitted, waited on the device",
}

#: The parts of a line's time by their headings.
_OF_LINE: Final = {"host": "host_ns", "GPU work": "work_ns", "launch": "launch_ns", "wait": "wait_ns"}


def overview_page(summary: Summary, top: int) -> Page:
    """Builds the first page of a report, at most `top` rows per table.

    0 is for fewer findings, -1 for no table but that of lines, -2 for none.
    """
    per, rows = _per(summary.window, 24), top if top > 0 else _FEW_ROWS
    main = pl.col("device").eq_missing(pl.lit(summary.device, dtype=pl.Int64))
    own, rest = (summary.windows.filter(these).sort("device").to_dicts() for these in (main, ~main))
    code, blocks = _code(summary, per, rows + 1), _blocks(summary)
    sections = {name: make(summary.tables, rows) for name, make in ENGINE.items() if len(summary.tables.get(name, ()))}
    engine = [one._replace(foot=summary.remarks.get(name, "")) for name, one in sections.items()][: max(top + 2, 1)]
    tables = [*engine, *[code, _kernels(summary, per, rows)][: max(top + 2, 0)]]
    if top > _FEW_ROWS or (code is None and top >= 0):  # lines tell more than ranges and operators
        tables.append(_ranges(summary, per, rows + 1) or _operators(summary, per, rows))
    inside = summary.tables.get("captured", pl.DataFrame({"place": [], "operators": []}))
    if inside.height and not inside.select(pl.coalesce("place", "operators").count()).item():
        blocks = [*blocks, page.Block("INSIDE GRAPHS", nameless(inside))]
    elif inside.height and top >= 0:
        times = _each(per, time="exclusive_ns", share="share", count="count")
        tables.append(captured_section(inside, times, rows + 1))
    actions = to_do(summary.findings)[: 3 if top > 0 else 2]
    findings = [(one, None) for one in summary.findings[:top]] if top > page.ROWS else actions
    points = [point(one, per, beside) for one, beside in findings]
    asides = []
    if (sample := summary.remarks.get("findings")) and summary.findings:
        asides.append(page.Block("SAMPLE", f"what to do is told of {sample}, which take as long as all do"))
    busy = ", ".join(f"GPU {row['device']} {units.percent(row['busy_ns'] / max(row['window_ns'], 1))}" for row in rest)
    asides += [page.Block("OTHER GPUS", f"busy {busy}; --device N shows one")] if busy else []
    more = [outlets.command("kanalyze", "summarize", *page.paths(summary), *page.options(summary.scope), "--full")]
    return Page(
        heading=_heading(summary),
        answer=summary.answer,
        ledgers=[ledger_of(summary, per, row, min(page.ROWS, max(top, 0) + 4)) for row in own],
        sections=[table for table in tables if table is not None],
        more="\n".join([*more, *(outlets.command("kanalyze", "explain", one.rule) for one in summary.findings[:1])]),
        points=points,
        points_remark=points_remark(per, points),
        blocks=[*asides, *blocks],
    )


def _per(window: Window | None, longest: int | None = None) -> PerIteration:
    """How times and counts of the page are told: per iteration, where it is of iterations."""
    if window is None or not window.count:
        return PerIteration(None, "")
    each = window.each or _ITERATION
    return PerIteration(window.count, each if longest is None or len(each) <= longest else _ITERATION)


def _each(per: PerIteration, **columns: str) -> list[Column]:
    """Columns of times, counts and shares, per iteration."""
    says = {"ns": per.mean_time, "": per.mean}
    return [one._replace(say=says.get(schema.unit_of(str(one.value)))) for one in numbers(**columns)]


def _heading(summary: Summary) -> list[str]:
    models = summary.windows.group_by("name", maintain_order=True).len()
    parts = [f"{count} × {name or 'GPU'}" if count > 1 else name or "GPU" for name, count in models.iter_rows()]
    parts += [units.plural(summary.process_count, "process")] if summary.process_count > 1 else []
    parts += counters.joined_with(summary) if summary.others else []
    parts += page.rank_of(summary.meta)
    if summary.steady is not None:
        number = summary.steady.rows.filter(pl.col("name") == summary.steady.each).height
        parts.append(f"{units.count(number)} × {summary.steady.each}")
    elif summary.scope.window is not None:
        parts.append(f"window {summary.scope.window}")
    parts += [page.health_line(summary.tables["health"])] if "health" in summary.tables else []
    return [summary.meta.path.name, summary.meta.recorded_by, *parts, *([summary.named] if summary.named else [])]


def ledger_of(summary: Summary, per: PerIteration, window: dict[str, Any], most: int | None = None) -> page.Ledger:
    """The ledger of a device; or at most so many buckets, the others as one, of a whole recording without loading."""
    rows = summary.tables["ledger"].filter(pl.col("device") == window["device"])
    apart = most is not None and summary.window is None
    if apart:
        rows = rows.filter(pl.col("bucket") != "loading")
    iterations, length = per.iterations or 1, int(rows.get_column("ns").sum())
    shown_ns = round(length / iterations)
    table, spread = summary.tables.get("spread"), {}
    if iterations > 1 and table is not None:
        spread = {name: units.least_to_most(least, most, shown_ns) for name, least, most in table.iter_rows()}
    if per.iterations:
        some = ""
        if summary.steady is not None and per.iterations < summary.steady.usual.height:
            some = " in a row" if summary.steady.adjoining else " with what lies between"
        span = f"one {per.each}" if iterations == 1 else f"average of {per.all}{some}"
        span += "; least to most" if spread else ""
    else:
        span = " to ".join(units.instant(window[side], summary.zero_ns) for side in ("start_ns", "end_ns"))
        span += ", loading apart" if apart and _once(summary) else ""

    sums = rows.group_by("bucket").agg(pl.col("ns").sum()).sort("ns", "bucket", descending=[True, False])
    parts = sums.rows()
    kept = len(parts) if most is None else _kept(parts, length, most)
    rest = parts[kept:]  # as one bucket, which is told by their names
    names = ", ".join(bucket for bucket, _ in rest)
    shown = [*parts[:kept], *([("rest", sum(ns for _, ns in rest))] if rest else [])]
    each_ns = units.apportioned([ns for _, ns in shown], shown_ns)
    shares = []
    for (bucket, ns), text in zip(shown, units.adding_up(each_ns, shown_ns), strict=True):
        of_bucket = rows.filter(bucket=bucket).select("detail", "ns").rows()
        detail = names if bucket == "rest" else _detail(summary, per, bucket, window["device"], of_bucket)
        plain, share = tools.worded(_NO_DETAIL.get(bucket, ""), summary.interface), units.percent(ns / max(length, 1))
        shares.append(page.Share(bucket, ns, text, share, detail, plain, spread.get(bucket, "")))
    return page.Ledger(
        f"GPU {window['device']}, {span}",
        length,
        shares,
        units.adding_up([shown_ns], shown_ns)[0],
        [],
        f"WHERE A {per.each.upper()} GOES" if per.each == "step" else "WHERE THE TIME WENT",
    )


def _kept(parts: Sequence[tuple[str, int]], length: int, most: int) -> int:
    """How many buckets, the largest first, are told one by one: all, where the others would be but one."""
    large = sum(ns >= _LEAST_SHARE * length for _, ns in parts)
    return len(parts) if len(parts) <= min(most, large + 1) else min(most - 1, large)


def _detail(summary: Summary, per: PerIteration, bucket: str, device: int, parts: list[tuple[str | None, int]]) -> str:
    """Largest parts of a bucket: waits and transfers, kernel families, ranges, or what held the device up."""
    ns = sum(part for _, part in parts)
    worth = [(name, part) for name, part in parts if name is not None and part >= page.WORTH_NAMING * max(ns, 1)]
    if bucket == "communication" and worth:  # by whom it waited for and what it transferred, where the report tells
        # waiting first, where there is no room for all: the rest of it is what is transferred
        largest = sorted(worth, key=lambda part: -part[1])[:3]
        return page.shares_of(sorted(largest, key=lambda part: part[0] == "transfer"), ns)
    if bucket == "kernel":
        of_device = summary.device == device or summary.windows.height == 1  # not of all together
        return families(summary.tables["hot_kernels"]) if of_device and "hot_kernels" in summary.tables else ""
    named = _by_range(summary, bucket, device) or _by_culprit(summary, bucket, device, parts)
    largest = [(name, part) for name, part in named if part >= page.WORTH_NAMING * ns][:3]
    return ", ".join(f"{page.unversioned(name)} {per.mean_time(part)}" for name, part in largest)


def families(table: pl.DataFrame) -> str:
    """The kernel families with most time, and whole graphs, as shares of kernel time without communication."""
    named = pl.col("family").fill_null("CUDA graphs")  # of which the whole alone was recorded
    sums = table.group_by(named).agg(pl.col("exclusive_ns").sum()).filter(pl.col("family") != "communication")
    whole = int(sums.get_column("exclusive_ns").sum())
    largest = sums.sort("exclusive_ns", "family", descending=True).head(3)
    return page.shares_of(largest.iter_rows(), whole)


def _by_range(summary: Summary, bucket: str, device: int) -> list[tuple[str, int]]:
    """A bucket by ranges of iterations of the main device; of one mostly inside another, that and the rest are told."""

    def within(name: str) -> str:
        """A part of an iteration in the detail of a bucket, with room for its time."""
        if name.startswith("("):
            return name.strip("()")
        return f"in {outlets.cut(name, _LONGEST_IN)}"

    parts = summary.tables.get("parts")
    if parts is None or parts.is_empty() or summary.steady is None or device != summary.steady.device:
        return []
    rows = parts.select("range", f"{bucket}_ns").sort(f"{bucket}_ns", descending=True, maintain_order=True).rows()
    if rows[0][0].startswith("("):  # most of it lies in none of them
        return []
    inner = {name: rest for name, *rest in summary.tables["inner"].filter(bucket=bucket).drop("bucket").iter_rows()}
    named = []
    for name, whole_ns in rows:
        innermost, ns = inner.get(name, (name, whole_ns))
        named += [(within(innermost), ns), (f"elsewhere {within(name)}", whole_ns - ns)]
    return sorted((part for part in named if part[1]), key=lambda part: -part[1])


def _by_culprit(
    summary: Summary, bucket: str, device: int, parts: list[tuple[str | None, int]]
) -> list[tuple[str, int]]:
    """A bucket by what held the device up: host time by culprit, others by the ledger's own details."""
    sums: dict[str | None, int] = {}
    if bucket == "host" and "culprits" in summary.tables:
        each = summary.steady.each if summary.steady else ""
        reasons = summary.tables["culprits"].filter(bucket=bucket, device=device)
        for culprit, where, ns in reasons.select("culprit", "range", "ns").iter_rows():
            name = culprit and of_iteration(located(page.without_function(culprit), where), each)
            sums[name] = sums.get(name, 0) + ns
    named = sorted(sums.items() or parts, key=lambda part: (-part[1], part[0] or ""))
    return [(page.UNNAMED.get(name, name), ns) for name, ns in named if name is not None]


def _code(summary: Summary, per: PerIteration, top: int) -> Section | None:
    """The lines of the program with most of the time, and all else as one row, so that they sum to it."""
    table = summary.tables.get("code")
    if table is None or summary.device is None:
        return None
    of_device = table.filter(pl.col("device") == summary.device).with_columns(ns=pl.sum_horizontal(*_OF_LINE.values()))
    of_device, inside = by_either(of_device, "ns", "captured_ns")
    lines = of_device.drop_nulls("place").with_columns(pl.col("text").fill_null(pl.col("function")).cast(pl.String))
    whole_ns = max(of_device.get_column("ns").sum(), 1)
    worth = lines.select(pl.max_horizontal("ns", "captured_ns") / whole_ns).to_series()
    shown = lines.head(min(_worth_a_row(worth), top, page.ROWS - 1))
    if shown.is_empty():
        return None
    headings = _OF_LINE | ({"in graphs": "captured_ns"} if inside else {})
    parts = ["ns", *headings.values()]
    left = [pl.col(part).sum() - shown.get_column(part).sum() for part in parts]
    rest = of_device.select(*left, place=pl.lit("elsewhere"), text=pl.lit(None, pl.String)).filter(pl.col("ns") > 0)
    rows = pl.concat([shown.select(*parts, "place", "text"), rest])
    sums, iterations = of_device.select(pl.col(parts).sum()).row(0, named=True), per.iterations or 1
    kept = {title: part for title, part in headings.items() if sums[part] >= _LEAST_SHARE * sums["ns"]}
    # each column in the unit of the sum of all rows, without it, and adding up
    whole_ns = round(rows.get_column("ns").sum() / iterations)
    unit = units.adding_up([whole_ns], whole_ns)[0].split()[1]
    texts = {}
    for part in parts:
        times = units.adding_up([round(ns / iterations) for ns in rows.get_column(part)], whole_ns)
        texts[part] = pl.Series([time.split()[0] for time in times])
    columns = (
        Column("time", "ns"),
        *(Column(title, part, spare=True) for title, part in kept.items()),
        # a long path is without its beginning
        Column("line", "place", lambda text: text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}", left=True),
        words("source" if of_device.get_column("text").count() else "function", "text", missing=""),
    )
    some = f"{shown.height} of {units.plural(lines.height, 'line')}; " if shown.height < lines.height else ""
    return section(
        "WHERE IN YOUR CODE",
        rows.with_columns(**texts),
        columns,
        remark=(f"{some}{unit}{f' per {per.each}' if per.each else ''}"),
        cut=True,
    )


def _worth_a_row(shares: pl.Series) -> int:
    """How many of the rows, the largest first, have a share that is worth a row; one at least, where there are some."""
    return max(shares.filter(shares >= _LEAST_SHARE).len(), min(len(shares), 1))


def _largest(  # noqa: PLR0913 - of the table, and of the section
    title: str,
    table: pl.DataFrame | None,
    columns: Sequence[Column],
    share: str,
    top: int,
    remark: str,
    *,
    named: bool = False,
) -> Section | None:
    """The section of the rows with a share that is worth a row; None without any."""
    if table is None or table.is_empty() or not top:
        return None
    rows = min(top, _worth_a_row(table.get_column(share)))
    return section(title, table, columns, rows, remark, named=named, cut=not named)


def _kernels(summary: Summary, per: PerIteration, top: int) -> Section | None:
    table = summary.tables.get("hot_kernels")
    if summary.joined is not None and table is not None and table.height and top:
        return counters.joined_kernels(summary, summary.joined, top)
    columns = (
        *_each(per, time="exclusive_ns", of_GPU="busy_share", count="count"),
        *numbers(average="avg_ns spare"),
        words("kernel", "name"),
    )
    remark = f"{f'per {per.each}; ' if per.each else ''}share of the GPU's busy time"
    return _largest("KERNELS", table, columns, "busy_share", top, remark, named=True)


def _ranges(summary: Summary, per: PerIteration, top: int) -> Section | None:
    """The parts of an iteration by the program's ranges, which add up to it."""
    parts = summary.tables.get("parts")
    if parts is None or parts.height < 2:  # noqa: PLR2004 - a single one tells nothing
        return None
    ns = pl.col("ns")
    parts = parts.with_columns(share=ns / ns.sum().clip(1), busy_share=pl.col("busy_ns") / ns.clip(1))
    if parts.filter(pl.col("range") != "(between them)").get_column("share").sum() < _LEAST_INSIDE:
        return None
    columns = (
        *_each(per, time="ns", share="share", GPU_busy="busy_share"),
        *_each(per, launch="launch_ns spare", host="host_ns spare", sync="sync_ns spare"),
        Column("range", "range", left=True),
    )
    return _largest("RANGES", parts, columns, "share", top, f"per {per.each}; what the host was in")


def _operators(summary: Summary, per: PerIteration, top: int) -> Section | None:
    table = summary.tables.get("ops")
    if table is None or not table.get_column("exclusive_device_ns").sum():
        return None
    table, inside = by_either(table, "exclusive_device_ns", "captured_device_ns")
    columns = (
        *_each(per, device="exclusive_device_ns", share="exclusive_share"),
        *(_each(per, in_graphs="captured_device_ns") if inside else []),
        *_each(per, own_host="self_cpu_ns", count="count"),
        words("operator", "name", missing="(no operator)"),
    )
    whole = pl.col("exclusive_device_ns").sum()
    table = table.with_columns(worth=pl.max_horizontal("exclusive_device_ns", "captured_device_ns") / whole)
    remark = f"per {per.each}" if per.each else "share of busy time"
    return _largest("OPERATORS", table, columns, "worth", top, remark)


def to_do(findings: Sequence[Finding]) -> list[tuple[Finding, Finding | None]]:
    """The first finding of each action, what gains most before others, and one on other time with the same action."""
    by_action: dict[str, list[Finding]] = {}
    for one in findings:
        by_action.setdefault(one.brief.action, []).append(one)
    pairs = []
    for first, *others in by_action.values():
        # host time is none of the time that another one is about
        beside = (one for one in others if (one.rule == "host-computes") != (first.rule == "host-computes"))
        pairs.append((first, next(beside, None)))
    return pairs


def point(finding: Finding, per: PerIteration, beside: Finding | None = None) -> page.Point:
    """A finding as a page has it, with one `beside` it, of the same action."""
    brief = finding.brief
    where = brief.line if brief.headline.endswith(f" in {brief.where}") else brief.place
    replayed_ns = beside.replayed_ns if beside is not None and finding.replayed_ns is None else finding.replayed_ns
    return page.Point(
        f"{'≤ ' if finding.at_most else ''}{per.mean_time(finding.at_stake_ns)}",
        brief,
        f"{brief.headline}{f', in {where}' if where else ''}",
        brief.action,
        "" if replayed_ns is None else per.mean_time(replayed_ns),
        None if beside is None else point(beside, per),
    )


def points_remark(per: PerIteration, points: Sequence[page.Point]) -> str:
    """Remark on the times of findings, as long as there is room for at 80 columns."""
    takes = "GPU time that it takes"
    remarks = [f"GPU time {per.of} that it takes", f"GPU time {per.of}"] if per.iterations else []
    saved = "; → saved in all, by replay" if any(one.saved for one in points) else ""
    return next((text for one in remarks if len(text := f"{one}{saved}") <= _REMARK), f"{takes}{saved}")


def _once(summary: Summary) -> str:
    """Contexts and loading of the main device, the largest first; empty without any."""
    main = pl.col("device").eq_missing(pl.lit(summary.device, dtype=pl.Int64))
    rows = summary.tables["ledger"].filter(main, bucket="loading").sort("ns", "detail", descending=[True, False])
    whole = int(rows.get_column("ns").sum())
    least = min(page.WORTH_NAMING * whole, rows.get_column("ns").max() or 0)
    worth = rows.head(5).filter(pl.col("ns") >= least).select("detail", "ns").iter_rows()
    named = ", ".join(f"{page.unversioned(detail)} {units.time(ns)}" for detail, ns in worth)
    return f"{units.time(whole)}: {named}" if whole else ""


def _blocks(summary: Summary) -> list[page.Block]:
    """Time outside of the ledger: before, between and after the steady part, or what was paid once."""
    table = summary.tables.get("phases")
    if summary.window is None and "ledger" in summary.tables and (once := _once(summary)):
        return [page.Block("PAID ONCE", once)]
    if table is None or table.is_empty() or summary.steady is None:
        return []
    whole_ns = int(table.get_column("ns").sum())
    texts = {}
    for phase, most in {"before": 5, "between": 2, "after": 2}.items():
        rows = table.filter(pl.col("phase") == phase)
        ns = int(rows.get_column("ns").sum())
        if ns and ns >= page.WORTH_NAMING * whole_ns:
            of_all = f" of {units.time(whole_ns)} recorded" if phase == "before" else ""
            worth = rows.filter(pl.col("ns") >= page.WORTH_NAMING * ns).head(most).select("part", "count", "ns")
            parts = [f"{_part(part, count, summary.steady.each)} {units.time(ns)}" for part, count, ns in worth.rows()]
            texts[phase] = f"{units.time(ns)}{of_all}: {', '.join(parts)}"
    before = texts.pop("before", "")
    rest = "; ".join(f"{phase} {text}" for phase, text in texts.items())
    named = {"START-UP" if summary.starts else "BEFORE": before, "BESIDE": rest}
    return [page.Block(title, text) for title, text in named.items() if text]


def _part(name: str, count: int, each: str) -> str:
    """A part, counted where it is iterations, such as those called `each`: ``38 other steps``."""
    first, _, other = name.partition(" ")
    if first not in ("first", "other", "odd", "cut") or not other:
        return name
    if first == "other" and other != each:
        return f"{units.count(count)} × {other if other.isalpha() or other in WORDS else repr(other)}"
    if not other.isalpha() and other not in WORDS:
        return f"{units.count(count)} {first} {other!r}"
    if count > 1 and other not in WORDS:  # a name of the program's has no plural
        return f"{units.count(count)} × {first} {other}"
    return f"{units.count(count)} {first} {units.plural_of(other) if count > 1 else other}"


def evidence_page(summary: Summary, top: int) -> Page:
    """Builds the page of a finding: what it says, where, what its remedy gains, and what its time is made of."""
    (finding,), per = summary.findings, _per(summary.window)
    each, time = f"; per {per.each}" if per.each else "", _each(per, time="ns")
    launched = pl.col("reason").is_in(["launch", "queued"])  # culprits are kernels, or what was before them
    kernels = summary.tables["waits"].head(top).filter(launched).get_column("culprit").drop_nulls().to_list()
    short = page.UNNAMED | dict(zip(kernels, kernel_names.on_phrases(kernels, 48), strict=True))
    culprit = words("culprit", "culprit", lambda name: short.get(name, name), missing="")
    waits = (*time, *_each(per, times="count"), Column("bucket", "reason", left=True), culprit)
    lines = (*time, Column("line", "place", left=True, missing="elsewhere"), words("source", "text", missing=""))
    made_of = {
        "lines": (lines, "of its time"),
        "kernels": ((*time, *_each(per, count="count"), words("kernel", "name")), "that run in its time"),
        "waits": (waits, "idle time in it, by what held the GPU up"),
    }
    sections = []
    for name, (columns, remark) in made_of.items():
        named, rows = name == "kernels", summary.tables[name]
        sections.append(section(name.upper(), rows, columns, top, f"{remark}{each}", named=named, cut=not named))
    # the finding's sentence, its place, what it takes and what its remedy gains
    text = finding.text.format(*map(kernel_names.short_forms(finding.names, 60).__getitem__, finding.names))
    where = f" It lies in {finding.place.format()}." if finding.place else ""
    took = f" It takes {per.mean_time(finding.at_stake_ns)} of the GPU's time{f' {per.of}' if per.iterations else ''}"
    gain, (usual, low, high) = "", finding.replayed
    if usual is not None:
        between = "" if low == high else f" ({' to '.join(per.mean_time(ns or 0) for ns in (low, high))})"
        gain = f"; by a replay the remedy saves {per.mean_time(usual)}{between}"
    heading = [finding.rule, summary.meta.path.name, *([f"GPU {finding.device}"] if finding.device else [])]
    heading += [f"window {summary.window}"] if summary.window and not per.iterations else []
    more = [outlets.command("kanalyze", "explain", finding.rule)]
    corrected = ["--without-profiler"] * (summary.meta.slower is not None)
    table = [*finding.table.split(), summary.meta.path, *page.options(summary.scope), *corrected]
    more.append(outlets.command("kanalyze", "show", *table))
    return Page(
        heading=[*heading, *([per.all] if per.iterations else [])],
        answer=f"{text}{where}{took}{gain}. {finding.remedy}",
        sections=[one for one in sections if one.grid.rows],
        more="\n".join(more),
    )


def by_either(table: pl.DataFrame, own: str, inside: str) -> tuple[pl.DataFrame, bool]:
    """A table sorted by `own` time, or that `inside` of CUDA graphs where it is more; and whether any row has such."""
    if not table.get_column(inside).sum():
        return table, False
    return table.sort(pl.max_horizontal(own, inside), descending=True, maintain_order=True), True


def captured_section(table: pl.DataFrame, times: Sequence[Column], top: int) -> Section:
    """Section of what ran inside CUDA graphs by the places that captured it, or kernels; the rest is told below."""
    by_name = table.with_columns(place=pl.coalesce("place", pl.format("by name: {}", "operators")))
    named = by_name.drop_nulls("place")
    operators = [words("operators", "operators", missing="")._replace(wide=True)]
    made = [words("made", "how")] * (named.get_column("how").n_unique() > 1)
    columns = (*times, *operators * (named.get_column("operators").count() > 0), *made, words("captured in", "place"))
    remark = "times of replays, names of captures"
    return section("INSIDE CUDA GRAPHS", named, columns, top, remark, nameless(table), cut=True)


#: Why operations of CUDA graphs have no names, or names that are not sure, by how they were captured.
_NAMELESS: Final = {
    "not recorded": "its capture is not recorded",
    "several fit": "several captures fit it, or it and other graphs fit one",
    "by order alone": "order alone tells its capture, which may be another",
    "": "no range or operator was open at its capture",
}


def nameless(table: pl.DataFrame) -> str:
    """What is said of the time of CUDA graphs without sure names; empty where all of it has some."""
    how = pl.col("how").cast(pl.String)
    rest = pl.all_horizontal(pl.col("place", "operators").is_null()) | how.is_in(["several fit", "by order alone"])
    rows = table.filter(rest).group_by(how).agg(pl.col("share").sum())
    sentences = [
        f"{units.percent(share)} of the graphs' time: {_NAMELESS.get(how, _NAMELESS[''])}"
        for how, share in rows.sort("how").iter_rows()
    ]
    return "; ".join(sentences)


def section_of(
    name: str,
    title: str,
    *columns: Column | Callable[[pl.DataFrame], Sequence[Column]],
    rows: Callable[[pl.DataFrame], pl.DataFrame] = pl.DataFrame.clone,
    most: int | None = 1 << 31,
    **how: Any,  # noqa: ANN401 - as a section has
) -> Make:
    """What makes the section of a table: of these `rows` at most so many, or all for None; columns may depend on it."""

    def make(tables: Tables, top: int) -> Section:
        table = rows(tables[name])
        every = [one for some in columns for one in ([some] if isinstance(some, Column) else some(table))]
        return section(title, table, every, most and min(top, most), **how)

    return make


def _gpu(table: pl.DataFrame) -> list[Column]:
    """The column of the GPU, where there are several."""
    return [Column("GPU", "device")] * (table.get_column("device").n_unique() > 1)


#: The sections of a serving engine in page order, by the table that each needs: kinds of steps side by side, what the
#: GPU waited for or ran between steps, and sizes of graphs that steps replayed, with steps of these kinds without one.
ENGINE: Final[dict[str, Make]] = {
    "engine_steps": section_of(
        "engine_steps",
        "ENGINE STEPS",
        _gpu,
        *numbers(steps="count"),
        Column("requests", "mean_requests", "{:.3g}".format),
        Column("tokens", lambda row: "" if row["tokens"] is None else units.mean(row["tokens"], row["count"])),
        *numbers(a_step="per_step_ns"),
        Column("a token", "per_token_ns"),
        Column(
            "GPU busy",
            lambda row: units.percent((row["busy_ns"] + row["gap_busy_ns"]) / max(row["ns"] - row["unknown_ns"], 1)),
        ),
        Column("gap", lambda row: units.time(row["gap_ns"] / row["count"])),
        Column("in graphs", lambda row: units.percent(row["replayed"] / row["count"]), spare=True),
        Column("kind", "kind", left=True),
        rows=lambda table: table.filter(pl.col("count") > 0),
        most=None,
        remark="mean; time with the gap before",
    ),
    "engine_gaps": section_of(
        "engine_gaps",
        "BETWEEN STEPS",
        _gpu,
        *numbers(time="ns", share="share", gaps="gaps"),
        Column("before a", "kind", left=True),
        Column("bucket", "bucket", left=True),
        Column("culprit", "culprit", without_folders, left=True),
        remark="what the GPU waited for or ran",
        cut=True,
    ),
    "engine_graphs": section_of(
        "engine_graphs",
        "SIZES OF GRAPHS",
        _gpu,
        Column("size", lambda row: str(row["padded"] or ("?" if row["mode"] == "graph" else ""))),
        *numbers(steps="count"),
        Column("requests", lambda row: f"{row['least_requests']} to {row['most_requests']}"),
        Column("mean", "mean_requests", "{:.3g}".format, spare=True),
        *numbers(median="median_ns", padding="lost_ns"),
        Column("kind", lambda row: f"{row['kind']}{'' if row['mode'] == 'graph' else ', ' + row['mode']}", left=True),
        remark="padding: time that it took, by the size below",
    ),
}

#: The titles of these sections.
TITLES: Final = ("ENGINE STEPS", "BETWEEN STEPS", "SIZES OF GRAPHS")
