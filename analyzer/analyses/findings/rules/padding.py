"""Padding: batches of texts that are filled up to one width, and graphs that take more rows than they are given."""

from itertools import accumulate
from typing import Final

import polars as pl

from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_host import SPAN
from kanalyze.analyses.findings.rules import Findings, Rule, literal
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest, told_of
from kanalyze.report import Batches, Report

# Batches of which a part is padding, as a run without a profiler saw them.

_WORTH_SORTING: Final = 0.9  # rows of like lengths in a batch leave so much of it at most


@Rule
def padded_batches(report: Report) -> Findings:
    """One finding per device on operators of batches of tokens whose rows are filled up to a width, as it was given."""
    batches = next((run.batches for run in report.bare().marked if run.batches.filled), Batches())
    given, longest_each, alike, filled = _positions(batches)
    # rows that all end at one place may end with what belongs to them, such as a border
    if len({length for _, rows in batches.filled for length in rows}) < 2 or alike > _WORTH_SORTING * given:  # noqa: PLR2004
        return
    # a tokenizer that fills up to a fixed length is mended first
    fixed, varied = longest_each <= _WORTH_SORTING * given, alike <= _WORTH_SORTING * longest_each
    left = (longest_each if fixed else alike) / given
    for work in on_host.works_within(report, _of_batches(on_host.working(report), batches)):
        yield work.finding(
            "padding",
            left=left,
            at_stake_ns=int(work.ns * (1 - left)),
            where=literal(batches.line),
            fixed=fixed,
            varied=varied,
            both=fixed and varied,
            padded=1 - filled / given,
            longest=longest_each / given,
            alike=alike / given,
        )


def _positions(batches: Batches) -> tuple[int, int, int, int]:
    """Positions of batches: as given, as wide as the longest row, with rows of like lengths in each, and filled."""
    numbers = [len(rows) for _, rows in batches.filled]
    lengths = sorted((length for _, rows in batches.filled for length in rows), reverse=True)
    return (
        sum(width * len(rows) for width, rows in batches.filled),
        sum(max(rows) * len(rows) for _, rows in batches.filled),
        sum(lengths[start] * number for start, number in zip(accumulate(numbers, initial=0), numbers, strict=False)),
        sum(lengths),
    )


def _of_batches(every: pl.DataFrame, batches: Batches) -> pl.DataFrame:
    """The operators that take rows and positions of batches, where embeddings of these are looked up: SPAN."""
    sizes = {(len(rows), width) for width, rows in batches.filled}

    def takes(shapes: str) -> str | None:
        """Which sizes of batches inputs have: as they are, by heads, or as one side."""
        inputs = on_host.inputs(shapes)
        by_heads = [(shape[0], shape[2]) for shape in inputs if len(shape) == len("BHTD")]
        whole = any(pair in sizes for pair in (*by_heads, *(tuple(shape[:2]) for shape in inputs)))
        joined = any(shape[0] == rows * width for shape in inputs if shape for rows, width in sizes)
        return "whole" if whole else "joined" if joined else None

    name = pl.col("name")
    kinds = told_of(every.get_column("input_shapes").cast(pl.String), takes)
    whole = pl.col("kind") == "whole"
    own = every.with_columns(kind=kinds).filter(whole | name.str.contains(on_host.MULTIPLIES), ~pl.col("aside"))
    # whose first two sides may be images and channels
    of_images = name.str.contains("conv|batch_norm|instance_norm|group_norm|pool|upsample|interpolate")
    own = own.drop_nulls("kind").filter(~of_images)
    return own.filter((whole & (name == "aten::embedding")).any()).select(SPAN)


# Graphs that are launched for fewer rows than they were captured with.

_TAKES_PART: Final = r"^aten::(?:slice|narrow)$"
_FEWEST_LAUNCHES: Final = 8


@Rule
def padded_graphs(report: Report) -> Findings:
    """One finding per device on the graph that is launched most for fewer rows than it takes, as copies show."""
    if not on_gpu.share_of_graphs(report):
        return
    fills = _filled_parts(report).filter(pl.col("whole") == pl.col("whole").mode().sort().first())
    if fills.height < _FEWEST_LAUNCHES:
        return
    # a graph of the next power of two, and of no fewer rows than products take as long for
    least = pl.max_horizontal(2 ** pl.col("rows").log(2).ceil(), 300 / pl.col("inner"))
    kept = fills.select((pl.min_horizontal(least, "whole") / pl.col("whole")).mean()).item()
    sizes = fills.select(fewest=pl.col("rows").min(), most=pl.col("rows").max(), whole=pl.col("whole").max())
    for work in on_host.works_within(report, fills):
        stake, rows = int(work.ns * (1 - kept)), sizes.cast(pl.Int64).row(0, named=True)
        yield work.finding("padding: graphs", left=kept, kept=kept, at_stake_ns=stake, **rows)


def _filled_parts(report: Report) -> pl.DataFrame:
    """Launches of graphs behind a copy of some `rows` into a tensor of `whole` ones: SPAN, rows, whole, inner.

    A part of a tensor of as many rows is taken right after, of what the graph gives: the copy fills a part of what it
    takes, and of no cache. Each of these rows is of so many `inner` ones of which products are made.
    """
    launches = on_host.spans_named("GraphLaunch", (on_host.traced(report) or report).kind("api"))
    line, shapes = on_host.outermost(report).sort(*THREAD, "start"), pl.col("input_shapes")
    name, into = pl.col("name"), on_host.sides(shapes)
    is_copy = name == "aten::copy_"
    before, after = ((name.shift(by).over(THREAD), on_host.sides(shapes.shift(by).over(THREAD))) for by in (1, -1))
    part = before[0].str.contains(_TAKES_PART) & (into.list.slice(1) == before[1].list.slice(1))
    given = after[0].str.contains(_TAKES_PART) & (after[1].list.first() == before[1].list.first())
    given &= ~is_copy.shift(-2, fill_value=False).over(THREAD)  # no part that is copied in next
    inner = into.list.slice(1, into.list.len().cast(pl.Int64) - 2).list.eval(pl.element().product()).list.first()
    sizes = {"rows": into.list.first(), "whole": before[1].list.first(), "inner": inner.fill_null(1)}
    copies = line.select(*THREAD, copied="start", filled=part & given & is_copy, **sizes)
    fills = nearest(launches, copies, ("start", "copied"), THREAD)
    return fills.filter("filled", pl.col("rows").is_between(0, pl.col("whole"), closed="none"))
