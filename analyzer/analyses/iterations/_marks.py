"""Iterations by the program's own marks: steps of the framework's profiler, the range that repeats, or noted loops.

Definitions: docs/definitions.md, section 4, "Iterations".
"""

import re
from typing import Final, NamedTuple

import polars as pl

from kanalyze import columns, window
from kanalyze.analyses.device._operations import families, operations
from kanalyze.analyses.host.engine_marks import IDLE, engine_marks
from kanalyze.analyses.ranges.instances import compile_spans, while_compiling
from kanalyze.analyses.shared.analysis import loop_passes, named_ranges, once_per_process, source_lines
from kanalyze.analyses.shared.threads import THREAD, outermost
from kanalyze.report import Report

#: What counts as nearly all of something, many, most of it, and half; and how far sizes may be apart that are nearly
#: equal.
NEARLY_ALL: Final = 0.9
MANY: Final = 0.8
MOSTLY: Final = 2 / 3
HALF: Final = 0.5
NEAR: Final = 0.1

#: Fewest instances of a range that repeats, and of one that is preferred to the ranges inside it.
_FEWEST: Final = 3
_OFTEN: Final = 5

#: Levels of ranges inside ranges that are looked at.
_LEVELS: Final = 4

#: Least part of a process' device time that iterations told by ranges have launched: a program may check, or warm up,
#: longer than it does what it marks.
_LEAST: Final = 0.05

#: Least part of an iteration's kernel time, in the mean, in kernels that at least half of the iterations run. Below it
#: they are different programs, such as the variants that a benchmark goes through.
_ALIKE: Final = 0.75

#: Families of which another kernel, by name, does the same for another shape.
_CHOSEN_BY_SHAPE: Final = ("gemm", "conv", "attention")

#: Numbers other than zero. Ranges that differ in which of their numbers are zero, as those of a server do in how many
#: tokens are new and how many cached, are of two kinds if they launch half as much again, in the median.
SOME: Final = r"\d*[1-9]\d*"

#: Ranges that libraries make of their own calls, XLA also of modules (but not the steps that a JAX program numbers) and
#: torch.compile of compiled code, and operators that PyTorch marks: no loop of the program.
LIBRARIES: Final = re.compile(
    r"^(?:(?i:(?:lib)?(?:NCCL|RCCL|CCCL|Thrust|CUB|cuBLAS\w*|cuDNN\w*|cuSPARSE\w*|cuFFT\w*|cuSOLVER\w*|cuRAND\w*|cuTENSOR\w*"
    r"|NVSHMEM)):|\w*:?(?:nccl|gloo):|TSL:(?!.*#(?:.*,)?step_num=)"
    r"|:?(?:## Call CompiledFxGraph|Torch-Compiled Region|CompiledFunction(?:Backward)?\b|TorchDynamo Cache Lookup"
    r"|Pregraph bytecode|AOTDispatcher Runtime Wrapper)|.* \(dynamo_timed\)$"
    r"|:(?:(?:nccl|nvshmem|cublas|cudnn|cusparse|cufft|cusolver|curand|cutensor)[A-Z_]\w*|(?:cub|thrust|cuda)::.*)(?:\(.*)?$)"
)
_OPERATORS: Final = r"^:?(?:aten|autograd|prims|c10d|nccl)::"

#: Domain of XLA, in which JAX marks a program's steps as ``train#step_num=5#``.
_JAX: Final = "TSL:"

#: Names of steps: what repeats within one is a layer, be the step the only one. A step of an optimizer is a part.
_ONE_STEP: Final = re.compile(
    r"(?i)(?!.*(?:optim|opt[_. ]|sched|scaler)).*?(?:^|[^a-z])(?:step|iteration|iter|batch)[\W\d_]*(?:[\[(#].*)?$"
)

#: A number in the path of a model's part, as in ``layers.3.mlp``, is a place and counts nothing.
_PATH: Final = r"[A-Za-z_]\.\d+(?:\.|$)"

#: Names of what holds many iterations.
_HOLDS_MANY: Final = re.compile(r"epoch|train(?:ing)?[ _]?loop", re.IGNORECASE)

#: What an iteration told by steps of a profiler is called, and one of several ranges side by side.
STEP: Final = "step"
ITERATION: Final = "iteration"
#: Of launches; those of a process' further loops have the loop's number.
REPETITION: Final = "repetition"
#: Of the program's own loop; those of its further loops have the loop's place.
OF_LOOP: Final = "pass"

BY_ENGINE: Final = "engine steps"
BY_STEPS: Final = "profiler steps"
BY_RANGES: Final = "ranges"
BY_LOOPS: Final = "loop"
BY_LAUNCHES: Final = "launches"

#: So many loops are looked at of a report, those with fewest passes first: the outermost have few.
_MOST_LOOPS: Final = 256
_PASSES: Final = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "name": pl.String}

#: The columns of iterations before they are judged. `own_end` is the end of the mark itself, or of the last launch;
#: `end` the start of the next iteration where one `follows`, else the end of the iteration's work.
SPANS: Final = {
    **dict.fromkeys(("process_id", "start", "end", "own_end"), pl.Int64),
    "follows": pl.Boolean,
    **dict.fromkeys(("name", "window"), pl.String),
    "open": pl.Boolean,
    "found_by": pl.String,
}
_MARKED: Final = {**SPANS, "alike": pl.Boolean}

_COMPUTES: Final = pl.col("bucket").is_in(["kernel", "communication"])

#: Durations of :func:`launched_work`: of all, of kernels and whole graphs, and of all but communication.
_TIMES: Final = {
    "device_ns": pl.col("ns"),
    "kernels_ns": pl.col("ns") * _COMPUTES,
    "work_ns": pl.col("ns") * (pl.col("bucket") != "communication"),
}


@once_per_process
def marked_iterations(report: Report) -> pl.DataFrame:
    """The iterations of each process that has marks: :data:`SPANS`, disjoint, sorted by process and start.

    Column alike says whether those of one name run the same kernels; of steps of a profiler it is not asked.
    """
    marks = {
        _of_engine: engine_marks(report),
        _of_steps: report.steps(),
        _of_ranges: _repeating(report),
        _of_loops: passes(report),
    }
    by_process: dict[object, pl.DataFrame] = {}
    marked = any(rows.height for rows in marks.values())
    work = without_trials(report, launched_work(report, "thread_id")) if marked else pl.DataFrame()
    for make, rows in marks.items():
        for (process,), part in rows.partition_by("process_id", as_dict=True, maintain_order=True).items():
            if process not in by_process or by_process[process].is_empty():
                by_process[process] = make(process, part, work_of(work, process))
    return pl.concat([pl.DataFrame(schema=_MARKED), *by_process.values()]).sort("process_id", "start")


def launched_work(report: Report, *facts: str) -> pl.DataFrame:
    """The operations of all processes, sorted by launch; not kept, since they would take a tenth of a page's memory.

    Columns: process_id, at (start of the launching call; of an operation without one its own start), end, name, bucket,
    ns (duration), and `facts` of operations.
    """
    length, at = (pl.col("end") - pl.col("start")).clip(lower_bound=0), pl.coalesce("call_start", "start")
    work = operations(report, "call_start", *facts)
    return work.select("process_id", "end", "name", "bucket", *facts, at=at, ns=length).sort("at")


def without_trials(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Operations (:data:`THREAD`, at) but for those of threads that compile; all of a process without others."""
    if compile_spans(report).is_empty():
        return work
    tried = while_compiling(report, work.select(*THREAD, start="at", end=pl.col("at") + 1))
    by_program = work.with_columns(tried=tried).filter(~pl.col("tried") | pl.col("tried").all().over("process_id"))
    return by_program.drop("tried")


def of_process(process: object) -> pl.Expr:
    """Whether a row is of a process, which may be unknown."""
    return pl.col("process_id").eq_missing(pl.lit(process, dtype=pl.Int64))


def work_of(work: pl.DataFrame, process: object) -> pl.DataFrame:
    """The rows of a process of :func:`launched_work`; `work` itself where all are its own."""
    own = of_process(process)
    return work if work.select(own.all()).item() else work.filter(own)


def work_in(spans: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The operations launched in each of `spans` (start, end): columns operations, device_ns, kernels_ns and work_ns.

    `work` are rows of :func:`launched_work` of the spans' process.
    """
    zero = pl.DataFrame({name: [0] for name in _TIMES}, schema=dict.fromkeys(_TIMES, pl.Int64))
    sums = pl.concat([zero, work.select(ns.cum_sum().alias(name) for name, ns in _TIMES.items())])
    at = work.get_column("at")
    first, last = (at.search_sorted(spans.get_column(side), side="left") for side in ("start", "end"))
    last = last.zip_with(last > first, first)
    lengths = sums.select(pl.all().gather(last) - pl.all().gather(first))
    return lengths.select((last.cast(pl.Int64) - first.cast(pl.Int64)).alias("operations"), pl.all())


def _of_steps(process: object, steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Iterations of the framework's profiler, which are told apart by their numbers."""
    number, ordinal = pl.format("step:{}", "step"), pl.int_range(1, pl.len() + 1).over("step")
    twice = pl.when(pl.len().over("step") > 1).then(pl.format("{}#{}", number, ordinal)).otherwise(number)
    line = steps.sort("start", "event_id")
    rows = _spans(line, STEP, BY_STEPS).with_columns(line.select(window=twice).to_series())
    return adjoined(process, rows, work).with_columns(alike=pl.lit(value=True))


def _of_engine(process: object, steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Steps of a serving engine, each called by its kind: ``decode step``; of no request there is none."""
    line = outermost(steps.filter(pl.col("kind") != IDLE), "process_id")
    rows = _spans(line, STEP, BY_ENGINE, "open").with_columns(name=line.get_column("kind") + f" {STEP}")
    return adjoined(process, rows, work).with_columns(alike=pl.lit(value=True))


def _of_loops(process: object, loops: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The iterations of one process by its outermost loop, whose passes launched most of the work since it began.

    Before that a program may choose kernels by running many of them.
    """
    rare = pl.len().over(*THREAD, "name") < _OFTEN
    rows = loops.with_columns(open=pl.lit(value=False), step=pl.lit(value=False), rare=rare, zeros="name").filter(~rare)
    iterations = _of_ranges(process, rows, work)
    heaviest = work_in(iterations, work).select("device_ns").hstack(iterations.select("name", "start"))
    sums = heaviest.group_by("name").agg(pl.col("device_ns").sum(), pl.col("start").min()).sort("device_ns", "name")
    main, begun = sums.select("name", "start").row(-1) if sums.height else ("", 0)
    since = work.filter(pl.col("at") >= begun)
    covered = int(heaviest.filter(pl.col("start") >= begun).get_column("device_ns").sum())
    enough = iterations if covered >= HALF * int(since.get_column("ns").sum()) else iterations.clear()
    named = pl.format("{} of {}", pl.lit(OF_LOOP), "name")
    each = pl.when(pl.col("name") == main).then(pl.lit(OF_LOOP)).otherwise(named)
    return enough.with_columns(name=each, found_by=pl.format("{} {}", pl.lit(BY_LOOPS), "name"))


def passes(report: Report) -> pl.DataFrame:
    """Each pass of a loop of the program from the second on: process_id, thread_id, start, end, name (``train.py:28``).

    A pass ends where the next one begins. From the last one of a run of the loop to the next run is none: a loop around
    it begins a pass of its own there. A loop that goes round several times in most passes of another thread's has none:
    it is a part of that one, as layers are that autograd's thread computes again. A generator's loop is around none, as
    one that goes through the data again and again is in the loop that asks for them.
    """
    place = pl.format("{}:{}", "file", "line")
    named = loop_passes(report).select(*THREAD, start="time_ns", name=place).sort(*THREAD, "start")
    timed = named.with_columns(end=pl.col("start").shift(-1).over(*THREAD, "name"))
    loops = timed.partition_by(*THREAD, "name", maintain_order=True, as_dict=True)
    others: dict[object, list[tuple[object, pl.Series]]] = {}
    kept, generators = [pl.DataFrame(schema=_PASSES)], _in_generators(report)
    every = sorted(loops.items(), key=lambda one: one[1].height)[:_MOST_LOOPS]
    for (process, thread, name), loop in every:
        around, starts = others.setdefault(process, []), loop.get_column("start")
        own, inside = loop.drop_nulls("end"), [pl.lit(value=True)]
        for other, begins in around:  # whether the loop runs within most passes of that one
            spans = pl.DataFrame([begins.alias("start"), begins.shift(-1).alias("end")]).drop_nulls()
            begun, same = _begun_in(spans, starts), other == thread
            if (same or spans.height >= _OFTEN) and 2 * int((begun > (0 if same else 1)).sum()) > spans.height:
                inside.append(pl.lit(_begun_in(own, begins) == 0) if same else pl.lit(value=False))
        if name in generators:
            asking = [one["start"] for key, one in every if key[:2] == (process, thread) and key[2] not in generators]
            inside += [pl.lit(value=2 * int((_begun_in(own, begins) > 0).sum()) <= own.height) for begins in asking]
        else:
            around.append((thread, starts))
        kept.append(own.filter(pl.all_horizontal(inside)))
    return pl.concat([part.select([*_PASSES]) for part in kept]).sort(*THREAD, "start")


def _in_generators(report: Report) -> pl.Series:
    """Lines of generators, as passes are named by them."""
    lines = source_lines(report).select("file", "function", "line", "text").unique()
    code = pl.col("text").cast(pl.String).str.replace_all(r"\"[^\"]*\"|'[^']*'|#.*", "")
    yields = lines.filter(code.str.contains(r"(?:^|[=(:;,])\s*yield\b"))
    inner = lines.join(yields, on=["file", "function"], how="semi")
    return inner.select(pl.format("{}:{}", "file", "line")).to_series()


def _begun_in(spans: pl.DataFrame, times: pl.Series) -> pl.Series:
    """How many of the sorted `times` lie in each of the spans (start, end), their ends left out."""
    first, stop = (times.search_sorted(spans.get_column(side), side="right") for side in ("start", "end"))
    return stop.cast(pl.Int64) - first.cast(pl.Int64)


def _repeating(report: Report) -> pl.DataFrame:
    """The ranges that repeat: :data:`THREAD`, start, end, name (numbers masked where they differ), open, rare, zeros.

    Those that are a `step` by their name also where they are `rare`. `zeros` is the name with no zero masked.
    """
    ranges = named_ranges(report).filter((pl.col("end") > pl.col("start")) & (pl.col("name").fill_null("") != ""))
    bare = window.without_ids(pl.col("range"))
    operators = bare.str.contains(_OPERATORS) | (bare != pl.col("range"))
    texts = ranges.select("range").unique().filter(~operators)  # far fewer than ranges, usually
    own = [name for name in texts.get_column("range") if not LIBRARIES.match(name)]
    name, path = pl.col("range"), pl.col("range").str.contains(_PATH)
    alike = texts.filter(name.is_in(own)).with_columns(
        alike=pl.when(path).then(name).otherwise(name.str.replace_all(window.NUMBER.pattern, "#")),
        zeros=pl.when(path).then(name).otherwise(name.str.replace_all(SOME, "#")),
    )
    named = ranges.select(*THREAD, "start", "end", "open", "range").join(alike, on="range", maintain_order="left")
    often = named.rename({"range": "name"}).with_columns(rare=pl.len().over(*THREAD, "alike") < _FEWEST)
    often = often.with_columns(step=pl.col("name").is_in([name for name in own if _ONE_STEP.match(name)]))
    often = often.filter(~pl.col("rare") | pl.col("step"))
    one = pl.col("name").n_unique().over(*THREAD, "alike") == 1
    return often.with_columns(name=pl.when(one).then("name").otherwise("alike")).drop("alike")


def _of_ranges(process: object, ranges: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The iterations of one process by the outermost range that repeats and has launched most of its device time."""
    whole = int(work.get_column("ns").sum())
    launched = _by_zeros(ranges.with_columns(work_in(ranges, work).get_column("device_ns")))
    heavy = pl.col("device_ns").sum().over(*THREAD, "name") >= HALF * whole
    levels = _levels(_without_parts(launched.filter(~pl.col("rare") | heavy)))
    if not levels or not whole:
        return pl.DataFrame(schema=_MARKED)
    chosen = levels[0]
    for inner in levels[1:]:
        chosen = inner if _is_loop_of(inner, chosen) else chosen
    spans = adjoined(process, pl.concat([chosen.rows, *chosen.others]), work)
    alike = [name for (name,), part in spans.partition_by("name", as_dict=True).items() if _same_kernels(part, work)]
    covered = int(work_in(spans, work).get_column("device_ns").sum())
    spans = spans.with_columns(alike=pl.col("name").is_in(alike))
    return spans if covered >= _LEAST * whole else spans.clear()


def _without_parts(ranges: pl.DataFrame) -> pl.DataFrame:
    """The ranges without those whose name occurs in a step by its name: what repeats in one is a layer, wherever it is.

    Steps that launched nothing tell nothing.
    """
    steps = ranges.filter(pl.col("step") & (pl.col("device_ns") > 0))
    around = columns.nearest(ranges, outermost(steps).select(*THREAD, "start", until="end"), ("start", "start"), THREAD)
    inside = around.filter((pl.col("end") <= pl.col("until")) & ~pl.col("step"))
    return ranges.join(inside, on=[*THREAD, "name"], how="anti", nulls_equal=True)


def _by_zeros(ranges: pl.DataFrame) -> pl.DataFrame:
    """The ranges (with device_ns), named with the zeros in their names where these make two kinds."""
    kind = [*THREAD, "name", "zeros"]
    usual = pl.when(pl.len().over(kind) >= _FEWEST).then(pl.col("device_ns").median().over(kind))
    least, most = (side.over(*THREAD, "name") for side in (pl.col("usual").min(), pl.col("usual").max()))
    name = pl.when(most > 1.5 * least).then("zeros").otherwise("name")
    return ranges.with_columns(usual=usual).with_columns(name=name).drop("usual", "zeros")


def _same_kernels(iterations: pl.DataFrame, work: pl.DataFrame) -> bool:
    """Whether the iterations of one name run the same kernels, by :data:`_ALIKE`; also where they run none."""
    kernels = work.filter(_COMPUTES & (pl.col("ns") > 0))
    place = columns.nearest_place(iterations.get_column("start"), kernels.get_column("at")).alias("place")
    inside = kernels.get_column("at") < columns.gathered(iterations.get_column("own_end"), place)
    launched = kernels.select("name", "ns", place).filter(inside).group_by("place", "name").agg(pl.col("ns").sum())
    names = launched.get_column("name").unique()
    does = pl.when(pl.col("family").is_in(_CHOSEN_BY_SHAPE)).then("family").otherwise(pl.col("name").cast(pl.String))
    kinds = pl.DataFrame([names, families(names)]).select("name", does=does.rank("dense"))
    times = launched.join(kinds, on="name").group_by("place", "does").agg(pl.col("ns").sum())
    usual = 2 * pl.len().over("does") >= pl.col("place").n_unique()
    share = pl.col("ns").filter("usual").sum() / pl.col("ns").sum()
    parts = times.with_columns(usual=usual).group_by("place").agg(share)
    return parts.is_empty() or parts.select(pl.col("ns").mean()).item() >= _ALIKE


class _Level(NamedTuple):
    """The ranges of one thread that lie in no other one, but for those of the levels before, as iterations.

    `rows` are not adjoined yet and have launched `device_ns`; `others` are ranges beside them that repeat, another
    number of times.
    """

    rows: pl.DataFrame
    others: list[pl.DataFrame]
    device_ns: int


def _levels(ranges: pl.DataFrame) -> list[_Level]:
    """The outermost ranges, those inside them, and so on: one level each."""
    levels: list[_Level] = []
    for _ in range(_LEVELS if ranges.height else 0):
        outer = outermost(ranges)
        repeated = outer.filter((pl.len().over(*THREAD, "name") >= _FEWEST) | pl.col("rare"))
        levels += [_level(repeated)] if repeated.height else []
        ranges = ranges.join(outer.select(*THREAD, "name").unique(), on=[*THREAD, "name"], how="anti", nulls_equal=True)
    return levels


def _is_loop_of(inner: _Level, outer: _Level) -> bool:
    """Whether the ranges inside others are the program's loop, and the outer ones hold many iterations of it.

    So it is where the outer ones hardly repeat, are epochs by their name, or hold the inner ones in varying number, as
    requests do the tokens that they ask for; layers of a network are always as many.
    """
    name = str(outer.rows.item(0, "name"))
    if inner.rows.height < 2 * outer.rows.height or inner.device_ns < HALF * outer.device_ns:
        return False
    if _HOLDS_MANY.search(name):
        return True
    if outer.rows.height < _OFTEN:
        return inner.device_ns >= NEARLY_ALL * outer.device_ns
    starts = inner.rows.get_column("start")
    begun, ended = (starts.search_sorted(outer.rows.get_column(side), side="left") for side in ("start", "own_end"))
    return int((ended - begun).cast(pl.Int64).n_unique()) > 2  # noqa: PLR2004 - one that is cut may hold fewer


def _level(ranges: pl.DataFrame) -> _Level:
    """Of ranges side by side the name that has launched most; of the phases of one iteration, all from the first on."""
    count, first = pl.len().cast(pl.Int64).alias("count"), pl.col("start").min().alias("first")
    sums = ranges.group_by(*THREAD, "name").agg(pl.col("device_ns").sum(), count, first)
    best = sums.sort("device_ns", "count", "name", descending=[True, True, False]).head(1)
    own, sums = (rows.join(best, on=THREAD, how="semi", nulls_equal=True) for rows in (ranges, sums))
    heaviest, often, most = best.select("name", "count", "device_ns").row(0)
    in_turn = (pl.col("count") - often).abs() <= 1
    turns = [one for one in sums.filter(in_turn).get_column("name") if _take_turns(own, one, heaviest)]
    phases = sums.filter(pl.col("name").is_in(turns)).sort("first", "name")
    whole = int(phases.get_column("device_ns").sum())
    beside = [*sums.filter(~pl.col("name").is_in(turns), pl.col("device_ns") > 0).sort("first").get_column("name")]
    if most >= NEARLY_ALL * whole and not _of_framework(heaviest):
        return _Level(_rows(own, heaviest), [_rows(own, one) for one in beside], most)
    name, last = phases.item(0, "name"), phases.item(-1, "name")
    rows = _rows(own, name)
    if name != last and not _of_framework(name):
        found_by = f"{BY_RANGES} {called(name)} to {called(last)}"
        rows = rows.with_columns(name=pl.lit(ITERATION), found_by=pl.lit(found_by))
        beside = [one for one in beside if not _between_phases(own, one, name, last)]
    # each ends with the last phase that begins in it
    ranges = own.filter(pl.col("name").is_in(turns))
    place = columns.nearest_place(rows.get_column("start"), ranges.get_column("start"))
    ends = ranges.select("end", at=place).group_by("at").agg(pl.col("end").max())
    rows = rows.with_row_index("at").join(ends, on="at", how="left", maintain_order="left")
    rows = rows.with_columns(own_end=pl.coalesce("end", "own_end")).drop("at", "end")
    return _Level(rows, [_rows(own, one) for one in beside], whole)


def _take_turns(ranges: pl.DataFrame, one: str, other: str) -> bool:
    """Whether ranges of two names follow each other in turn, but for one: a loop after another has no phases of it."""
    both = ranges.filter(pl.col("name").is_in([one, other])).sort("start").get_column("name")
    return one == other or int((both == both.shift(1)).sum()) <= 1


def _between_phases(ranges: pl.DataFrame, name: str, first: str, last: str) -> bool:
    """Whether each range of a name begins after the first phase of an iteration and before its last: it is a part."""
    starts = {one: ranges.filter(pl.col("name") == one).get_column("start").sort() for one in (name, first, last)}
    begun, ended = (starts[one].search_sorted(starts[name], side="right") for one in (first, last))
    return bool((begun.cast(pl.Int64) - ended.cast(pl.Int64) == 1).all())


def _of_framework(name: str) -> bool:
    """Whether PyTorch makes a range of this name inside of each step."""
    return name.lstrip(":").startswith(("enumerate(DataLoader)", "Optimizer."))


def called(name: str) -> str:
    """Name of an iteration that begins with a range of this name."""
    bare = name.removeprefix(_JAX).partition("#")[0] if name.startswith(_JAX) else window.plain(name)
    return STEP if _of_framework(name) else bare.rstrip(window.BEFORE_NUMBER) or bare or name


def _rows(ranges: pl.DataFrame, name: str) -> pl.DataFrame:
    """The ranges of one name, as iterations that are not adjoined yet."""
    return _spans(ranges.filter(pl.col("name") == name).sort("start"), called(name), BY_RANGES, "open")


def _spans(marks: pl.DataFrame, each: str, found_by: str, is_open: str | None = None) -> pl.DataFrame:
    """Marks (start, end) as iterations that are not adjoined yet."""
    return marks.select(
        "start",
        own_end="end",
        name=pl.lit(each),
        window=pl.lit(None, dtype=pl.String),
        open=is_open or pl.lit(value=False),
        found_by=pl.lit(found_by),
    )


def adjoined(process: object, rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Extends each iteration (start, own_end…) to the start of the next one, or to the end of its work; :data:`SPANS`.

    The end of its work is that of the last operation launched in it, or `own_end` where that is later. So it ends where
    none follows or a pause does: from then to the next start passes more than usually from `own_end`. `work` are rows
    of :func:`launched_work` of the process. A mark that reaches into the next one ends there.
    """
    rows = rows.sort("start").with_row_index("place")
    place = columns.nearest_place(rows.get_column("start"), work.get_column("at")).alias("place")
    until = columns.gathered(rows.get_column("own_end"), place)
    inside = work.select("end", place).filter(work.get_column("at") < until)
    marks = rows.join(inside.group_by("place").agg(done=pl.col("end").max()), on="place", how="left").sort("place")
    following, done = pl.col("start").shift(-1), pl.max_horizontal("own_end", "done")
    distance, period = (following - pl.col("own_end")).clip(lower_bound=0), following - pl.col("start")
    usual = distance.median() + HALF * period.median()
    limit = pl.coalesce(usual.over("name"), usual)  # a loop after another one is told by its own times
    follows = (following - done <= limit).fill_null(value=False)
    marks = marks.with_columns(follows=follows, process_id=pl.lit(process, pl.Int64))
    return marks.with_columns(end=pl.when("follows").then(following).otherwise(done)).select(list(SPANS))
