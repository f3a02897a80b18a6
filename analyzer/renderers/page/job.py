"""Builds the page of a job: its step, who waits for whom and why, what collectives reach; draws one of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import outlets, units
from kanalyze.analyses.ranks._job_findings import job_findings, late_ranks, notable_causes
from kanalyze.analyses.ranks.tables import common_steps
from kanalyze.outlets import command
from kanalyze.renderers.page.comparison import signed
from kanalyze.renderers.page.time import Block, Page
from kanalyze.renderers.text.grid import Column, Section, of, section, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.analyses.ranks._job import Job
    from kanalyze.analyses.ranks._job_findings import Late
    from kanalyze.renderers.text.grid import Row

#: Width of a rank's bar, and what its parts look like.
_BAR: Final = 20
_PARTS: Final = {"kernel": "█", "waiting": "░", "transfer": "▓", "rest": "·"}

#: Ranks that are shown one by one; of more, the extremes and quartiles by waiting.
_FEW: Final = 8
_QUARTILES: Final = {0.0: "least waiting", 0.25: "a quarter", 0.5: "half", 0.75: "three quarters", 1.0: "most waiting"}


def job_page(job: Job, top: int) -> Page:
    """Builds the page of a job, at most `top` rows per table."""
    sections = [make(job, top) for make in (_ranks, _late, _collectives, _steps, _clocks)]
    return Page(
        heading=_heading(job),
        health=_health(job),
        answer=answer(job),
        sections=[one for one in sections if one is not None and one.grid.rows],
        cannot_tell=[f"{check}: {count:,}; {effect}" for check, count, effect in job.doubts],
        more=_more(job),
        blocks=_findings(job, top),
    )


def answer(job: Job) -> str:
    """The job in two sentences: its step, what of it is waiting, for whom and why."""
    ranks, late = job.table("ranks"), late_ranks(job)
    rows = common_steps(job.table("rank_steps"))
    if ranks.height == 1:
        return "Only one rank was read: nobody is there to wait for. Give the reports of all ranks."
    if rows.is_empty():
        return _of_collectives(job)
    slowest = rows.group_by("step").agg(pl.col("ns").max()).get_column("ns")
    whole, waiting = (int(ranks.get_column(name).sum()) for name in ("ns", "wait_ns"))
    unsteady = "" if (rows.get_column("kind") == "steady").all() else ", not all of them steady"
    out = job.table("rank_steps").get_column("step").n_unique() - len(slowest)
    left = f"; {units.count(out)} left out" if out else ""
    step = units.time(int(slowest.sum()) / len(slowest))
    first = (
        f"A step takes {step} on the slowest of {units.plural(ranks.height, 'rank')} "
        f"({units.plural(len(slowest), 'step')}{unsteady}{left}), "
        f"and a rank waits for others in {units.percent(waiting / max(whole, 1))} of it"
    )
    others = max(ranks.height - 1, 1)
    named = [one for one in late if one.named]
    if not named:
        return f"{first}: none is late for long."
    one = named[0]
    waits = units.time(one.cost_ns / one.steps / others)  # the mean in each of these steps
    steps = f"step {one.first}" if one.steps == 1 else f"steps {one.first} to {one.last}"
    told = f"Rank {one.rank} is {units.time(one.late_ns)} late in {steps}: {_causes(one)}"
    return f"{first}. {told}; another rank waits {waits} for it."


def _causes(one: Late) -> str:
    of_first = one.causes[0][0] if one.causes and one.detail else None
    named = [
        f"{bucket} {signed(ns)}" + (f" in {one.detail}" if bucket == of_first else "")
        for bucket, ns in notable_causes(one)
    ]
    return ", ".join(named) or "many small parts"


def _of_collectives(job: Job) -> str:
    """Lines for a job in which nothing repeats."""
    if job.matches.is_empty():
        return "No collective of one rank could be found on another one."
    waits, whole = (int(job.matches.get_column(name).sum()) for name in ("wait_ns", "rank_ns"))
    return (
        f"{units.plural(job.ranks.height, 'rank')} run {units.plural(job.matches.height, 'collective')}; "
        f"{units.percent(waits / max(whole, 1))} of their time is waiting for the last rank. No steps were found."
    )


def _heading(job: Job) -> list[str]:
    read, size = job.ranks.height, job.world_size
    hosts = job.ranks.get_column("host").drop_nulls().n_unique()
    tools = job.ranks.get_column("tool").unique().sort().to_list()
    gpus = job.ranks.get_column("gpu").drop_nulls().unique().sort().to_list()
    number = units.plural(read, "rank") if read == size else f"{read:,} of {units.plural(size, 'rank')}"
    return ["kanalyze ranks", number, *([units.plural(hosts, "host")] if hosts else []), *tools, *gpus]


def _health(job: Job) -> str:
    missing = job.missing
    if not missing:
        return ""
    named = ", ".join(map(str, missing[:_FEW])) + (", …" if len(missing) > _FEW else "")
    return f"missing: {'rank' if len(missing) == 1 else 'ranks'} {named}"


def _ranks(job: Job, top: int) -> Section | None:
    """The ledger of a step of each rank, as a bar; of many ranks the quartiles by waiting."""
    table = job.table("ranks").filter(pl.col("ns") > 0)
    if table.is_empty():
        return None
    transfer = pl.col("transfer_ns") + pl.col("unmatched_ns")
    shown = _chosen(table, max(top, _FEW)).with_columns(kernel="kernel_ns", waiting="wait_ns", transfer=transfer)
    shown = shown.with_columns(rest=pl.col("ns") - pl.sum_horizontal("kernel", "waiting", "transfer"))
    longest = int(shown.select((pl.col("ns") / pl.col("steps")).max()).item())

    def mean(name: str) -> Callable[[Row], str]:
        return lambda row: units.time(row[name] / max(row["steps"], 1))

    columns = (
        Column("rank", "called"),
        Column("step", mean("ns")),
        Column("", lambda row: _bar({name: row[name] for name in _PARTS}, longest * max(row["steps"], 1)), left=True),
        Column("kernels", mean("kernel")),
        Column("waiting", mean("waiting")),
        Column("transfer", mean("transfer"), spare=True),
        Column("rest", mean("rest"), spare=True),
        Column("hidden", mean("hidden_ns"), wide=True),
    )
    legend = "█ kernels ░ waiting ▓ transfer · rest; hidden: communication beside kernels"
    return section("RANKS, A STEP OF EACH", shown, columns, remark=of(shown.height, table.height), foot=legend)


def _chosen(table: pl.DataFrame, most: int) -> pl.DataFrame:
    """The rows that are shown, with what they are called."""
    if table.height <= most:
        return table.with_columns(called=pl.col("rank").cast(pl.String))
    order = table.sort(pl.col("wait_ns") / pl.col("ns"), "rank")
    at = {round(part * (table.height - 1)): name for part, name in _QUARTILES.items()}
    return order[list(at)].with_columns(called=pl.format("{} ({})", "rank", pl.Series([*at.values()])))


def _bar(parts: dict[str, int], whole: int) -> str:
    """A bar of the parts; each ends where their sum so far does."""
    text, total = "", 0
    for name, ns in parts.items():
        total += ns
        text += _PARTS[name] * (round(total / max(whole, 1) * _BAR) - len(text))
    return text


def _late(job: Job, top: int) -> Section:
    found = late_ranks(job)
    columns = (
        Column("rank", lambda one: str(one.rank)),
        Column("steps", lambda one: str(one.first) if one.steps == 1 else f"{one.first} to {one.last}"),
        Column("late by", lambda one: units.time(one.late_ns)),
        Column("others wait", lambda one: units.time(one.cost_ns / one.steps)),
        Column("cause", _causes, left=True),
    )
    return section("LATE RANKS", found, columns, top, "per step", cut=True)


def _findings(job: Job, top: int) -> list[Block]:
    """Findings, with the part of a step that each takes."""
    found = job_findings(job)[:top]
    told = [Block(units.time(one.at_stake_ns), f"{one.text} {one.action}") for one in found]
    return [Block("WHAT TO DO", "at most that much of a step is gained"), *told] if told else []


def _collectives(job: Job, top: int) -> Section:
    table = job.table("collective_summary")
    whole = table.get_column("rank_ns").sum()
    known = pl.col("wait_ns") + pl.col("transfer_ns")
    columns = (
        Column("count", "count"),
        Column("size", "bytes", missing="?"),
        Column("ranks", "size", units.count, wide=True, missing="?"),
        Column("of all", lambda row: units.percent(row["rank_ns"] / max(whole, 1))),
        Column("waiting", "waiting_share", missing="?"),
        Column("bus", "busbw_bytes_per_s", missing="?"),
        Column("of best", "best_share", spare=True, missing="?"),
        Column("collective", lambda row: row["kind"] + (f" in {row['group']}" if row["group"] else ""), left=True),
    )
    rows = table.with_columns(waiting_share=pl.when(known > 0).then(pl.col("wait_ns") / known))
    return section("COLLECTIVES", rows, columns, top, cut=True)


def _steps(job: Job, top: int) -> Section | None:
    """How steps vary, and how unevenly ranks are loaded."""
    rows = common_steps(job.table("rank_steps"))
    if rows.is_empty() or not top:
        return None
    by_step = rows.group_by("step").agg(
        pl.col("ns").max(), most=pl.col("compute_ns").max(), mean=pl.col("compute_ns").mean()
    )
    ns, uneven = pl.col("ns"), (pl.col("most") / pl.col("mean") - 1).fill_nan(0)
    sums = by_step.select(
        least_ns=ns.min(), median_ns=ns.median(), most_ns=ns.max(), mean_share=uneven.mean(), most_share=uneven.max()
    )
    columns = (
        Column("shortest", "least_ns"),
        Column("median", "median_ns"),
        Column("longest", "most_ns"),
        Column("imbalance", "mean_share"),
        Column("at most", "most_share"),
    )
    remark = units.plural(by_step.height, "step")
    foot = "imbalance: computing of the busiest rank against the mean of all"
    return section("STEPS, THE SLOWEST RANK OF EACH", sums, columns, remark=remark, foot=foot)


def _clocks(job: Job, top: int) -> Section:
    """The offsets of clocks, the widest of each, where there are several."""
    table = job.table("clocks").drop_nulls("offset_ns")
    others = table.filter((pl.col("low_ns") != 0) | (pl.col("high_ns") != 0))
    sums = others.group_by("rank", maintain_order=True).agg(
        pl.col("host").first(), pl.col("offset_ns").median(), pl.col("low_ns").min(), pl.col("high_ns").max()
    )
    columns = (
        Column("rank", "rank"),
        Column("offset", "offset_ns", signed),
        Column("at least, at most", lambda row: f"{signed(row['low_ns'])} to {signed(row['high_ns'])}"),
        words("host", "host", missing="?"),
    )
    return section("CLOCKS", sums, columns, top, "against the first rank", cut=True)


def _more(job: Job) -> str:
    lines = [["show", name, *job.paths] for name in ("collectives", "rank_steps")]
    lines += [["explain", one.finding] for one in job_findings(job)[:1]]
    return "\n".join(command("kanalyze", *words) for words in lines)


#: The least width of the bars of a collective.
_LEAST: Final = 20


def timeline(rows: pl.DataFrame, width: int) -> str:
    """The rows of one collective of the table `collectives`, each with a bar on a common scale.

    Args:
        rows: One row per rank.
        width: Columns of the terminal.

    Returns:
        Lines of text: the collective, the scale, a line per rank by arrival, and who came last.
    """
    first = rows.row(0, named=True)
    order = rows.sort("start_ns", "rank")
    low = int(order.item(0, "start_ns"))
    whole = max(int((order.get_column("start_ns") + order.get_column("dur_ns")).max()) - low, 1)  # type: ignore[arg-type]
    labels = [
        (f"rank {row['rank']}", f"+{units.time(row['start_ns'] - low)}", units.time(row["wait_ns"] or 0), row)
        for row in order.iter_rows(named=True)
    ]
    widths = [max(len(label[at]) for label in labels) for at in range(3)]
    room = max(_LEAST, width - sum(widths) - 8)
    lines = [_title(first), f"{'':{sum(widths) + 8}}{'0':<{room - len(units.time(whole))}}{units.time(whole)}"]
    for rank, late, wait, row in labels:
        begin = row["start_ns"] - low
        cells = [round(one / whole * room) for one in (begin, begin + (row["wait_ns"] or 0), begin + row["dur_ns"])]
        moved = max(cells[2] - cells[1], int(row["dur_ns"] > (row["wait_ns"] or 0)))  # seen, however short
        begin, until = min(cells[0], room - moved), min(cells[1], room - moved)
        bar = " " * begin + _PARTS["waiting"] * (until - begin) + _PARTS["transfer"] * moved
        lines.append(f"  {rank:<{widths[0]}}  {late:>{widths[1]}}  {wait:>{widths[2]}}  {bar}".rstrip())
    late, last = first["lateness_ns"], first["last_rank"]
    came_last = f"; rank {last} came last, by {units.time(late)}" if isinstance(late, int) else ""
    lines.append(f"  came, waited; {_PARTS['waiting']} waiting {_PARTS['transfer']} transfer{came_last}")
    return "\n".join(outlets.line(line) for line in lines) + "\n"


def _title(row: dict[str, object]) -> str:
    size = row["bytes"]
    told = f" of {units.size(size)}" if isinstance(size, int) else ""
    group = f" in {row['group']}" if row["group"] else ""
    return f"collective {row['id']}: {row['kind']}{told}{group}, {row['class']}"
