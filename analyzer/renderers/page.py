"""What the page says, section by section, as texts without layout; terminal and markdown lay it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import units
from kanalyze.renderers.grid import Grid, Head
from kanalyze.renderers.kernel_names import shorten

if TYPE_CHECKING:
    from kanalyze.analyses.rules import Finding
    from kanalyze.analyses.summary import Summary
    from kanalyze.report import Meta

#: Names for buckets in words that need no definition at hand, where a bucket has no more telling detail.
_NO_DETAIL: Final = {
    "host": "program code outside CUDA",
    "unknown": "no launch tells which thread",
    "queued": "submitted, waited on the device",
}
_DETAILS: Final = 2

#: nsys' word for overhead of no particular kind.
_UNNAMED: Final = {"Unknown": "unnamed"}


@dataclass(frozen=True)
class Share:
    """One bucket of a ledger: its name, texts of time and share, and how much of the bar it takes."""

    bucket: str
    ns: int
    time: str
    share: str
    detail: str


@dataclass(frozen=True)
class Ledger:
    """One device's ledger: its heading, its buckets (longest first) and their sum."""

    heading: str
    window_ns: int
    shares: list[Share]
    total: str


@dataclass(frozen=True)
class Section:
    """A titled table, with a remark beside the title, and what to say instead where there are no rows."""

    title: str
    remark: str
    grid: Grid


@dataclass(frozen=True)
class Topic:
    """A finding, and where else the same was found for less."""

    finding: Finding
    also: str

    def sentence(self, names: dict[str, str]) -> str:
        """What was found, with kernel names as `names` has them."""
        said = units.printable(self.finding.text).format(*(names[name] for name in self.finding.names))
        return f"{said} {self.also}".rstrip()


@dataclass(frozen=True)
class Page:
    """The page: heading lines, the answer, ledgers, tables, findings, and a closing line."""

    heading: list[str]
    health: str
    answer: str
    ledgers: list[Ledger]
    sections: list[Section]
    topics: list[Topic]
    cannot_tell: list[str]
    more: str


def short_names(page: Page, width: int) -> dict[str, str]:
    """Every kernel name on the page by its short form of at most `width` characters, the same wherever it stands.

    Two kernels that differ never have the same short form.
    """
    tables = [name for section in page.sections for name in section.grid.names()]
    names = list(dict.fromkeys([*tables, *(name for topic in page.topics for name in topic.finding.names)]))
    return dict(zip(names, shorten(names, width), strict=True))


def page_of(summary: Summary, top: int) -> Page:
    """The page of a summary, with at most `top` rows in each table."""
    tables = summary.tables
    sections = []
    if "exposure" in tables and tables["exposure"].height:
        sections.append(_exposure(tables["exposure"], many=summary.windows.height > 1))
    makers = (("hot_kernels", _kernels), ("copies", _copies), ("launch_summary", _launches), ("api", _calls))
    for name, make in makers:
        if name in tables and tables[name].height:
            sections.append(make(tables, top))
    return Page(
        heading=_heading(summary),
        health=_health(tables["health"]),
        answer=summary.answer,
        ledgers=[_ledger(summary, row) for row in summary.windows.iter_rows(named=True)],
        sections=sections,
        topics=_topics(summary.findings)[:top],
        cannot_tell=list(summary.cannot_tell.values()),
        more=f"kanalyze show TABLE {units.printable(summary.meta.path.name)}; `kanalyze tables` lists the tables",
    )


def heading(meta: Meta, parts: list[str]) -> list[str]:
    """The parts of the heading: the file's name, the tool, then `parts`."""
    tool = " ".join(part for part in (meta.tool, meta.tool_version) if part)
    return [units.printable(part) for part in (meta.path.name, tool, *parts)]


def _heading(summary: Summary) -> list[str]:
    meta, parts = summary.meta, []
    models = summary.windows.group_by("name", "compute_capability", "sm_count", maintain_order=True).len()
    for name, capability, sms, count in models.iter_rows():
        times = f"{count} × " if count > 1 else ""
        details = [f"sm_{capability.replace('.', '')}" if capability else "", f"{sms} SMs" if sms else ""]
        known = ", ".join(detail for detail in details if detail)
        parts.append(f"{times}{name or 'GPU'}" + (f", {known}" if known else ""))
    if meta.driver_version:
        parts.append(f"driver {meta.driver_version}")
    parts.append(units.plural(summary.process_count, "process"))
    if summary.scope.window is not None and summary.scope.window.name:
        parts.append(f"window {summary.scope.window.name}")
    return heading(meta, parts)


def _health(health: pl.DataFrame) -> str:
    wrong = health.filter(pl.col("doubt"))
    if wrong.is_empty():
        return "health: complete"
    told = [f"{units.count(count)} {check}" for check, count in wrong.select("check", "count").iter_rows()]
    return "health: " + "; ".join(told)


def _topics(findings: list[Finding]) -> list[Topic]:
    """One topic per rule, the costliest finding first; the same on other devices is said in a clause."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    topics = []
    for first, *others in by_rule.values():
        places = ", ".join(f"GPU {other.device} {units.time(other.at_stake_ns)}" for other in others)
        topics.append(Topic(first, f"(On GPU {first.device}; also on {places}.)" if others else ""))
    return topics


def _ledger(summary: Summary, window: dict[str, int]) -> Ledger:
    rows = summary.tables["ledger"].filter(pl.col("device") == window["device"])
    length = window["window_ns"]
    sums = rows.group_by("bucket").agg(pl.col("ns").sum()).sort("ns", "bucket", descending=[True, False])
    texts = units.adding_up([*sums.get_column("ns")], length)
    shares = [
        Share(
            bucket,
            ns,
            text,
            units.percent(ns / max(length, 1)),
            _detail(rows.filter(pl.col("bucket") == bucket)),
        )
        for (bucket, ns), text in zip(sums.iter_rows(), texts, strict=True)
    ]
    span = f"{units.instant(window['start_ns'])} to {units.instant(window['end_ns'])}"
    return Ledger(f"GPU {window['device']}, {span}", length, shares, units.adding_up([length], length)[0])


def _detail(rows: pl.DataFrame) -> str:
    """What a bucket's time was, the most of it first."""
    bucket = rows.get_column("bucket").item(0)
    named = rows.drop_nulls("detail")
    if named.is_empty():
        return _NO_DETAIL.get(bucket, "")
    if rows.height == 1:
        return units.printable(named.get_column("detail").item(0))
    top = named.select("detail", "ns").head(_DETAILS)
    told = [f"{units.printable(_UNNAMED.get(detail, detail))} {units.time(ns)}" for detail, ns in top.iter_rows()]
    more = named.height - len(told)
    return ", ".join(told) + (f", {more} more" if more else "")


def _exposure(table: pl.DataFrame, *, many: bool) -> Section:
    heads = (Head("", left=True), Head("total"), Head("at once", wide=True), Head("exposed"), Head("hidden"))
    single = (
        table.filter(pl.col("detail").is_not_null()).group_by("device", "category").len().filter(pl.col("len") == 1)
    )
    lonely = set(single.select("device", "category").iter_rows())
    rows = []
    for row in table.iter_rows(named=True):
        if row["detail"] is not None and (row["device"], row["category"]) in lonely:
            continue
        where = f"GPU {row['device']} " if many else ""
        name = f"  {row['detail']}" if row["detail"] else f"{where}{row['category']}"
        hidden = "" if row["hidden_share"] is None else units.percent(row["hidden_share"])
        times = (units.time(row[f"{column}_ns"]) for column in ("total", "union", "exposed"))
        rows.append((name, *times, hidden))
    return Section("TOTAL AND EXPOSED", "hidden: behind more useful work", Grid(heads, rows))


def _kernels(tables: dict[str, pl.DataFrame], top: int) -> Section:
    table = tables["hot_kernels"]
    heads = (
        Head("time", wide=True),
        Head("window"),
        Head("busy"),
        Head("count"),
        Head("average"),
        Head("grid × block", left=True),
        Head("kernel", left=True),
    )
    rows = [
        (
            units.time(row["exclusive_ns"]),
            units.percent(row["window_share"]),
            units.percent(row["busy_share"]),
            units.count(row["count"]),
            units.time(row["avg_ns"]),
            _shape(row),
            row["name"] or "(no name)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    return Section(
        "KERNELS",
        of(len(rows), table.height, "share of window and of busy time"),
        Grid(heads, rows, named=True),
    )


def _shape(row: dict[str, int]) -> str:
    if not row["shapes"]:
        return ""
    grid, block = (_dimensions([row[f"{what}_{axis}"] for axis in "xyz"]) for what in ("grid", "block"))
    return f"{grid} × {block}" + (f" +{row['shapes'] - 1}" if row["shapes"] > 1 else "")


def _dimensions(sizes: list[int]) -> str:
    """A launch dimension without the trailing ones: 4096, or 32,1,8."""
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return ",".join(str(size) for size in sizes)


def _copies(tables: dict[str, pl.DataFrame], top: int) -> Section:
    table = tables["copies"]
    heads = (
        Head("time"),
        Head("exposed"),
        Head("count"),
        Head("bytes"),
        Head("average", wide=True),
        Head("rate"),
        Head("operation", left=True),
    )
    rows = [
        (
            units.time(row["total_ns"]),
            units.time(row["exclusive_ns"]),
            units.count(row["count"]),
            units.size(row["total_bytes"]),
            units.size(row["avg_bytes"]),
            "" if row["bandwidth_bytes_per_s"] is None else units.rate(row["bandwidth_bytes_per_s"]),
            (row["operation"] or "(no name)").removeprefix("[CUDA ").removesuffix("]"),
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    return Section("COPIES", of(len(rows), table.height), Grid(heads, rows))


def _launches(tables: dict[str, pl.DataFrame], top: int) -> Section:
    table = tables["launch_summary"].sort("charged_api_ns", descending=True)
    hot = tables["hot_kernels"]
    bound = set(hot.filter(pl.col("launch_bound")).get_column("name"))
    heads = (
        Head("host time"),
        Head("count"),
        Head("call"),
        Head("queue"),
        Head("kernel"),
        Head("", left=True),
        Head("call", left=True, wide=True),
        Head("kernel", left=True),
    )
    rows = [
        (
            units.time(row["charged_api_ns"]),
            units.count(row["count"]),
            units.time(row["api_median_ns"]),
            "" if row["queue_median_ns"] is None else units.time(row["queue_median_ns"]),
            units.time(row["kernel_median_ns"]),
            "!" if row["kernel"] in bound else "",
            row["api"] or "(no name)",
            row["kernel"] or "(no name)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    remark = "medians of call, queue and kernel" + ("; ! launch-bound" if any(row[5] for row in rows) else "")
    return Section("LAUNCHES", of(len(rows), table.height, remark), Grid(heads, rows, named=True))


def _calls(tables: dict[str, pl.DataFrame], top: int) -> Section:
    table = tables["api"]
    heads = (
        Head("host time"),
        Head("count"),
        Head("average"),
        Head("median"),
        Head("longest"),
        Head("call", left=True),
    )
    rows = [
        (
            units.time(row["total_ns"]),
            units.count(row["count"]),
            units.time(row["avg_ns"]),
            units.time(row["median_ns"]),
            units.time(row["max_ns"]),
            row["name"] or "(no name)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    return Section("CUDA CALLS", of(len(rows), table.height), Grid(heads, rows))


def of(shown: int, total: int, remark: str = "") -> str:
    """A remark that also says how many rows of the table are shown, where not all are."""
    part = f"{shown} of {total}" if shown < total else ""
    return "; ".join(text for text in (part, remark) if text)
