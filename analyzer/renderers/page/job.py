"""Builds the page of a job: its step, who waits for whom and why, what collectives reach; draws one of these."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from kanalyze import outlets, units
from kanalyze.analyses.ranks._job import SENDS, Job
from kanalyze.analyses.ranks._job_findings import Late, job_findings, late_ranks, notable_causes
from kanalyze.analyses.ranks.tables import common_steps
from kanalyze.renderers.page import PARTS, Block, Column, Page, Section, numbers, of, section, words
from kanalyze.renderers.page.comparison import signed

#: Width of a rank's bar; ranks that are shown one by one, of more the extremes and quartiles by waiting.
_BAR, _FEW = 20, 8
_QUARTILES: Final = ("least waiting", "a quarter", "half", "three quarters", "most waiting")


def job_page(job: Job, top: int) -> Page:
    """Builds the page of a job, at most `top` rows per table."""
    read, size, missing = job.ranks.height, job.world_size, job.missing
    hosts, tools, gpus = (job.ranks.get_column(name).drop_nulls().unique().sort() for name in ("host", "tool", "gpu"))
    number = units.plural(read, "rank") if read == size else f"{read:,} of {units.plural(size, 'rank')}"
    named = ", ".join(map(str, missing[:_FEW])) + (", …" if len(missing) > _FEW else "")
    lacking = [f"missing: {'rank' if len(missing) == 1 else 'ranks'} {named}"] if missing else []
    hosts_told = [units.plural(len(hosts), "host")] if len(hosts) else []
    corrected = job.ranks.get_column("corrected").unique()
    times = [f"times {'without the profiler' if corrected.all() else 'as recorded'}"] if len(corrected) == 1 else []
    findings = job_findings(job)
    blocks = [Block(units.time(one.at_stake_ns), f"{one.text} {one.action}") for one in findings[:top]]
    more = [["show", name, *job.paths] for name in ("collectives", "rank_steps")]
    return Page(
        heading=["kanalyze ranks", number, *hosts_told, *tools, *gpus, *times, *lacking],
        answer=answer(job),
        sections=[one for one in _sections(job, top) if one.grid.rows],
        cannot_tell=[f"{check}: {count:,}; {effect}" for check, count, effect in job.doubts],
        more="\n".join(
            outlets.command("kanalyze", *line) for line in [*more, *(["explain", one.finding] for one in findings[:1])]
        ),
        blocks=[Block("WHAT TO DO", "at most that much of a step is gained"), *blocks] if blocks else [],
    )


def answer(job: Job) -> str:
    """The job in two sentences: its step, what of it is waiting, for whom and why."""
    ranks = job.table("ranks")
    rows = common_steps(job.table("rank_steps"))
    if ranks.height == 1:
        return "Only one rank was read: nobody is there to wait for. Give the reports of all ranks."
    if rows.is_empty():
        if job.matches.is_empty():
            return "No collective of one rank could be found on another one."
        waits, whole = (int(job.matches.get_column(name).sum()) for name in ("wait_ns", "rank_ns"))
        counts = f"{units.plural(job.ranks.height, 'rank')} run {units.plural(job.matches.height, 'collective')}"
        part = f"{units.percent(waits / max(whole, 1))} of their time is waiting for the last rank"
        return f"{counts}; {part}. No steps were found."
    slowest = rows.group_by("step").agg(pl.col("ns").max()).get_column("ns")
    whole, waiting = (int(ranks.get_column(name).sum()) for name in ("ns", "wait_ns"))
    unsteady = "" if (rows.get_column("kind") == "steady").all() else ", not all of them steady"
    out = job.table("rank_steps").get_column("step").n_unique() - len(slowest)
    left = f"; {units.count(out)} left out" if out else ""
    first = (
        f"A step takes {units.time(int(slowest.sum()) / len(slowest))} on the slowest of "
        f"{units.plural(ranks.height, 'rank')} ({units.plural(len(slowest), 'step')}{unsteady}{left}), "
        f"and a rank waits for others in {units.percent(waiting / max(whole, 1))} of it"
    )
    late = next((late for late in late_ranks(job) if late.named), None)
    if late is None:
        paired = any(check == SENDS for check, *_ in job.doubts)
        beside = " but for sends and receives, of which that is not told" if paired else ""
        return f"{first}: none is late for long{beside}."
    cost = units.time(late.cost_ns / late.steps / max(ranks.height - 1, 1))  # the mean in each of these steps
    steps = "step" if late.steps == 1 else "steps"
    sentence = f"Rank {late.rank} is {units.time(late.late_ns)} late in {steps} {_steps_of(late)}: {_causes(late)}"
    return f"{first}. {sentence}; another rank waits {cost} for it.{_recorder(job, late)}"


def _recorder(job: Job, one: Late) -> str:
    """What of a rank's lateness may be what its recorder costs, where times are as recorded."""
    tool, corrected = job.ranks.filter(rank=one.rank).select("tool", "corrected").row(0)
    if corrected or one.recorder_ns == 0:
        return ""
    if one.recorder_ns is None:
        return f" How much of its lateness is what {tool} costs it cannot be told."
    of = "all" if one.recorder_ns >= one.late_ns else units.time(one.recorder_ns)
    return f" Up to {of} of its lateness may be what {tool} costs it, by estimate."


def _steps_of(one: Late) -> str:
    return str(one.first) if one.steps == 1 else f"{one.first} to {one.last}"


def _causes(one: Late) -> str:
    within = {one.causes[0][0]: f" in {one.detail}"} if one.causes and one.detail else {}
    named = [f"{bucket} {signed(ns)}{within.get(bucket, '')}" for bucket, ns in notable_causes(one)]
    return ", ".join(named) or "many small parts"


def _sections(job: Job, top: int) -> Iterator[Section]:
    yield _ranks(job.table("ranks").filter(pl.col("ns") > 0), max(top, _FEW))
    columns: tuple[Column, ...] = (
        Column("rank", lambda one: str(one.rank)),
        Column("steps", _steps_of),
        Column("late by", lambda one: units.time(one.late_ns)),
        Column("others wait", lambda one: units.time(one.cost_ns / one.steps)),
        Column("cause", _causes, left=True),
    )
    yield section("LATE RANKS", late_ranks(job), columns, top, "per step", cut=True)
    summary, known = job.table("collective_summary"), pl.col("wait_ns") + pl.col("transfer_ns")
    of_all, waiting = pl.col("rank_ns") / pl.col("rank_ns").sum().clip(1), pl.col("wait_ns") / known
    collectives = summary.with_columns(all_share=of_all, wait_share=pl.when(known > 0).then(waiting))
    columns = (
        *numbers(missing="?", count="count", size="bytes", ranks="size wide", of_all="all_share", waiting="wait_share"),
        *numbers(missing="?", bus="busbw_bytes_per_s", of_best="best_share spare"),
        Column("collective", lambda row: row["kind"] + (f" in {row['group']}" if row["group"] else ""), left=True),
    )
    yield section("COLLECTIVES", collectives, columns, top, cut=True)
    rows = common_steps(job.table("rank_steps"))
    if rows.height and top:  # how steps vary, and how unevenly ranks are loaded
        ns, compute, uneven = pl.col("ns"), pl.col("compute_ns"), pl.col("uneven")
        by_step = rows.group_by("step").agg(ns.max(), uneven=(compute.max() / compute.mean() - 1).fill_nan(0))
        ends = {"least_ns": ns.min(), "median_ns": ns.median(), "most_ns": ns.max()}
        sums = by_step.select(**ends, mean_share=uneven.mean(), most_share=uneven.max())
        columns = (
            *numbers(shortest="least_ns", median="median_ns", longest="most_ns"),
            *numbers(imbalance="mean_share", at_most="most_share"),
        )
        foot = "imbalance: computing of the busiest rank against the mean of all"
        remark = units.plural(by_step.height, "step")
        yield section("STEPS, THE SLOWEST RANK OF EACH", sums, columns, remark=remark, foot=foot)
    clocks = job.table("clocks").drop_nulls("offset_ns").filter((pl.col("low_ns") != 0) | (pl.col("high_ns") != 0))
    offsets = clocks.group_by("rank", maintain_order=True).agg(
        pl.col("host").first(), pl.col("offset_ns").median(), pl.col("low_ns").min(), pl.col("high_ns").max()
    )
    columns = (
        Column("rank", "rank"),
        Column("offset", "offset_ns", signed),
        Column("at least, at most", lambda row: f"{signed(row['low_ns'])} to {signed(row['high_ns'])}"),
        words("host", "host", missing="?"),
    )
    yield section("CLOCKS", offsets, columns, top, "against the first rank", cut=True)


def _ranks(table: pl.DataFrame, most: int) -> Section:
    """The ledger of a step of each rank, as a bar; of many ranks the quartiles by waiting."""
    shown = table.with_columns(called=pl.col("rank").cast(pl.String))
    if table.height > most:
        order = shown.sort(pl.col("wait_ns") / pl.col("ns"), "rank")
        last = len(_QUARTILES) - 1
        at = {round(part / last * (table.height - 1)): name for part, name in enumerate(_QUARTILES)}
        shown = order[list(at)].with_columns(called=pl.format("{} ({})", "rank", pl.Series([*at.values()])))
    transfer = pl.col("transfer_ns") + pl.col("unmatched_ns")
    shown = shown.with_columns(kernel="kernel_ns", waiting="wait_ns", transfer=transfer)
    shown = shown.with_columns(rest=pl.col("ns") - pl.sum_horizontal("kernel", "waiting", "transfer"))
    of_step = pl.col("ns", "hidden_ns", *PARTS) / pl.col("steps").clip(lower_bound=1)
    shown = shown.with_columns(of_step.name.suffix("_of_step_ns"))
    longest = int(shown.select(pl.col("ns_of_step_ns").max()).item() or 0)
    columns = (
        Column("rank", "called"),
        *numbers(step="ns_of_step_ns"),
        Column("", lambda row: _bar({name: row[name] for name in PARTS}, longest * max(row["steps"], 1)), left=True),
        *numbers(kernels="kernel_of_step_ns", waiting="waiting_of_step_ns", transfer="transfer_of_step_ns spare"),
        *numbers(rest="rest_of_step_ns spare", hidden="hidden_ns_of_step_ns wide"),
    )
    legend = "{kernel} kernels {waiting} waiting {transfer} transfer {rest} rest; hidden: communication beside kernels"
    remark = of(shown.height, table.height)
    return section("RANKS, A STEP OF EACH", shown, columns, remark=remark, foot=legend.format(**PARTS))


def _bar(parts: dict[str, int], whole: int, cells: int = _BAR) -> str:
    """A bar of the parts; each ends where their sum so far does."""
    text, total = "", 0
    for name, ns in parts.items():
        total += ns
        text += PARTS[name] * (round(total / max(whole, 1) * cells) - len(text))
    return text


def collective(rows: pl.DataFrame, width: int) -> str:
    """The ranks of one collective of the table `collectives` by arrival, with bars on a common scale, as text."""
    came, waited = pl.col("start_ns") - pl.col("start_ns").min(), pl.col("wait_ns").fill_null(0)
    shown = rows.with_columns(rest=came, waiting=waited, transfer=pl.col("dur_ns") - waited).sort("rest", "rank")
    whole = int(shown.select((pl.col("rest") + pl.col("dur_ns")).max()).item())
    parts = ("rest", "waiting", "transfer")
    columns = (
        Column("rank", "rank"),
        Column("came", "rest", lambda ns: f"+{units.time(ns)}"),
        Column("waited", "waiting", units.time),
        Column("", lambda row: _ended({name: row[name] for name in parts}, whole), left=True),
    )
    head, lines = section("", shown, columns).grid.lines(width)
    first = rows.row(0, named=True)
    size = f" of {units.size(first['bytes'])}" if isinstance(first["bytes"], int) else ""
    group = f" in {first['group']}" if first["group"] else ""
    late, last = first["lateness_ns"], first["last_rank"]
    came_last = [f"rank {last} came last, by {units.time(late)}"] if isinstance(late, int) else []
    title = f"collective {first['id']}: {first['kind']}{size}{group}, {first['class']}"
    legend = "{rest} not there {waiting} waiting {transfer} transfer".format(**PARTS)
    return "\n".join(map(outlets.line, [title, head, *lines, f"{legend}, in {units.time(whole)}", *came_last])) + "\n"


def _ended(parts: dict[str, int], whole: int) -> str:
    """A bar whose last part is seen, however short."""
    text, (name, ns) = _bar(parts, whole, 2 * _BAR), [*parts.items()][-1]
    return f"{text[: 2 * _BAR - 1]}{PARTS[name]}" if ns and not text.endswith(PARTS[name]) else text
