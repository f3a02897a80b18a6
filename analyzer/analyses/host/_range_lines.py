"""NVTX ranges with their names as in nsys, the innermost one of each thread; and names of host time outside CUDA calls.

The name of an instant is the innermost host event of the thread: an operator, an annotation (other than a profiler
step), a module, or a library function that program code called. Within a Python function of the program, the innermost
of those is appended: ``aten::to in train.py(31): step``; time in such a function and in no host event within it has the
name of the function alone. Where no function of the program is recorded, any other Python function counts. Time in no
event at all is named by the operators, annotations and CUDA calls before and after it.

Frames are named as torch's profiler names them: ``train.py(31): step`` with a path relative to the import path,
``<built-in function sleep>``, ``nn.Module: Linear_0``. Program code is every file that belongs neither to Python, nor
to torch and its dependencies, nor to a few packages that programs only call, and that no compiler generated.
"""

import sys
from bisect import bisect_left, bisect_right
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._windows import busy_spans
from kanalyze.analyses.host import _thread_timeline
from kanalyze.analyses.host.engine_marks import names_by_kind
from kanalyze.analyses.shared import threads
from kanalyze.analyses.shared.analysis import named_ranges, once_per_process
from kanalyze.analyses.shared.threads import THREAD, ThreadKey
from kanalyze.columns import gathered, in_order_of, nearest_place, of_parts, positions, rows_at
from kanalyze.report import Report
from kanalyze.window import STEP_PREFIX, UNNAMED


@once_per_process
def range_lines(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """Timeline of the innermost range of each thread, by process id and thread id: sorted, disjoint intervals.

    Columns: start, end and row (of :func:`named_ranges`). An instant belongs to the push/pop range of its thread that
    started last, then to the shorter one, then to the higher row; without one, to the start/end range that the thread
    started first, then to the lower row. Time in no range has no row; ranges without a name are none.
    """
    ranges = named_ranges(report).filter((pl.col("end") > pl.col("start")) & (pl.col("range") != UNNAMED))
    lines = {}
    for key, part in threads.by_thread(ranges).items():
        pair = (pl.col("style") == "StartEnd").fill_null(value=False)
        stacked, paired = part.filter(~pair), part.filter(pair)
        # of push/pop ranges the one that started last, also where ranges of two domains cross
        line = threads.joined_up(threads.innermost_line(stacked), "row")
        if paired.height:
            edges = part.select(pl.col("start").min(), pl.col("end").max()).row(0)
            of_pairs = intervals.first_come(paired.sort("start", "row")).select("row", start="own_start", end="own_end")
            of_pairs = of_pairs.filter(pl.col("end") > pl.col("start")).select(line.columns)
            free = intervals.gaps(intervals.union(line), *edges)
            line = pl.concat([line, intervals.cut(of_pairs, free)]).sort("start")
        lines[key] = line
    return lines


def ranges_at(report: Report, points: pl.DataFrame) -> pl.Series:
    """The innermost range of a thread at each point, by row of :func:`named_ranges`; null for none.

    `points` has the columns process_id, thread_id and at.
    """
    return on_lines(range_lines(report), points)


def on_lines(lines: dict[ThreadKey, pl.DataFrame], points: pl.DataFrame) -> pl.Series:
    """What the timeline of its thread has at each of `points` (process_id, thread_id, at), as :func:`on_line`."""
    at = points.select(*THREAD, "at")
    return of_parts(
        at, THREAD, pl.UInt32, lambda key, part: threads.on_line(threads.line_of(lines, key), part.get_column("at"))
    )


# Names of host time outside CUDA calls, by operator and Python function, where a framework recorded them.


#: Roles of a function: program code, an ``nn.Module`` or garbage collection, library code, or a wrapper that only
#: forwards a call.
ROLES: Final = ("program", "module", "library", "passing")

#: Packages that count as library code.
_LIBRARIES: Final = (
    *("torch", "torchgen", "functorch", "triton", "numpy", "scipy", "pandas", "pyarrow", "PIL", "cv2", "einops"),
    *("tqdm", "wrapt", "packaging", "pydantic", "typing_extensions", "yaml"),
)
#: Modules of the standard library that scripts are often named like.
_SCRIPT_NAMES: Final = ("bdb", "code", "cProfile", "profile", "pstats", "site", "test", "this", "trace")
_PYTHON: Final = tuple(sorted(sys.stdlib_module_names - {*_SCRIPT_NAMES}))

_FRAME: Final = r"^(.+)\(\d+\): (.+)$"
_INSTALLED: Final = r"^.*/(?:site|dist)-packages/"
_OF_PYTHON: Final = r"^.*/lib/python3\.\d+/|torchinductor_|^<"
#: Interactive input.
_INTERACTIVE: Final = r"^<(?:ipython|stdin)"
_MODULE: Final = r"^nn\.Module: |^Python GC$"

#: Functions of torch that only call the function that they wrap.
_WRAPPERS: Final = ("_call_impl", "_wrapped_call_impl", "wrapper", "decorate_context", "_use_grad", "inner", "_fn")
#: Built-in functions, and methods of built-in types, that count as wrappers.
_LANGUAGE: Final = (
    r"^<built-in (?:function (?:isinstance|issubclass|hasattr|getattr|setattr|len|next|iter|id|hash|callable|repr|any"
    r"|all|sum|min|max|abs|sorted|format|vars|dir)"
    r"|method \w+ of (?:dict|list|set|str|tuple|int|float|bytes|frozenset|mappingproxy|generator) object.*)>$"
)


def roles(names: pl.Series) -> pl.DataFrame:
    """Role and display name of each of the distinct `names` (Categorical) of Python functions: name, role, shown.

    `shown` is the name without object addresses and installation paths, which differ between runs.
    """
    text = pl.col("text")
    path, function = text.str.extract(_FRAME, 1), text.str.extract(_FRAME, 2)
    inside = path.str.replace(_INSTALLED, "")
    top = inside.str.split("/").list.first().str.replace(r"\.py$", "")
    foreign = top.is_in([*_LIBRARIES, *_PYTHON]) | (inside.str.contains(_OF_PYTHON) & ~path.str.contains(_INTERACTIVE))
    wraps = text.str.contains(_LANGUAGE) | (foreign & function.is_in(_WRAPPERS)).fill_null(value=False)
    role = pl.when(text.str.contains(_MODULE)).then(pl.lit("module")).when(wraps).then(pl.lit("passing"))
    decided = role.when(~foreign).then(pl.lit("program")).otherwise(pl.lit("library"))
    rows = names.alias("name").to_frame().with_columns(text=names.cast(pl.String))
    shown = text.str.replace(r" at 0x[0-9a-fA-F]+", "").str.replace(_INSTALLED, "").cast(pl.Categorical)
    return rows.select("name", decided.cast(pl.Enum(ROLES)).alias("role"), shown.alias("shown"))


def called_by_program(functions: pl.DataFrame) -> pl.Series:
    """Whether each function is library code called directly by program code, up to 32 wrappers between them skipped.

    `functions` has the columns event_id, parent_id and role, sorted by event_id.
    """
    rows = positions(functions.get_column("event_id"), functions.get_column("parent_id"))
    role = functions.get_column("role")
    asks, callers = role == "library", rows
    for _ in range(32):
        further = (gathered(role, callers) == "passing").fill_null(value=False) & asks
        if not further.any():
            break
        callers = callers.zip_with(~further, gathered(rows, callers))
    return asks & (gathered(role, callers) == "program").fill_null(value=False)


#: Paths of modules that are not the program's own.
_FOREIGN: Final = (
    r"^\[|^$"
    r"|^/(?:usr/)?(?:lib|lib32|lib64|libexec)/|^/usr/local/(?:cuda|nvidia|lib)|^/opt/(?:nvidia|rocm)|^/(?:proc|dev)/"
    r"|/(?:site|dist)-packages/|/(?:nsight|nsys)"
    r"|(?:^|/)lib(?:cuda|cu[a-z]+|nv|nccl|torch|c10|python|ToolsInjection|stdc\+\+|gomp|omp|iomp|mpi|ucx|mkl|openblas"
    r"|scipy_openblas|pthread|m|c|dl|rt|gcc_s)[^/]*\.so|/ld-linux[^/]*$|^ld-linux"
    r"|(?:^|/)python[0-9.]*$|^\w*vmlinux|\.ko$"
)

#: Functions of the CUDA runtime that is linked into a program, and what starts it.
_LINKED: Final = r"^(?:__)?cuda[A-Z]|^libcudart_static_|^_start$|^__libc_|^_dl_|^_Py|^Py[A-Z]"

#: Schema of a stack's names.
NAMES: Final = {"stack_id": pl.Int64, **dict.fromkeys(("function", "module", "chain"), pl.String), "loads": pl.Boolean}


@once_per_process
def stack_names(report: Report) -> pl.DataFrame:
    """Each stack by name: :data:`NAMES`, sorted by stack; `loads` where a function of torch's DataLoader is in it.

    `function` is the innermost of the program's own, else the innermost that has a name; `chain` are the program's own
    functions from the outermost to it, of more than eight the innermost.
    """
    frames = report.table("stack_frames")
    function = pl.col("function").cast(pl.String)
    named_frames = frames.with_columns(_own(frames)).filter(function.is_not_null() & ~function.str.starts_with("["))
    own_frames = named_frames.filter("own").sort("stack_id", "depth", descending=[False, True])
    twice = (pl.col("function") == pl.col("function").shift(1)) & (pl.col("stack_id") == pl.col("stack_id").shift(1))
    by_stack = own_frames.filter(~twice.fill_null(value=False)).group_by("stack_id", maintain_order=True)
    chains = by_stack.agg(chain=function.tail(8).str.join(" > "))
    first = named_frames.sort("stack_id", "own", "depth", descending=[False, True, False])
    first = first.unique("stack_id", keep="first", maintain_order=True)
    named = first.join(chains, on="stack_id", how="left", maintain_order="left")
    loads = pl.col("module").cast(pl.String).str.contains("/torch/utils/data/", literal=True)
    loading = named_frames.filter(loads).get_column("stack_id").unique()
    named = named.with_columns(loads=pl.col("stack_id").is_in(loading.implode()))
    return named.select(pl.col(name).cast(dtype) for name, dtype in NAMES.items())


def _own(frames: pl.DataFrame) -> pl.Series:
    """Whether each frame is in the program's own code."""
    keys = ["module", "function", "line"]
    module, function = (pl.col(name).cast(pl.String) for name in keys[:2])
    rows = frames.select("module", "function", pl.col("line").is_not_null())
    kinds = rows.unique().with_columns(name=pl.format("{}(1): {}", module, function).cast(pl.Categorical))
    role = roles(kinds.get_column("name").unique().drop_nulls()).select("name", "role")
    native = ~(module.fill_null("").str.contains(_FOREIGN) | function.str.contains(_LINKED))
    python = (pl.col("role") == "program") & ~module.str.contains(r"/(?:site|dist)-packages/")
    own = pl.when("line").then(python).otherwise(native).fill_null(value=False)
    decided = kinds.join(role, on="name", how="left").select(*keys, own=own)
    return rows.join(decided, on=keys, how="left", nulls_equal=True, maintain_order="left").get_column("own")


_EVENT_COLUMNS: Final = ("start", "end", "name")


def shapes_beside(report: Report) -> Report | None:
    """The trace beside a report that records no operators, where that has their shapes."""
    trace = None if report.kind("op").height else report.beside()
    if trace is None or trace.table("op_detail").get_column("input_shapes").is_null().all():
        return None
    return trace


def has_shapes(report: Report) -> bool:
    """Whether operators have shapes in a report, the trace beside it, or as nsys' ranges name them."""
    if shapes_beside(report) is not None:
        return True
    if "op" in report.kinds:
        return report.table("op_detail").get_column("input_shapes").null_count() < report.kind("op").height
    names = report.seen("range").get_column("name").unique().cast(pl.String)
    return bool(names.str.contains(", sizes = [", literal=True).any())


def framework_recorded(report: Report) -> bool:
    """Whether the report has operators or Python functions."""
    return not {"op", "python"}.isdisjoint(report.kinds)


def named(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """Splits `pieces` of the host time of a thread by its innermost event; adds the name as `culprit`.

    `pieces` (start, end, and any other columns, which are kept) are sorted and disjoint.
    """
    things, functions = (events(report).select(_EVENT_COLUMNS) for events in (named_events, program_functions))
    cut = pieces
    for column, lines in zip(("what", "where"), _timelines(report), strict=True):
        cut = threads.overlaid(cut, threads.line_of(lines, key).rename({"row": column}), column)
    lost, inside = (cut.filter(side) for side in (pl.col("where").is_null(), pl.col("where").is_not_null()))
    what, where = rows_at(things, inside.get_column("what")), rows_at(functions, inside.get_column("where"))
    # the innermost event in the program's function, or that alone unless the event is inside it
    name = what.get_column("name").set(~_within(what, where).fill_null(value=False), None)
    pairs = pl.DataFrame([name.alias("a"), where.get_column("name").alias("b")])
    alone = pl.when(pl.col("a").is_null()).then(pl.col("b").cast(pl.String))
    inside = inside.with_columns(_texts(pairs, alone.otherwise(pl.format("{} in {}", "a", "b"))).alias("culprit"))
    # outside of the program's functions any other one counts
    python = _python(report).filter(threads.of_thread(key)).select(*THREAD, *_EVENT_COLUMNS)
    cut = threads.overlaid(
        lost, threads.line_of(threads.lines_near(python, lost), key).rename({"row": "function"}), "function"
    )
    what, function = rows_at(things, cut.get_column("what")), rows_at(python, cut.get_column("function"))
    in_function = what.get_column("start").is_null() | _within(function, what).fill_null(value=False)
    name = what.get_column("name").zip_with(~in_function, function.get_column("name"))
    parts = pl.concat([inside, cut.drop("function").with_columns(name.alias("culprit"))])
    parts = parts.select(*pieces.columns, "culprit")
    nameless = parts.filter(pl.col("culprit").is_null())
    if nameless.is_empty():
        return parts
    between = nameless.with_columns(neighbours(report, key, nameless).alias("culprit"))
    return pl.concat([parts.filter(pl.col("culprit").is_not_null()), between])


@once_per_process
def named_events(report: Report) -> pl.DataFrame:
    """Operators, annotations, modules and library functions that program code called, none of them a profiler step.

    Labels of an engine's steps have one name for each kind. Columns: process_id, thread_id, start, end, name; of events
    with equal times the last one is the innermost.
    """
    python, ranges = _python(report), report.kind("range")
    if (steps := names_by_kind(report)).height:
        one = pl.col("name").cast(pl.String).replace(steps.get_column("label"), steps.get_column("name"))
        ranges = ranges.with_columns(one.cast(pl.Categorical))
    inner = python.filter((pl.col("role") == "module") | called_by_program(python)).select(*THREAD, *_EVENT_COLUMNS)
    return pl.concat([_named(ranges), inner, _named(report.kind("op"))])


@once_per_process
def program_functions(report: Report) -> pl.DataFrame:
    """Python functions of the program itself, with the columns of :func:`named_events`."""
    return _python(report).filter(pl.col("role") == "program").select(*THREAD, *_EVENT_COLUMNS)


def _within(inner: pl.DataFrame, outer: pl.DataFrame) -> pl.Series:
    """Whether, of two events around an instant, `inner` is inside `outer`; null where either is missing."""
    later, sooner = (inner.get_column(side) for side in ("start", "end"))
    start, end = (outer.get_column(side) for side in ("start", "end"))
    return (later > start) | ((later == start) & (sooner < end))


@once_per_process
def _python(report: Report) -> pl.DataFrame:
    """All Python functions: event_id, parent_id, process_id, thread_id, start, end, role, name (as shown)."""
    events = report.kind("python")
    by_name = roles(events.get_column("name").unique())
    rows = events.join(by_name, on="name", how="left", nulls_equal=True, maintain_order="left")
    ids = ("event_id", "parent_id", *THREAD)
    return rows.select(*ids, **intervals.OF_EVENTS, role="role", name="shown").sort("event_id")


def _named(events: pl.DataFrame) -> pl.DataFrame:
    """Annotations or operators with a name, profiler steps left out: :data:`THREAD`, start, end, name."""
    names = events.get_column("name").unique()
    texts = names.cast(pl.String)
    others = names.filter(texts.is_null() | texts.str.starts_with(STEP_PREFIX))
    if len(others):
        events = events.filter(~pl.col("name").is_in(others.implode(), nulls_equal=True))
    return events.select(*THREAD, **intervals.OF_EVENTS, name="name")


@once_per_process
def _timelines(report: Report) -> list[dict[ThreadKey, pl.DataFrame]]:
    """Timelines of :func:`named_events` and of :func:`program_functions`, of what overlaps idle time of a device."""
    spans = [intervals.gaps(busy, intervals.BEFORE_ALL, intervals.AFTER_ALL) for busy in busy_spans(report).values()]
    idle = intervals.union(pl.concat([pl.DataFrame(schema=intervals.SPANS), *spans]))
    return [threads.lines_near(events(report), idle) for events in (named_events, program_functions)]


@once_per_process
def _neighbours(report: Report) -> dict[ThreadKey, pl.DataFrame]:
    """Host events and CUDA calls by thread, to look up neighbours in: start, end (the latest so far) and name.

    Sorted by start, the longest first.
    """
    calls = report.kind("api")
    names = _thread_timeline.shown_calls(report, calls.get_column("name")).alias("name")
    named_calls = calls.select(*THREAD, **intervals.OF_EVENTS).with_columns(names)
    parts = threads.by_thread(pl.concat([named_events(report), named_calls]))
    lines = ((key, in_order_of(part.drop(THREAD), ("start",), (-pl.col("end"),))) for key, part in parts.items())
    return {key: line.with_columns(pl.col("end").cum_max()) for key, line in lines}


def neighbours(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.Series:
    """Names intervals of a thread in no event by the events before and after them.

    Before: of those that started no later than the interval, the one that ended last, then the one that started first.
    After: the first to start once the interval has ended, of several the longest.
    """
    sides = _neighbours(report).get(key)
    if sides is None:
        return pl.Series([None], dtype=pl.Categorical).new_from_index(0, pieces.height)
    return _between(sides, pieces)


def between_calls(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.Series:
    """:func:`neighbours` among the CUDA calls alone."""
    thread, names = _thread_timeline.threads(report)[key], report.kind("api").get_column("name")
    low, high = pieces.select(pl.col("start").min(), pl.col("end").max()).row(0)
    # from the call that had returned last before the first piece to the first one after the last piece
    first = bisect_right(thread.rows, low, key=thread.starts.item)
    first = bisect_left(thread.reached, thread.reached.item(first - 1)) if first else 0
    stop = bisect_left(thread.rows, high, key=thread.starts.item) + 1
    rows, reached = (of.slice(first, stop - first) for of in (thread.rows, thread.reached))
    names = _thread_timeline.shown_calls(report, gathered(names, rows))
    return _between(pl.DataFrame({"start": gathered(thread.starts, rows), "end": reached, "name": names}), pieces)


def _between(sides: pl.DataFrame, pieces: pl.DataFrame) -> pl.Series:
    """Names pieces by their neighbours in `sides`, as of :func:`_neighbours`."""
    starts, reached, names = (sides.get_column(name) for name in ("start", "end", "name"))
    if names.has_nulls():
        names = names.cast(pl.String).fill_null("a call without a name").cast(pl.Categorical)
    latest = gathered(reached, nearest_place(starts, pieces.get_column("start")))
    at = {"a": nearest_place(reached, latest, later=True)}
    at["b"] = nearest_place(starts, pieces.get_column("end"), later=True)
    before, after_it = pl.format("before {}", "b"), pl.format("after {}", "a")
    text = pl.when(pl.col("a").is_null()).then(before).when(pl.col("b").is_null()).then(after_it)
    pairs = pl.DataFrame({side: gathered(names, rows) for side, rows in at.items()})
    return _texts(pairs, text.otherwise(pl.format("between {} and {}", "a", "b")))


def _texts(pairs: pl.DataFrame, text: pl.Expr) -> pl.Series:
    """The `text` of each row (a, b), which is made once for equal ones."""
    texts = pairs.unique(maintain_order=True).with_columns(text.cast(pl.Categorical).alias("text"))
    return pairs.join(texts, on=["a", "b"], how="left", nulls_equal=True, maintain_order="left").get_column("text")
