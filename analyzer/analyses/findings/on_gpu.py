"""Operations that rules choose by name, operator and place on their stream; findings on these, and their remedies."""

from collections.abc import Callable, Iterator
from functools import update_wrapper
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import intervals, units
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, launch_rows, with_facts
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, phrases, row_of
from kanalyze.analyses.findings.say import per_iteration, place_of, told
from kanalyze.analyses.host._call_kinds import PYTORCH, spoken
from kanalyze.analyses.launches._launch_costs import graph_operations, has_graphs
from kanalyze.analyses.operators import _host_names, _host_tree, _work, fusion
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import as_of, gathered, having, in_order, positions, sure
from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import TENSOR_TYPES
from kanalyze.report import Report

#: Parts of the kernel time: fewer products of a kind, and sums by atomics, are in well-made programs, too.
WORTH_PRODUCTS: Final = 0.01
WORTH_SUMS: Final = 0.08

#: What is left of kernels that read and write half of the bytes, as in float32 in place of float64.
HALF_LEFT: Final = 0.5

#: Peak rates of float32 over TF32, dense, by compute capability: what is left of products at their roof. Source:
#: NVIDIA's datasheets of A100 (19.5, 156 TFLOP/s) and H100 SXM (66.9, 494.7).
TF32_LEFT: Final = {(8, 0): 19.5 / 156, (9, 0): 66.9 / 494.7}

#: The part of the peak in TF32 that products reach where those in full float32, or float64, reach theirs.
OF_PEAK: Final = 2 / 3

#: What kernels of each kind reach of their roof where nothing is wrong with them: benchmarks on an H100.
REACHED: Final = {"products": 0.75, "memory": 0.8}

#: The `sides` of a product (:func:`kanalyze.analyses.work.work.operations_with_roofs`): of row-major tensors M are the
#: rows. Elements of its result, and the product in words: ``[8192, 768] × [768, 50257]``.
N, M, K, BATCH = (pl.col("sides").list.get(at) for at in range(4))
RESULT_ELEMENTS: Final = N * M * BATCH
_EACH: Final = pl.when(BATCH > 1).then(pl.format("{}, ", BATCH)).otherwise(pl.lit(""))
PRODUCT: Final = pl.format("[{}{}, {}] × [{}{}, {}]", _EACH, M, K, _EACH, K, N)

SHORTEST_NS: Final = 5000  # shorter kernels wait for latencies rather than for arithmetic or memory
LEAST_NS: Final = 2000  # what a kernel takes that does next to nothing, about: no remedy makes one shorter

#: What decoded names of kernels say (:class:`kanalyze.decoder.fields.KernelName`), in expressions that choose kernels:
#: texts, empty for what a name does not say; `inputs` has the types of all inputs, such as ``bf16/bf16``.
FAMILY: Final = pl.col("family")
LIBRARY: Final = pl.col("library")
OPERATION: Final = pl.col("operation")
INPUTS: Final = pl.col("inputs")
OUTPUT: Final = pl.col("output_type")
_FIELDS: Final = (
    *("family", "library", "operation", "function", "functor", "direction", "layout", "arch"),
    *("output_type", "accumulator_type"),
)

#: Types of tensor cores among those of inputs.
TENSOR_TYPED: Final = INPUTS.str.contains(rf"(?:^|/)(?:{'|'.join(TENSOR_TYPES)})(?:/|$)")

#: Kernels that torch.compile made, and conversions of images by cuDNN, which are not in channels_last then.
COMPILED_KERNELS: Final = LIBRARY == "inductor"
LAYOUTS: Final = (LIBRARY == "cudnn") & (OPERATION == "layout") & (pl.col("layout") != "")

COPIES: Final = (LIBRARY == "aten") & (OPERATION == "copy")  # kernels of PyTorch that copy tensors, and cast them
BATCHED: Final = ("aten::bmm", "aten::baddbmm")  # operators of products of many matrices

#: Kernels of PyTorch that read rows by an index: what writes them has another functor.
GATHERS: Final = (
    (LIBRARY == "aten")
    & (FAMILY == "index")
    & (OPERATION.is_in(["index_select", "index", "gather", ""]) | pl.col("functor").str.contains("index_kernel"))
)
TOPK: Final = (FAMILY == "sort") & (OPERATION == "topk")  # selections, as of nearest neighbours
SUMS: Final = (FAMILY == "reduce") & OPERATION.is_in(["sum", "mean"])  # kernels that sum what they read
READS: Final = 0.4  # what is left of a gather that writes nothing: less than half, which also waits for the index

#: Copies within the device, and memsets besides.
COPIES_WITHIN: Final = pl.col("name") == "[CUDA memcpy Device-to-Device]"
MOVES: Final = (pl.col("kind") == "memset") | COPIES_WITHIN


class DeviceKernels(NamedTuple):
    """The kernels in scope of one device."""

    device: int
    name: str  # empty where the report does not say
    capability: tuple[int, int]  # (9, 0); (0, 0) where the report does not say, or for other makers'
    kernel_ns: int  # exclusive time of all
    rows: pl.DataFrame  # sums by kernel, the longest time first: name (text), count, exclusive_ns, and what it says

    def launches(self, wanted: pl.Expr) -> int:
        """How many kernels have decoded names that are `wanted`."""
        return total(self.rows.filter(wanted), "count")

    def are(self, wanted: pl.Expr) -> pl.Expr:
        """Whether operations are kernels of the device whose decoded names are `wanted`."""
        names = self.rows.filter(wanted).get_column("name").cast(pl.Categorical)
        return (pl.col("device") == self.device) & (pl.col("kind") == "kernel") & pl.col("name").is_in(names.implode())


@once_per_report
def kernel_sums(report: Report) -> list[DeviceKernels]:
    """The kernels in scope of each device that ran any."""
    work = exclusive_operations(report).lazy().filter(pl.col("kind") == "kernel")
    events = work.select("device", "name", "exclusive_ns").drop_nulls("name").collect(engine="in-memory")
    sums = events.group_by("device", "name").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("exclusive_ns").sum())
    named = sums.with_columns(pl.col("name").cast(pl.String))
    named = named.hstack(decoded_names(named.get_column("name")))
    named = named.sort("device", "exclusive_ns", "name", descending=[False, True, False])
    version = [pl.col("compute_capability").str.extract(r"^(\d+)\.(\d+)$", at).cast(pl.Int64) for at in (1, 2)]
    devices = report.devices.select("device", pl.col("name").fill_null(""), pl.concat_list(version)).iter_rows()
    specs = {device: (name, (major or 0, minor or 0)) for device, name, (major, minor) in devices}
    return [
        DeviceKernels(device, *specs.get(device, ("", (0, 0))), total(rows, "exclusive_ns"), rows.drop("device"))
        for (device,), rows in named.partition_by("device", as_dict=True, maintain_order=True).items()
    ]


#: Which kernels are wanted, on any device or by device.
Wanted = pl.Expr | Callable[[DeviceKernels], pl.Expr]


def kernels_that(report: Report, wanted: Wanted, least: float) -> "Iterator[Work]":
    """The kernels that are `wanted` of devices on which they take at least a share of `least` of all kernel time."""
    for device in kernel_sums(report):
        chosen = wanted if isinstance(wanted, pl.Expr) else wanted(device)
        ns = total(device.rows.filter(chosen), "exclusive_ns")
        if ns and ns / device.kernel_ns >= least:
            yield Work(report, device, exclusive_operations(report).filter(device.are(chosen)))


def choosing(wanted: Wanted, least: float, *worlds: str) -> "Callable[[Callable[[Work], Finding | None]], Rule]":
    """Makes a rule of what finds something, or None, on :func:`kernels_that`, in programs of `worlds` or of any."""

    def rule_of(tell: Callable[[Work], Finding | None]) -> Rule:
        def find(report: Report) -> Findings:
            return map(tell, kernels_that(report, wanted, least))

        return Rule(update_wrapper(find, tell), worlds)

    return rule_of


def decoded_as(work: pl.DataFrame, wanted: pl.Expr) -> pl.Series:
    """Whether the decoded name of each operation of `work` (name) is `wanted`."""
    names = work.get_column("name")
    different = names.unique().drop_nulls()
    matches = decoded_names(different.cast(pl.String)).select(wanted).to_series()
    return sure(names.is_in(different.filter(matches).implode()))


def with_decoded(work: pl.DataFrame, **wanted: pl.Expr) -> pl.DataFrame:
    """Adds columns to operations: whether their decoded names are `wanted`."""
    return work.with_columns(**{column: decoded_as(work, condition) for column, condition in wanted.items()})


def decoded_names(names: pl.Series) -> pl.DataFrame:
    """What names of kernels say: :data:`_FIELDS`, inputs, elementwise, and tensor_core and alignment or null."""
    rows = [
        (
            *(getattr(kernel, field) or "" for field in _FIELDS),
            *("/".join(kernel.input_types), kernel.tensor_core, kernel.alignment, fusion.is_elementwise(kernel)),
        )
        for kernel in map(decode, names)
    ]
    others = {"inputs": pl.String, "tensor_core": pl.Boolean, "alignment": pl.Int64, "elementwise": pl.Boolean}
    return pl.DataFrame(rows, {**dict.fromkeys(_FIELDS, pl.String), **others}, orient="row")


def stream_lines(report: Report, *devices: int) -> pl.DataFrame:
    """The operations in scope of some devices, stream by stream (numbered by `line`), in order of their start."""
    columns = ("event_id", "row", "kind", "name", "start", "end", "exclusive_ns", "device", "process_id", "stream")
    return by_stream(exclusive_operations(report, "stream").select(columns).filter(pl.col("device").is_in(devices)))


def by_stream(work: pl.DataFrame) -> pl.DataFrame:
    """Operations stream by stream (numbered by `line`), in order of their start."""
    for key in ("start", "stream", "process_id", "device"):  # most are in order, and all at once takes longer
        work = in_order(work, key)
    return work.with_columns(line=pl.struct("device", "process_id", "stream").rle_id())


#: What is told of the operator of an operation.
_TOLD: Final = {"inner": pl.String, "outer": pl.String, "node": pl.String, "again": pl.Boolean}


def with_operators(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Adds the columns of :func:`launching_operators` to operations."""
    return work.join(launching_operators(report), on="row", how="left", maintain_order="left")


@once_per_report
def launching_operators(report: Report) -> pl.DataFrame:
    """The operator of each of ``exclusive_operations`` (row), if any: innermost and outermost one of PyTorch's own.

    Columns: row, inner, outer, node (autograd's, of what runs backward), again (whether it runs forward again there),
    node_start (when that node began, in its report; null for what is not aligned with it). All are null where no
    operator is known; there are no rows where none is recorded. What is not aligned with the trace beside the report
    has the operator of most kernels of its name and launch shape.
    """
    trace = report if report.kind("op").height else report.beside()
    if trace is None or trace.kind("op").is_empty():
        return pl.DataFrame(schema={"row": pl.UInt32, **_TOLD, "node_start": pl.Int64})
    work = with_facts(report, exclusive_operations(report), *THREAD, "call_start", *SHAPE)
    work = work.select("row", "name", *SHAPE, *THREAD, at="call_start")
    if trace is report:
        launched = _work.launched_work(report)
        at = positions(launched.get_column("row"), work.get_column("row"))
        return _named(report, work, gathered(launched.get_column("operator"), at))
    named = _named(trace, work, _host_names.operators_beside(report, trace, work))
    alike = pl.concat([named, work.select("name", *SHAPE)], how="horizontal")
    keys = ["name", *SHAPE]
    usual = alike.drop_nulls("inner").group_by(*keys, *_TOLD).len().sort("len", *_TOLD).unique(keys, keep="last")
    both = alike.join(usual, on=keys, how="left", nulls_equal=True, maintain_order="left", suffix="_usual")
    known = pl.col("inner").is_not_null()
    told = (pl.when(known).then(name).otherwise(f"{name}_usual").alias(name) for name in _TOLD)
    return both.select("row", *told, "node_start")


def _named(report: Report, work: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """What is told of the operators in some rows of the host tree of a report: row (of `work`), _TOLD, node_start."""
    tree = _host_tree.host_tree(report)
    names = tree.rows.get_column("name")
    own = having(names, "^aten::")
    inner, node = tree.nearest(rows, own), tree.nearest(rows, having(names, f"^{_host_tree.NODE}"))
    outer = tree.outermost(inner, own)
    operators = [gathered(names, at).cast(pl.String) for at in (inner, outer, node)]
    return work.select("row").with_columns(
        inner=operators[0],
        outer=operators[1],
        node=operators[2].str.strip_prefix(f"{_host_tree.NODE}: "),
        again=gathered(_host_tree.recomputed(report), rows),
        node_start=gathered(tree.rows.get_column("start"), node),
    )


# What remedies change.


def part(column: str, share: float | pl.Expr) -> pl.Expr:
    """A share of a time, in whole ns."""
    return (pl.col(column) * share).floor().cast(pl.Int64)


def without(rows: pl.DataFrame) -> Mending:
    """The operations `rows` (row) are launched no more."""
    return Mending(gone=rows.get_column("row").cast(pl.UInt32))


def merged(groups: pl.DataFrame) -> Mending:
    """Some operations do the work of all, and the others are gone.

    `groups` has row, dur_ns, and by group, in order: kept (how many operations do the work) and merged_ns (what they
    take in all). The first ones of each group are kept.
    """
    work = groups.with_columns(stays=pl.int_range(pl.len()).over("group") < pl.col("kept"))
    saved = pl.col("dur_ns") - pl.col("merged_ns") // pl.col("kept")
    kept = work.filter("stays").select(pl.col("row").cast(pl.UInt32), saved_ns=saved)
    return without(work.filter(~pl.col("stays")))._replace(shorter=kept)


def host_of(rows: pl.DataFrame, *keys: str, end: str = "call_start") -> pl.DataFrame:
    """Host time from the first launch of operations (process_id, call_start) of the same keys to the last: a span."""
    return rows.group_by("process_id", *keys).agg(start=pl.col("call_start").min(), end=pl.col(end).max())


def span_of(points: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """The row of `spans` (start, end, keys; disjoint by key) that each of `points` (at, keys) is in; null for none."""
    row = as_of(points, spans.drop("end").rename({"start": "at"}))
    return row.set(~sure(points.get_column("at") < gathered(spans.get_column("end"), row)), None)


def is_inside(points: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Whether each of `points` (at, keys) is in one of `spans` (start, end, keys), which may overlap."""
    return span_of(points, intervals.union_by(spans, [name for name in points.columns if name != "at"])).is_not_null()


def calls_within(report: Report, spans: pl.DataFrame) -> pl.Series:
    """Rows (of the api events) of the calls that began in `spans` (process_id, thread_id, start, end) of their thread.

    Spans of a thread do not overlap.
    """
    calls, sides = report.kind("api").select(*THREAD, at="start_ns").with_row_index("row"), spans.select("start", "end")
    calls = calls.filter(pl.col("at").is_between(sides.min().item(0, "start"), sides.max().item(0, "end")))
    return calls.filter(span_of(calls.drop("row"), spans.select(*THREAD, "start", "end")).is_not_null())["row"]


def nothing_within(report: Report, spans: pl.DataFrame) -> Mending:
    """Host code, calls and operations of threads in `spans` (process_id, thread_id, start, end) are gone."""
    calls = calls_within(report, spans)
    gone = launch_rows(report).is_in(calls.implode()).fill_null(value=False).arg_true().cast(pl.UInt32)
    return Mending(gone=gone, calls=calls, host=spans.select("process_id", "start", "end"))


# What is told.


class Work(NamedTuple):
    """Operations of a device that a finding is about."""

    report: Report
    device: DeviceKernels
    rows: pl.DataFrame  # row, name, start, end, exclusive_ns and others

    @property
    def names(self) -> pl.DataFrame:
        """Sums of the device's kernels of these names, the longest time first."""
        return self.device.rows.filter(pl.col("name").is_in(self.rows["name"].unique().cast(pl.String).implode()))

    @property
    def ns(self) -> int:
        """Their exclusive time."""
        return total(self.rows, "exclusive_ns")

    @property
    def share(self) -> float:
        """Their part of all kernel time."""
        return self.ns / max(self.device.kernel_ns, 1)

    @property
    def longest(self) -> str:
        """The name of the single one that takes most time."""
        return str(self.rows.sort("exclusive_ns").get_column("name").last())

    @property
    def most(self) -> str:
        """The name of those that take most time together."""
        return str(self.names.get_column("name").first())

    def left_of(self, left: pl.DataFrame, key: str = "row") -> "Work":
        """Those of which others tell nothing: all that has the same `key` is in what is `left` (start, end)."""
        whole = intervals.covered(self.rows, left) == self.rows["end"] - self.rows["start"]
        return self._replace(rows=self.rows.with_columns(whole.alias("whole")).filter(pl.col("whole").all().over(key)))

    def finding(
        self,
        name: str,
        kernel: str | None = None,
        *,
        left: float | None = 0,
        saved: pl.Expr | None = None,
        **others: Any,  # noqa: ANN401 - of any field
    ) -> Finding:
        """The finding of this name that has them at stake; `others` as :func:`told`, with `took`, `share`, and `many`.

        It names a `kernel`, by default that of most time, or none: an empty text. `took` is their time: ``25 ns a step,
        25.0 % of kernel time``.

        `left` is what is left of each by the remedy, a share of its time, or None if that is not known, or `saved` says
        by how much (ns) it is shorter. Nothing is at stake where that is less than is worth a finding of the name.
        """
        left = None if saved is not None else left
        saved = part("dur_ns", 1 - left) if left else saved
        change = None if saved is None else Mending(shorter=self.rows.select("row", saved_ns=saved))
        kernel, share = self.most if kernel is None else kernel, units.percent(self.share)
        values = {
            "claims": self.rows,
            "at_stake_ns": self.ns,
            "where": place_of(self.report, self.rows.get_column("row")),
            "mending": without(self.rows) if left == 0 else change,
            "shortens": left != 0,
            "many": self.rows.height,
            "took": f"{per_iteration(self.report).time(self.ns)}, {share} of kernel time",
            "share": share,
            "names": (kernel,) if kernel else (),
            **others,
        }
        claims, at_stake_ns = values.pop("claims"), values.pop("at_stake_ns")
        at_stake_ns *= at_stake_ns >= row_of(name).get("least", 0) * self.device.kernel_ns
        return told(self.report, name, self.device.device, claims, at_stake_ns, **values)


def works(report: Report, rows: pl.DataFrame) -> Iterator[Work]:
    """Some kernels (rows of ``exclusive_operations``) by device."""
    for device in kernel_sums(report) if rows.height else ():
        if (own := rows.filter(device=device.device)).height:
            yield Work(report, device, own)


def in_a_loop(gathers: Work) -> bool:
    """Whether there are as many gathers as a loop makes."""
    # so many of an iteration, or of a window without any, are a loop's
    return gathers.rows.height >= 8 * (per_iteration(gathers.report).iterations or 1)


# How a program launches less often, by what it is written in and whether it has CUDA graphs already.


class LaunchLess(NamedTuple):
    """The remedy of one kind of program, in sentences and phrases."""

    action: str  # a phrase
    remedy: str  # about short kernels
    ahead: str  # about many short stretches of host time
    capture: str | None = None  # how to replay a sequence that repeats; None where that depends on its stream
    ahead_action: str = ""  # the same as `ahead` as a phrase; empty where it is `action`


#: Shares of a device's kernel time from which graphs are some of it, and most of it.
_SOME: Final = 0.05
_MOST: Final = 0.5


def launch_less(report: Report, device: int) -> LaunchLess:
    """The remedy for many short launches on a device in a report's window."""
    # by world, of others that of CUDA, and `beside` where some kernels are replayed as graphs already
    share, words = share_of_graphs(report).get(device, 0.0), phrases("launches")
    if share < _SOME:
        own = (one for one in kernel_sums(report) if one.device == device)
        # of launches; beside them compiled code launches products, attention and convolutions
        compiled = any(one.launches(COMPILED_KERNELS) >= 0.25 * total(one.rows, "count") for one in own)
        more = {PYTORCH: words[f"compiled {PYTORCH}"]} if compiled else {}
        return LaunchLess(*spoken(report, words | more, words["others"]))
    beside = LaunchLess(*spoken(report, words | {PYTORCH: words[f"beside {PYTORCH}"]}, words["beside"]))
    # graphs that run most of the time are launched too late
    return beside._replace(**phrases("late graphs")) if share > _MOST else beside


@once_per_report
def share_of_graphs(report: Report) -> dict[int, float]:
    """The share of the window's kernel time that is of CUDA graphs, traced whole or node by node, by device."""
    if not has_graphs(report):
        return {}
    ran = exclusive_operations(report).filter(pl.col("kind").is_in(["kernel", "graph"]))
    replayed, ns = pl.col("row").is_in(graph_operations(report).get_column("row").implode()), pl.col("exclusive_ns")
    return dict(ran.group_by("device").agg(share=ns.filter(replayed).sum() / ns.sum().clip(lower_bound=1)).iter_rows())
