"""The page that every format renders, whatever it is of: its parts as texts without layout, and what builds it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import polars as pl

from kanalyze import outlets, units
from kanalyze.renderers.text.kernel_names import short_forms
from kanalyze.report import Meta
from kanalyze.window import Scope
from kanalyze.wording import worded

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._comparison import Comparison
    from kanalyze.analyses.comparing._gate import Noise
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.page.counters_page import CounterSummary, JointSummary
    from kanalyze.analyses.page.overview_page import Evidence, Overview
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.analyses.ranges._instances import Instances
    from kanalyze.analyses.ranks._job import Job
    from kanalyze.analyses.replay._whatif import WhatIf
    from kanalyze.renderers.text.grid import Chapter, Grid, Section

    Shown: TypeAlias = (
        Overview | Summary | Instances | CounterSummary | JointSummary | Comparison | Noise | Job | WhatIf | Evidence
    )

    #: Description of a part of a bucket, and its duration.
    Part: TypeAlias = tuple[str | None, int]


class Share(NamedTuple):
    """One bucket of a ledger: name, share of the bar, texts.

    `detail` says what most of it was; `plain` what it is, where there is no such detail, or no space for it; `spread`
    the least and the most of it, of several iterations, of which each has `each_ns`.
    """

    bucket: str
    ns: int
    each_ns: int
    time: str
    share: str
    detail: str
    plain: str
    spread: str = ""

    @property
    def description(self) -> str:
        """The detail, else the plain description."""
        return self.detail or self.plain


class Ledger(NamedTuple):
    """A device's ledger: heading, buckets (longest first), total, busy share over time."""

    heading: str
    window_ns: int
    shares: list[Share]
    total: str
    busy: list[float]
    title: str = "WHERE THE TIME WENT"
    span: tuple[str, str] = ("", "")


class Point(NamedTuple):
    """A finding on the page: the time that it takes, what is wrong, what to do, and where to read on.

    `headline` has places for kernel names. `saved` is what a replay says that it saves; empty where none was made.
    `beside` is one about other time with the same action.
    """

    worth: str
    finding: Finding
    headline: str
    action: str
    more: str
    saved: str = ""
    beside: Point | None = None

    def together(self) -> list[Point]:
        """Findings of one action: this one, and the one beside it."""
        return [self] if self.beside is None else [self, self.beside]

    def said(self, names: Mapping[str, str], escaped: Callable[[str], str] = str) -> str:
        """The headline, `escaped`, with kernel names shortened by `names`."""
        return escaped(self.headline).format(*(names[name] for name in self.finding.names))

    def sentence(self, names: Mapping[str, str]) -> str:
        """The whole finding, with kernel names shortened by `names`."""
        return self.finding.text.format(*(names[name] for name in self.finding.names))


class Block(NamedTuple):
    """A title and a text beside it."""

    title: str
    text: str


class Page(NamedTuple):
    """A page: heading, answer, ledgers, tables, findings, closing line, chapters per kernel.

    An overview has its findings before the tables, others behind them. `nothing` is told where there is no finding.
    """

    heading: list[str]
    answer: str
    sections: Sequence[Section]
    more: str
    health: str = ""
    ledgers: Sequence[Ledger] = ()
    points: Sequence[Point] = ()
    points_remark: str = ""
    cannot_tell: Sequence[str] = ()
    chapters: Sequence[Chapter] = ()
    blocks: Sequence[Block] = ()
    overview: bool = False
    nothing: str = "Nothing worth a sentence."

    @property
    def beside(self) -> str:
        """The heading behind the name, with the health of the report."""
        return " · ".join([*self.heading[1:], *([self.health] if self.health else [])])


def short_names(page: Page, width: int) -> dict[str, str]:
    """Maps kernel names on the page to unique short forms of at most `width` characters.

    Two kernels that differ never have the same short form.
    """
    tables = [name for section in page.sections for name in section.grid.names()]
    told = [name for point in page.points for one in point.together() for name in one.finding.names]
    return short_forms([*tables, *told, *(chapter.name for chapter in page.chapters)], width)


#: Rows in each table of a page, unless told; of one that is read first, or pasted.
_USUAL_ROWS: Final = 8
ROWS: Final = 6

#: What builds the page of a kind of summary: the module of this package, its function, and the rows unless told. A
#: command makes pages of one kind, and does not wait for the modules of the others.
_BUILDERS: Final = {
    "comparison": ("comparison", "comparison_page", ROWS),
    "counters": ("counters", "counters_page", _USUAL_ROWS),
    "evidence": ("overview", "evidence_page", ROWS),
    "instances": ("time", "instances_page", _USUAL_ROWS),
    "job": ("job", "job_page", ROWS),
    "joint": ("counters", "joint_page", _USUAL_ROWS),
    "noise": ("comparison", "noise_page", ROWS),
    "overview": ("overview", "overview_page", ROWS),
    "time": ("time", "page_of", _USUAL_ROWS),
    "whatif": ("comparison", "whatif_page", _USUAL_ROWS),
}


def page_of_any(shown: Shown, top: int | None) -> Page:
    """Builds the page of any summary, at most `top` rows per table, or as many as suit it; texts are printable."""
    module, name, rows = _BUILDERS[shown.kind]
    build: Callable[[Shown, int], Page] = getattr(import_module(f"kanalyze.renderers.page.{module}"), name)
    page: Page = _plain(build(shown, rows if top is None else top))
    return page


def _plain(value: Any, field: str = "") -> Any:  # noqa: ANN401 - whatever a page consists of
    """Makes every text in a part of a page one printable line; kernel names stay whole, for renderers to shorten."""
    if field in _OTHERWISE:
        return _OTHERWISE[field](value)
    if isinstance(value, str):
        return outlets.short(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value, value._fields))
    return type(value)(map(_plain, value)) if isinstance(value, list | tuple) else value


def _plain_grid(grid: Grid) -> Grid:
    whole = len(grid.heads) - grid.named
    return grid._replace(rows=[(*map(outlets.short, row[:whole]), *row[whole:]) for row in grid.rows])


def _plain_finding(finding: Finding) -> Finding:
    """A finding whose sentences are not cut: they have places for names."""
    names = ("text", "remedy", "headline", "action", "where", "line")
    sentences: dict[str, Any] = {name: outlets.line(getattr(finding, name)) for name in names}
    return finding._replace(**sentences)


#: Fields of a page that are no plain texts: a chapter's name is a kernel's, commands are a line each, and sentences of
#: findings, with places for names, are not cut.
_OTHERWISE: Final[dict[str, Callable[[Any], Any]]] = {
    "action": outlets.line,
    "finding": _plain_finding,
    "grid": _plain_grid,
    "headline": outlets.line,
    "more": outlets.lines,
    "name": str,
}

# What pages of several kinds have.

#: nsys' name for unspecified overhead, and ours.
UNNAMED: Final = {"Unknown": "unnamed"}

#: The version suffix of a CUDA call, which pages omit.
_VERSION: Final = re.compile(r"_v\d{4,5}\b")

#: Self-explanatory bucket names, for buckets without a more specific detail.
_NO_DETAIL: Final = {
    "host": "program code outside CUDA",
    "unknown": "no launch tells which thread",
    "queued": "submitted, waited on the device",
}

#: A part of a bucket is named from this share of it on.
WORTH_NAMING: Final = 0.02


def unversioned(call: str) -> str:
    """Strips the version suffix from a CUDA call."""
    return _VERSION.sub("", call)


def options(scope: Scope) -> list[str]:
    """The options that choose what is in `scope`."""
    chosen = {"--window": scope.window, "--device": scope.device, "--process": scope.process}
    return [word for name, value in chosen.items() if value is not None for word in (name, str(value))]


def rank_of(meta: Meta) -> list[str]:
    """``rank 2 of 8``, where a report names its rank."""
    of = f" of {meta.world_size}" if meta.world_size else ""
    return [] if meta.rank is None else [f"rank {meta.rank}{of}"]


def health_line(health: pl.DataFrame) -> str:
    """How far the report can be trusted, in a line; of what a tool says itself the first sentence."""
    wrong = health.filter(pl.col("doubt")).select("check", "count")
    told = [
        units.checked(re.split(r"\.(?=\s|[A-Z])", check, maxsplit=1)[0], count) for check, count in wrong.iter_rows()
    ]
    return f"health: {'; '.join(told) or 'complete'}"


def ledger(
    rows: pl.DataFrame, heading: str, detail: Callable[[str, list[Part]], str], interface: str, iterations: int = 1
) -> Ledger:
    """The ledger of a device, per iteration where it is of several: `detail` tells of a bucket with its parts."""
    sums = rows.group_by("bucket").agg(pl.col("ns").sum()).sort("ns", "bucket", descending=[True, False])
    times_ns = sums.get_column("ns").to_list()
    length = sum(times_ns)
    shown_ns = round(length / iterations)
    each_ns = units.apportioned(times_ns, shown_ns)
    parts: dict[str, list[Part]] = {}
    for bucket, part, ns in rows.select("bucket", "detail", "ns").iter_rows():
        parts.setdefault(bucket, []).append((part, ns))
    shares = [
        Share(
            bucket,
            ns,
            each,
            text,
            units.percent(ns / max(length, 1)),
            told_waits(bucket, parts[bucket]) or detail(bucket, parts[bucket]),
            worded(_NO_DETAIL.get(bucket, ""), interface),
        )
        for (bucket, ns), each, text in zip(sums.iter_rows(), each_ns, units.adding_up(each_ns, shown_ns), strict=True)
    ]
    return Ledger(heading, length, shares, units.adding_up([shown_ns], shown_ns)[0], [])


def told_waits(bucket: str, parts: list[Part]) -> str:
    """Communication by whom it waited for and what it transferred, as shares; empty where the report does not tell."""
    if bucket != "communication":
        return ""
    whole = max(sum(ns for _, ns in parts), 1)
    worth = [(detail, ns / whole) for detail, ns in parts if detail is not None and ns >= WORTH_NAMING * whole]
    worth = sorted(worth, key=lambda part: -part[1])[:3]
    # waiting first, where there is no room for all: the rest of it is what is transferred
    by_wait = sorted(worth, key=lambda part: part[0] == "transfer")
    return ", ".join(f"{detail} {share:.0%}".replace("%", " %") for detail, share in by_wait)
