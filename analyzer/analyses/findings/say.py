"""Wording that findings share: figures per iteration, calls in the user's words, places in programs."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from string import Formatter
from typing import Any, Final

import polars as pl

from kanalyze import errors, intervals, units
from kanalyze.analyses.device._operations import compiled_kernels, exclusive_operations, facts_of, nearest_launches
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import WORDS, Finding, literal, one_line, row_of
from kanalyze.analyses.host import _range_lines, _thread_timeline
from kanalyze.analyses.host._call_kinds import JAX, PYTORCH, bucket_of, cuda_name, is_launch_name, world
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.idle.code import function_around, has_lines, place_at, placed_pieces, placed_with_text
from kanalyze.analyses.iterations._marks import LIBRARIES
from kanalyze.analyses.operators import _host_names, _host_tree, _work
from kanalyze.analyses.shared import analysis, threads
from kanalyze.columns import gathered, having
from kanalyze.decoder.decode import decode
from kanalyze.report import Report
from kanalyze.window import ALL_STEPS, PerIteration

_CALL: Final = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*")  # names of calls of CUDA and HIP
NAMED: Final = 3  # maximum number of calls, places, operations… that a sentence names
LOADS_NEXT: Final = "before loading of modules"  # the :func:`phase` before modules are loaded

#: Calls that take CUDA down, as a program does at its end.
_ENDING: Final = re.compile(
    r"cu(?:Library|Module)Unload|cu(?:Ctx|DevicePrimaryCtx)(?:Destroy|Release|Reset)|cudaDeviceReset"
)

#: Calls right before a launch, about the kernel or the stream that is launched.
_PREPARING: Final = re.compile(
    r"cuKernel[GS]et|cu(?:da)?Func[GS]et|cudaGetFuncBySymbol|cu(?:da)?Occupancy|cuTensorMapEncode"
    r"|cuda(?:StreamIsCapturing|StreamGetCaptureInfo|PeekAtLastError|GetLastError)"
)

#: Kinds of calls in the user's words, the most telling first: the host waits behind or before these.
_COPY: Final = re.compile(r"(?:cuda|cu)Memcpy")
_KINDS: Final = {
    "sync": "waits for the GPU",
    "copy": "copies",
    "allocation": "allocations",
    "loading": "loading of modules",
    "launch": "launches",
}


def per_iteration(report: Report) -> PerIteration:
    """How times and counts of the report's window are told."""
    window = report.scope.window
    if window is None or not window.count:
        return PerIteration(None, "")
    return PerIteration(window.count, literal(units.shortened(window.each or "iteration", 40)))


_NO_WORDS: Final = {**dict.fromkeys(("headline", "action", "remedy", "text"), ""), "table": "tree"}


class Figures(Formatter):
    """Fills figures into words, each in the unit that stands behind its name and a colon.

    ``ns``, ``each`` and ``mean`` are times, the latter per iteration, and ``times`` those of names; ``*copy`` is a
    number of copies per iteration, ``*copy|of arrays`` of copies of arrays, ``!copy|run`` of copies with their verb,
    and ``+copy`` one in all. What stands behind ``?`` is said where the figure is not 0, empty or None:
    ``{gone:?, {gone:*copy} less}``.
    """

    def __init__(self, report: Report) -> None:
        """For words on a report's window."""
        per = per_iteration(report)
        self._units: dict[str, Callable[[Any], str]] = {
            "ns": units.time,
            "each": per.time,
            "mean": per.mean_time,
            "times": lambda rows: ", ".join(f"{literal(name)} {per.mean_time(ns)}" for name, ns in rows),
            "share": units.percent,
            "size": units.size,
            "rate": units.rate,
            "hz": units.frequency,
            "name": literal,
        }
        self._numbers: dict[str, Callable[..., str]] = {"*": per.plural, "!": per.clause, "+": units.plural}

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 - of any type
        """One figure in its unit."""
        if format_spec.startswith("?"):
            return format_spec[1:] if value else ""
        if format_spec[:1] in self._numbers:
            return self._numbers[format_spec[0]](value, *format_spec[1:].split("|"))
        unit = self._units.get(format_spec)
        return unit(value) if unit else format(value, format_spec)


def told(
    report: Report,
    name: str,
    device: int,
    claims: pl.DataFrame | Sequence[pl.DataFrame] | None = None,
    at_stake_ns: int | None = None,
    /,
    **others: Any,  # noqa: ANN401 - of any field, and any figures
) -> Finding:
    """The finding on some time of a device (columns start, end), all of which is at stake unless told.

    Of several tables what two of them have counts once.

    Its `name` says which :func:`words_of` tell it; `others` are fields of :class:`Finding`, also in place of those, and
    the :class:`Figures` in them. The device and the time at stake are such, too.
    """
    parts = [claims] if isinstance(claims, pl.DataFrame) else [*(claims or ())]
    spans = pl.concat(part.select("start", "end") for part in parts) if parts else None
    spans = intervals.union(spans) if spans is not None and len(parts) > 1 else spans
    stake = intervals.length(spans) if at_stake_ns is None and spans is not None else at_stake_ns or 0
    own = {name: others.pop(name) for name in Finding._fields if name in others}
    filled = words_of(name, report, **{"device": device, "stake": stake, **others})
    return Finding(filled.pop("rule"), device, stake, **{**filled, "claims": spans, **own})


def words_of(name: str, report: Report, /, **figures: object) -> dict[str, str]:
    """Words of a row of words.toml, as :class:`Finding` calls them; in programs of PyTorch those for such, if any."""
    in_torch = WORDS["in PyTorch"].get(name, {}) if world(report) == PYTORCH else {}
    words, fill = {**_NO_WORDS, **row_of(name), **in_torch}, Figures(report)
    filled = {
        key: fill.format(text, **figures) for key, text in one_line({key: words[key] for key in _NO_WORDS}).items()
    }
    return {"rule": name.partition(":")[0], **filled}


#: A few events between phases are normal; from so many on, or in this part of a window's iterations, they are a loop's.
FEWEST: Final = 3
OFTEN: Final = 0.5

LAUNCH_NS: Final = 10_000  # an operator, or what takes the place of one, takes the host so long to launch, about


def sides_of(report: Report, device: int) -> tuple[int, int]:
    """When a device's window begins and ends."""
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    return int(low), int(high)


def of_window(report: Report, device: int, ns: int) -> str:
    """A time as a part of a device's window, with its time per iteration."""
    low, high = sides_of(report, device)
    per, share = per_iteration(report), units.percent(ns / max(high - low, 1))
    return f"{per.time(ns)}, {share} of it" if per.iterations else f"{share} of the window"


def fewest_in(report: Report) -> float:
    """How often something has to occur in the report's window to be a loop's."""
    window = report.scope.window
    return max(OFTEN * window.count, 1) if window is not None and window.count else FEWEST


def changes(keys: Iterable[str]) -> pl.Expr:
    """Whether a row differs from the one before it in any of some columns."""
    return pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in keys)


def idle_in(report: Report, device: int, *spans: pl.DataFrame) -> pl.DataFrame:
    """The idle time of a device in any of `spans` (start, end; unsorted), a span set."""
    every = pl.concat(part.select("start", "end") for part in spans)
    return intervals.intersect(intervals.union(every), idle_spans(report)[device])


def in_pytorch(report: Report) -> bool:
    """Whether the program used PyTorch: its user writes Python, not CUDA."""
    return world(report) == PYTORCH


#: What a kernel is written with, as far as its name tells: whose user can change what of it.
LIBRARY: Final = "library"
COMPILED: Final = "torch.compile"
TRITON: Final = "Triton"
CUDA: Final = "CUDA"


def written_with(report: Report, name: str) -> str:
    """Origin of a kernel: a library, torch.compile, CUDA, or Triton, whose names have no signature in PyTorch."""
    kernel = decode(name)
    if kernel.library is not None:
        return COMPILED if kernel.library == "inductor" else LIBRARY
    return {PYTORCH: TRITON, JAX: LIBRARY}.get(world(report), CUDA) if re.fullmatch(r"\w+", name) else CUDA


@analysis.once_per_report
def of_triton(report: Report) -> frozenset[str]:
    """Names of the kernels that a capture knows to be compiled by Triton."""
    try:
        return frozenset(compiled_kernels(report).filter(source="triton").get_column("name").cast(pl.String))
    except errors.KanalyzeError:  # which is noted where they are read for their own sake
        return frozenset()


def phase(culprit: str) -> str:
    """A culprit in the user's words: ``between launches``, ``while it waits for …``; others stay as they are."""
    calls = re.fullmatch(r"(?:between (\S+) and|after (\S+)|before) ?(\S+)?", culprit)
    if calls is None:
        return re.sub(f"^{_thread_timeline.WAIT}", "while it waits for ", culprit)
    before, after = calls[1] or calls[2], calls[3]
    if not all(_CALL.fullmatch(name) for name in (before, after) if name):
        return culprit
    if after and _ENDING.match(cuda_name(after)):
        return "at the end, before CUDA is taken down"
    kinds = [_kind(name) for name in (before, after)]
    if kinds[0] == kinds[1] == "launch":
        return "between launches"
    for kind, words in _KINDS.items():
        if kind in kinds:
            return f"{'after' if kinds[0] == kind else 'before'} {words}"
    return culprit


def _kind(call: str | None) -> str:
    """The kind of a call, of :data:`_KINDS`; another word for any other."""
    name = cuda_name(call or "")
    if _COPY.match(name):
        return "copy"
    if _PREPARING.match(name):
        return "launch"
    if (bucket := bucket_of(name)) != "api":
        return bucket
    return "launch" if is_launch_name(name) else bucket


#: Equal parts of a stretch that is not of iterations.
PARTS: Final = 8


def part_of(at: pl.Expr, low: pl.Expr | int, high: pl.Expr | int, number: int = PARTS) -> pl.Expr:
    """In which of `number` equal parts of the time from `low` to `high` each time `at` lies, from 0 on."""
    return (at - low) * number // pl.max_horizontal(high - low, 1)


def all_along(at: pl.Expr, low: pl.Expr | int, high: pl.Expr | int, number: int = PARTS) -> pl.Expr:
    """Whether the times `at` (nulls aside) lie in most of `number` equal parts of the time from `low` to `high`."""
    return part_of(at, low, high, number).clip(0, number - 1).drop_nulls().n_unique() >= 0.75 * number


#: What users write for an operator of PyTorch that makes the host wait.
_WRITTEN: Final = {
    "aten::item": ".item()",
    "aten::_local_scalar_dense": ".item()",
    "aten::is_nonzero": "a tensor as a condition",
    "aten::nonzero": "nonzero or a boolean mask",
    "aten::index": "a boolean mask",
    "aten::to": ".to(), .cpu() or .tolist()",
    "aten::copy_": "copy_()",
    "aten::equal": "torch.equal",
}


def sites(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """Surroundings of each of `points` (process_id, thread_id, at): one text, or null, in each column.

    operator: the outermost of PyTorch's own, with what users write for it; function and range: as :func:`_places`.
    """
    return _operators(report, points).hstack(_places(report, points))


def _places(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """The surroundings of points: one text, or null, in each column.

    function: the program's innermost one in Python; range: the innermost one, without steps of the framework's profiler
    and ranges of libraries.
    """
    ranges = gathered(range_names(report), _range_lines.ranges_at(report, points)).cast(pl.String).alias("range")
    others = [name for name in ranges.drop_nulls().unique() if name == ALL_STEPS or LIBRARIES.match(name)]
    return _functions(report, points).with_columns(ranges.set(ranges.is_in(others), None))


def sites_of_launches(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """The :func:`sites` of `points`, each within or right after a launch, or those of the same launch in the trace."""
    own = sites(report, points)
    trace = report.beside()
    if trace is None or not own.select(pl.all_horizontal(pl.col("operator", "function").is_null().all())).item():
        return own
    return own.with_columns(sites(trace, _host_names.launches_beside(report, points)).select("operator", "function"))


def site_text() -> pl.Expr:
    """The columns of :func:`sites` in one text: ``aten::item (.item()) in train.py(31): step``; null if all are."""
    where = pl.coalesce("function", "range")
    return pl.coalesce(pl.format("{} in {}", "operator", where), "operator", where)


def main_site(report: Report, points: pl.DataFrame) -> str:
    """The site, or the lines if recorded, of at least half of `points` (process_id, thread_id, at); empty if none."""
    if analysis.source_lines(report).height:
        each = place_at(report, points).alias("place").to_frame().group_by("place").agg(ns=pl.len())
        return literal(lines_of_most(report, each))
    return literal(most(sites(report, points).select(site=site_text()), "site", least=_MOST_OF_TIME))


def most(rows: pl.DataFrame, column: str, ns: str | None = None, least: float = 0) -> str:
    """The value with most rows, or most `ns`, and at least a part of `least`; of equals the last; empty for none."""
    amount = pl.len() if ns is None else pl.col(ns).sum()
    sums = rows.group_by(pl.col(column).cast(pl.String)).agg(amount=amount).sort("amount", column)
    return str(sums.filter(pl.col("amount") >= least * pl.col("amount").sum()).get_column(column).last() or "")


def _operators(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """The outermost operator of PyTorch's own around each of `points`, with what users write for it."""
    if "op" not in report.kinds:
        return pl.repeat(None, points.height, dtype=pl.String, eager=True).alias("operator").to_frame()
    tree = _host_tree.host_tree(report)
    names = tree.rows.get_column("name")
    own = tree.of_kinds("op") & having(names, "^aten::")
    around = gathered(names, tree.outermost(tree.innermost(points, own), own)).cast(pl.String).alias("name").to_frame()
    written = pl.col("name").replace_strict(_WRITTEN, default=None, return_dtype=pl.String)
    return around.select(operator=pl.coalesce(pl.format("{} ({})", "name", written), "name"))


def _functions(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """The program's innermost function around each of `points`; with the printing of a tensor, if it is in that."""
    if "python" not in report.kinds:
        return pl.repeat(None, points.height, dtype=pl.String, eager=True).alias("function").to_frame()
    tree = _host_tree.host_tree(report)
    names, python = tree.rows.get_column("name"), tree.of_kinds("python")
    shown = _range_lines.roles(names.filter(python).unique()).filter(role="program").select("name", "shown")
    innermost = tree.innermost(points, python & names.is_in(shown.get_column("name").implode()))
    around = gathered(names, innermost).alias("name").to_frame()
    around = around.join(shown, on="name", how="left", maintain_order="left")
    # the file of torch that makes texts of tensors
    printing = tree.innermost(points, python & having(names, r"torch/_tensor_str\.py\(")).is_not_null()
    text = pl.when(printing).then(pl.lit("print of a tensor in ")).otherwise(pl.lit(""))
    return around.select(function=text + pl.col("shown").cast(pl.String))


_MOST_OF_TIME: Final = 0.5  # a place is named if it has at least this share of the time


def place_of(report: Report, rows: pl.Series) -> str:
    """The program's function, or else the range, of most time of operations (rows), escaped; empty if none."""
    work = exclusive_operations(report).select("row", "exclusive_ns").filter(pl.col("row").is_in(rows.implode()))
    # of more operations than these, every second, third… is asked: what has most of the time, has most of theirs
    work = work.gather_every(work.height // (1 << 13) + 1)
    points = facts_of(report, work.get_column("row"), *threads.THREAD, "call_start").rename({"call_start": "at"})
    times = work.with_columns(_places(report, points).select(place=pl.coalesce("function", "range")))
    return literal(most(times, "place", "exclusive_ns", _MOST_OF_TIME))


def launch_before(report: Report, points: pl.DataFrame) -> pl.Series:
    """The end of the last launch that a process began before each point (process_id, at); null for none."""
    before = nearest_launches(report, points.select("process_id", "at"), "call_start", "call_ns")
    return before.select(returned=pl.col("call_start") + pl.col("call_ns").fill_null(0)).to_series()


def operator_of(report: Report, chosen: pl.Expr) -> str:
    """The outermost operator of most time of the `chosen` rows of ``exclusive_operations``; empty without operators."""
    if "op" not in report.kinds:
        return ""
    work, tree = _work.launched_work(report).filter(chosen), _host_tree.host_tree(report)
    rows, operators = work.get_column("operator"), tree.of_kinds("op")
    rows = tree.outermost(rows.set(~gathered(operators, rows).fill_null(value=False), None), operators)
    names = gathered(tree.rows.get_column("name"), rows).cast(pl.String).alias("operator")
    times = work.select("exclusive_ns").with_columns(names).drop_nulls()
    return literal(most(times, "operator", "exclusive_ns").removeprefix(f"{_host_tree.NODE}: "))


def by_device(rows: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of each device, in order of first rows."""
    for own in rows.partition_by("device", maintain_order=True):
        yield int(own.item(0, "device")), own


# The line of the program that the time of a finding comes from.

_TOGETHER: Final = 10  # lines of one function are told together where they are no further apart

#: What a rule says where a call stack or a trace told it the line: ``train.py:31``, ``train.py(31): step``.
_HAS_LINE: Final = re.compile(r"\.\w+:\d+(?:-\d+)?$|\(\d+\)")


def with_lines(report: Report, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that claim time with the line of the program that most of it comes from."""
    return [
        finding
        if finding.claims is None or _HAS_LINE.search(finding.where) or not has_lines(report)
        else finding._replace(line=literal(line_of(report, finding)))
        for finding in findings
    ]


def line_of(report: Report, finding: Finding) -> str:
    """The line with at least half of the time that a finding claims, or lines: ``model.py:41-43``; empty for none.

    Where the host takes the time, and a function calls others for it, as a loop does, that function.
    """
    pieces, ns = claimed(report, finding), pl.col("ns").sum()
    own = pieces.filter("own")
    # where the lines of its own threads are known for this part of its time, that of others does not count, which goes
    # to the line that the main thread was in: ``loss.backward()`` is the line of all that autograd does
    counted = own if own.select(ns).item() >= 0.05 * pieces.select(ns).item() else pieces
    if line := lines_of_most(report, counted.group_by("place").agg(ns)):
        return line
    host = pieces.filter(pl.col("part") != "work")
    if host.select(ns).item() < _MOST_OF_TIME * pieces.select(ns).item():
        return ""
    return function_around(report, intervals.union(host.select("start", "end")))


def lines_of_most(report: Report, sums: pl.DataFrame) -> str:
    """The line, or the lines close to each other, with at least half of some time by place (place, ns)."""
    least = _MOST_OF_TIME * int(sums.get_column("ns").sum())
    order = sums.drop_nulls("place").sort("ns", "place", descending=[True, False])
    for _, own in placed_with_text(report, order).group_by("file", "function", maintain_order=True):
        needed = own.filter(pl.col("ns").cum_sum().shift(1, fill_value=0) < least).sort("line")
        first, last = (int(needed.item(at, "line")) for at in (0, -1))
        if needed.get_column("ns").sum() >= least and last - first <= _TOGETHER:
            return f"{needed.item(0, 'place')}{f'-{last}' if last > first else ''}"
    return ""


def claimed(report: Report, finding: Finding) -> pl.DataFrame:
    """The pieces of its device's time that a finding claims: start, end, ns (of that time), part, place, own."""
    if finding.claims is None:
        return placed_pieces(report).drop("device").clear()
    pieces = placed_pieces(report).filter(pl.col("device") == finding.device).drop("device")
    start, end = pieces.get_column("start"), pieces.get_column("end")
    inside = intervals.overlap(start, end, intervals.union(finding.claims.select("start", "end")))
    # of operations that run beside others only a part of their time counts
    part = pieces.get_column("ns") * (inside / (end - start))
    return pieces.with_columns(part.cast(pl.Int64).alias("ns")).filter(pl.col("ns") > 0)
