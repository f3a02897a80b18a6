"""The operations of CUDA graphs by where they were captured: range, operator, shapes and call, beside the replay's."""

from typing import Final, Unpack

import polars as pl

from kanalyze import model, schema
from kanalyze.analyses.device._operations import compiled_from, exclusive_operations, facts_of
from kanalyze.analyses.host import _captures
from kanalyze.analyses.operators import _host_tree, _work
from kanalyze.analyses.ranges.ranges import pairs, thread_ranges
from kanalyze.analyses.shared import analysis, threads
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.analyses.shared.statistics import exclusive_sums
from kanalyze.columns import beside, gathered, parts_by, rows_at
from kanalyze.report import Report, Where
from kanalyze.window import NUMBER, operator_of, plain, without_ids

TABLE: Final = schema.Table(
    "captured",
    "One kernel, copy or memset of CUDA graphs by name, as one call captured it and one place launched it; the names "
    "are those of the capture, the times those of the launches.",
    (
        *schema.columns("""
            range text?: The innermost range of the program around the call that captured it; null for none.
            path text?: All ranges around that call, outermost first.
            operator text?: The innermost operator around that call: of the framework, of emit_nvtx, or of XLA; else
                what inductor's code or the kernel's name says, such as what Triton fused.
            shapes text?: Shapes of the operator's inputs, where they were recorded.
            module text?: The nn.Module around that call, where Python functions were recorded.
            call text?: The call that captured it, or that added its node.
        """),
        schema.Column("how", _captures.HOW, f"{_captures.CAPTURED}; {_captures.ADDED}: the names are those around the "
               f"call; {_captures.MARKED}: by torch.cuda's mark_kernels, which is the range; {_captures.LIKELY}: "
               "nothing else tells it, another capture may fit as well, and no other table has these names; "
               f"{_captures.SEVERAL}: nothing tells which capture or which graph; "
               f"{_captures.OLDER}: captured before the recording began, or by what this tool does not record; "
               "it has no names."),
        *schema.columns("""
            launched_in text?: The ranges around the launch of the graph, outermost first; null for none.
            kernel text?: The kernel, copy or memset.
            lines text?: The lines of the program that a kernel of torch.compile is of, where `collect` saw its code.
        """),
        schema.Column("kind", pl.Enum(model.DEVICE_KINDS), "What it is: " + ", ".join(model.DEVICE_KINDS) + "."),
        *schema.columns("""
            count int: How often it ran.
            total_ns int: Sum of its durations, overlaps counted as often as they occur.
            avg_ns float: Mean duration.
            exclusive_ns int: Device time, each instant counted once; all rows sum to that of the graphs' operations.
            share float: Part of the sum of exclusive_ns.
        """),
    ),
    purpose="kernels of CUDA graphs by their capture",
    no_rows="no operation belongs to a CUDA graph whose nodes were traced",
    telling=("range", "operator", "total_ns", "share", "count"),
    groupings=("place",),
)  # fmt: skip

#: The table that ``by="place"`` gives.
BY_PLACE: Final = schema.Table(
    "captured",
    "One place of the program in which operations of CUDA graphs were captured.",
    (
        *schema.columns("""
            place text?: The innermost range around the capturing calls, else the nn.Module or the operator, `#` for
                numbers in which several differ; null where none was recorded: then each of operators has a row.
        """),
        *TABLE.columns[6:7],
        *schema.columns("""
            operators text?: The operators in it with most time, at most three; by the kernels' names without a place.
            count int: How often its operations ran.
            total_ns int: Sum of their durations, overlaps counted as often as they occur.
            exclusive_ns int: Device time, each instant counted once; all rows sum to that of the graphs' operations.
            share float: Part of the sum of exclusive_ns.
        """),
    ),
    when="--by place",
)

_NAMES: Final = ("range", "path", "operator", "shapes", "module", "call", "how")
_KEYS: Final = (*_NAMES, "launched_in", "kernel", "lines", "kind")


def captured(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The operations of CUDA graphs in scope by the names of their capture, the longest first.

    Args:
        report: Where to look; operations that overlap its window count in full, whenever they were captured.
        by: ``place`` sums them by the innermost place of the program.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE` or :data:`BY_PLACE`; empty where no operation is a graph's.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = analysis.part_of(report, where, TABLE, by, *model.DEVICE_KINDS)
    named = _named(report)
    if by is None:
        return exclusive_sums(TABLE, named, _KEYS)
    shell = pl.col("range").str.contains(_work.SHELL).fill_null(value=False)
    known = pl.when(~pl.col("nameless")).then("operator")  # what a kernel's name alone says is no place
    # around what a compiler calls its code
    outer = pl.col("path").str.split(" → ").list.eval(pl.element().filter(~pl.element().str.contains(_work.SHELL)))
    outer = outer.list.get(-1, null_on_oob=True)
    inside = pl.when(shell).then(pl.coalesce(outer, "module", "operator", "range"))
    places = inside.otherwise(pl.coalesce("range", "module", known))
    placed = named.with_columns(places.alias("place"))
    alike = pl.col("place").str.replace_all(NUMBER.pattern, "#")
    one = pl.col("place").n_unique().over(alike) == 1
    placed = placed.with_columns(place=pl.when(one).then("place").otherwise(alike))
    # of those that a fused kernel is of, each
    each = placed.with_columns(pl.col("operator").str.split(", ")).explode("operator").drop_nulls(["place", "operator"])
    most = each.group_by("place", "operator").agg(pl.col("exclusive_ns").sum()).sort("exclusive_ns", "operator")
    names = most.group_by("place", maintain_order=True).agg(operators=pl.col("operator").tail(3).reverse())
    placed = placed.join(names, "place", "left").with_columns(
        operators=pl.when(pl.col("place").is_null()).then("operator").otherwise(pl.col("operators").list.join(", "))
    )
    return exclusive_sums(BY_PLACE, placed, ("place", "how", "operators"))


def _named(report: Report) -> pl.DataFrame:
    """The operations of graphs in scope with :data:`_KEYS`, nameless (no operator), dur_ns and exclusive_ns."""
    work = exclusive_operations(report)
    likely = rows_at(_captures.likely_captures(report), work.get_column("row"))
    work, likely = work.filter(likely.get_column("capture").is_not_null()), likely.drop_nulls("capture")
    names = rows_at(captured_names(report), likely.get_column("capture"))
    unsure = ~likely.get_column("sure") & (names.get_column("how") != _captures.OLDER)
    names = names.with_columns(how=pl.when(unsure).then(pl.lit(_captures.LIKELY, dtype=_captures.HOW)).otherwise("how"))
    named = work.select("kind", "dur_ns", "exclusive_ns", kernel="name")
    named = named.hstack([launch_paths(report, work.get_column("row")), *names])
    named = named.with_columns(pl.col("kernel").cast(pl.String))
    named = named.join(compiled_from(report).drop("made_of"), on="kernel", how="left", maintain_order="left")
    by_kernel = _work.said_by_kernels(report, named.get_column("kernel")).alias("said")
    # what is called an operator, and is the kernel itself, is none
    operator = pl.when(~pl.col("operator").str.contains(f"{_work.SHELL}|^triton_")).then("operator")
    marks = facts_of(report, work.get_column("row"), "mark").to_series()
    marked = pl.col("mark").is_not_null() & pl.col("how").is_in([_captures.LIKELY, _captures.SEVERAL, _captures.OLDER])
    return named.with_columns(marks, by_kernel).with_columns(
        pl.coalesce(operator, "said", "operator").alias("operator"),
        pl.col("operator").is_null().alias("nameless"),
        pl.coalesce("mark", "range").alias("range"),
        how=pl.when(marked).then(pl.lit(_captures.MARKED, dtype=_captures.HOW)).otherwise("how"),
    )


def launch_paths(report: Report, rows: pl.Series) -> pl.Series:
    """All ranges around the launch of each of the operations in `rows`, outermost first, as `launched_in`."""
    calls = facts_of(report, rows, "call_row", "process_id", "thread_id", "call_start", "call_end")
    calls = calls.rename({"call_start": "since", "call_end": "until"})
    launches = calls.unique("call_row", maintain_order=True)
    paths = launches.select("call_row", names_around(report, launches).get_column("path").alias("launched_in"))
    placed = calls.join(paths, on="call_row", how="left", maintain_order="left", nulls_equal=True)
    return placed.get_column("launched_in")


def captured_as(report: Report, rows: pl.Series, name: str) -> pl.Series:
    """A column of :func:`captured_names` of each of the operations in `rows`; null for those of no graph."""
    if not _captures.has_captures(report):
        return pl.repeat(None, len(rows), dtype=pl.String, eager=True).alias(name)
    return gathered(captured_names(report).get_column(name), gathered(_captures.capture_rows(report), rows))


@analysis.once_per_process
def captured_names(report: Report) -> pl.DataFrame:
    """The names of each row of :func:`captures`: the columns of the table from range to how."""
    rows, source = _captures.captures(report), _captures.capture_source(report)
    calls = source.kind("api").get_column("name")
    of_calls = rows.select("how", call=gathered(calls, rows.get_column("call_row")).cast(pl.String))
    names = of_calls.hstack(names_around(source, rows))
    if "op" not in source.kinds:
        return names.with_columns(module=pl.lit(None, dtype=pl.String)).select(_NAMES)
    tree, points = _host_tree.host_tree(source), rows.select(*threads.THREAD, at="since")
    (is_module, label), op = _host_tree.modules(tree.rows), tree.innermost(points, tree.of_kinds("op"))
    shapes = beside(tree.rows.select("event_id"), source.table("op_detail"), "input_shapes").get_column("input_shapes")
    operators = {"operator": tree.rows.get_column("name").cast(pl.String), "shapes": shapes}
    told = (pl.coalesce(gathered(values, op), name).alias(name) for name, values in operators.items())
    return names.with_columns(*told, module=gathered(label, tree.innermost(points, is_module))).select(_NAMES)


def names_around(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Names by the ranges around each of `calls` (process_id, thread_id, since, until): range, path, operator, shapes.

    Operators are ranges that emit_nvtx or XLA makes.
    """
    inside = [pl.DataFrame(schema={"call": pl.UInt32, "range_row": pl.UInt32})]
    numbered = calls.with_row_index("call").drop_nulls(threads.THREAD).select("call", *threads.THREAD, "since", "until")
    for thread, part in parts_by(numbered, threads.THREAD).items():
        if thread in thread_ranges(report):
            batches = pairs(thread_ranges(report)[thread], part.drop(threads.THREAD))
            inside += [batch.select("call", "range_row") for batch in batches]
    around = pl.concat(inside)
    ranges = named_ranges(report).select("start", "end", text="range")  # by row
    around = around.hstack(rows_at(ranges, around.get_column("range_row")))
    texts = around.get_column("text").unique().drop_nulls()
    columns = dict.fromkeys(("operator", "shapes"), pl.String)
    different = pl.DataFrame([operator_of(text) or (None, None) for text in texts], columns, orient="row")
    shown = [plain(text) for text in texts.to_frame("text").select(without_ids(pl.col("text"))).to_series()]
    different = different.with_columns(texts.alias("text"), pl.Series("range", shown, dtype=pl.String))
    around = around.join(different, on="text", how="left")
    around = around.sort("call", "start", "end", "range_row", descending=[False, False, True, False])
    own = around.filter(pl.col("operator").is_null())
    again = (pl.col("range") == pl.col("range").shift(1)) & (pl.col("call") == pl.col("call").shift(1))
    own = own.filter(~again.fill_null(value=False))
    paths = own.group_by("call").agg(pl.col("range").last(), path=pl.col("range").str.join(_host_tree.ARROW))
    last = around.drop_nulls("operator").group_by("call").agg(pl.col("operator", "shapes").last())
    rows = pl.DataFrame({"call": pl.int_range(calls.height, dtype=pl.UInt32, eager=True)})
    rows = rows.join(paths, on="call", how="left", maintain_order="left")
    return rows.join(last, on="call", how="left", maintain_order="left").select("range", "path", "operator", "shapes")
