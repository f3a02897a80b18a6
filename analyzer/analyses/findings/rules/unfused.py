"""Kernels of which one would do the work of several: chains of operators, formulas by hand, optimizers, zeros."""

from functools import partial
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_gpu import COMPILED_KERNELS, FAMILY, LIBRARY, MOVES, OPERATION, Work
from kanalyze.analyses.findings.on_host import side
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal
from kanalyze.analyses.host._call_kinds import PYTORCH
from kanalyze.analyses.operators._host_tree import ARROW
from kanalyze.analyses.operators.fusion import chains, fusion, occurrences
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.statistics import median_of, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.work.work import names_inputs, operations_with_roofs
from kanalyze.columns import nearest
from kanalyze.decoder.decode import decode
from kanalyze.report import Report
from kanalyze.units import plural, size, time

_ENDS: Final = 2  # of longer chains, this many operators are named at either end


@Rule
def fusible(report: Report) -> Findings:
    """One finding per device with chains of operators whose fusion would save time."""
    if not {"op", "kernel"}.issubset(report.kinds):
        return
    # of each chain as many kernels are left as its largest operator has
    fused = occurrences(report).filter(pl.col("fused_ns") < pl.col("total_ns"))
    groups = fused.select(group="number", kept="parts", merged_ns="fused_ns")
    compiled = {one.device for one in on_gpu.kernel_sums(report) if one.launches(COMPILED_KERNELS)}
    for device, rows in say.by_device(fusion(report).filter(pl.col("saved_ns") > 0)):
        top, chained = rows.row(0, named=True), chains(report).filter(device=device).rename({"chain": "group"})
        work = chained.join(groups, on="group", maintain_order="left")
        known = device in compiled
        yield say.told(
            report,
            "fusion: chains",
            device,
            work,
            min(total(rows, "saved_ns"), total(chained, "exclusive_ns")),
            general=True,
            mending=on_gpu.merged(work),
            **{name: total(rows, name) for name in ("launches", "count", "total_ns")},
            longest=_longest_chain(top),
            too=" them, too" * known,
            how="what runs them is not compiled, as other kernels are; or write" if known else "torch.compile does, or",
            fused=" PyTorch's optimizers take fused=True." * top["chain"].startswith("aten::_foreach_"),
        )


def _longest_chain(top: dict[str, Any]) -> str:
    """The chain with the largest saving, with its figures."""
    operators, fused_bytes = top["chain"].split(ARROW), top["fused_bytes"]
    ends = operators if len(operators) <= 2 * _ENDS else [*operators[:_ENDS], "…", *operators[-_ENDS:]]
    moved = f" and moving {size(top['moved_bytes'])}" if top["moved_bytes"] is not None else ""
    bound, least = ("about", "") if fused_bytes is None else ("at least", f", which would move {size(fused_bytes)}")
    return (
        f"{ARROW.join(ends)}, {plural(top['kernels'], 'kernel')} {plural(top['count'], 'time')}, taking "
        f"{time(top['total_ns'])}{moved}; {bound} {time(top['fused_ns'])} as one kernel each{least}"
    )


# Norms, activations and formulas written out in elementwise kernels, in reports that record no operators.

#: Kernels of one formula: so many large ones, of so many operations, and no more kernels than these of an operation, as
#: a loop over tensors has.
_FEWEST: Final = 3
_REPEATED: Final = 8

#: Kernels that go over tensors element by element, or sum along a dimension, but for those of optimizers; and what any
#: layer has around it, such as sums of gradients.
_OTHER: Final = (LIBRARY == "aten") & ~OPERATION.is_in(["addcdiv", "addcmul", "lerp"])
_PASSING: Final = _OTHER & (FAMILY.is_in(["elementwise", "reduce"]) | ((FAMILY == "copy") & (OPERATION == "copy")))
_OF_ANY: Final = ("add", "threshold", "copy", "sum", "")

#: What torch.compile fuses besides: also what copies, joins and fills tensors, but for updates of weights.
_COMPILES: Final = _OTHER & FAMILY.is_in(["elementwise", "reduce", "copy", "fill"])

_OWN: Final = 2  # so many operations besides those are a formula's
_LARGE: Final = 0.3  # a kernel that takes this part of the longest works on tensors of its size
_FUSED: Final = 2  # how many of the shortest large kernel, which reads a tensor and writes one, a fused kernel takes


@Rule.of(PYTORCH)
def by_hand(report: Report) -> Findings:
    """One finding per device with formulas in kernels that one would do, where the report has no operators."""
    if report.kind("op").is_empty():
        for device in on_gpu.kernel_sums(report):
            runs = _runs(on_gpu.stream_lines(report, device.device))
            yield _formulas(Work(report, device, runs), partial(_compiled, device.device))


def _compiled(device: int, report: Report) -> Mending:
    """All that torch.compile fuses on a device: each run of passes, as one."""
    lines, ns = on_gpu.stream_lines(report, device), pl.col("exclusive_ns")
    kernels = _numbered(lines, on_gpu.decoded_as(lines, _COMPILES) | lines.select(MOVES).to_series(), "group")
    kernels = _sized(kernels.filter(pl.col("group").is_duplicated()))  # of one alone nothing is spared
    least = pl.max_horizontal(_FUSED * ns.filter("large").min(), ns.max())
    groups = kernels.group_by("group").agg(merged_ns=least, ns=ns.sum())
    shorter = groups.filter(pl.col("merged_ns") < pl.col("ns")).select("group", "merged_ns", kept=pl.lit(1))
    return on_gpu.merged(kernels.with_columns(dur_ns=ns).join(shorter, on="group", maintain_order="left"))


def _runs(lines: pl.DataFrame) -> pl.DataFrame:
    """Kernels of formulas: rows of `lines` with group, kept and merged_ns (of the fused kernel)."""
    kernels = _numbered(lines, on_gpu.decoded_as(lines, _PASSING), "group")
    ns, name = pl.col("exclusive_ns"), pl.col("name")
    # most runs are shorter, of which no more is asked
    long = kernels.group_by("group").agg(pl.len(), ns.max()).filter(pl.col("len") >= _FEWEST, ns >= on_gpu.SHORTEST_NS)
    kernels = kernels.join(long, on="group", how="semi", maintain_order="left")
    kernels = on_gpu.with_decoded(_sized(kernels).with_columns(dur_ns=ns), computes=~OPERATION.is_in(_OF_ANY))
    large, own = ns.filter("large"), name.filter("computes")
    least = pl.max_horizontal(_FUSED * large.min(), ns.filter("sums").max())
    several = (name.n_unique() >= _FEWEST) & (own.n_unique() >= _OWN)
    several &= (large.len() >= _FEWEST) & (pl.len() <= _REPEATED * name.n_unique()) & (least < ns.sum())
    groups = kernels.group_by("group").agg(several=several, merged_ns=least, kept=pl.lit(1))
    return kernels.join(groups.filter("several").drop("several"), on="group", maintain_order="left")


def _sized(kernels: pl.DataFrame) -> pl.DataFrame:
    """Adds whether kernels are `large`: as long as others of their group; sums along short rows take longer."""
    kernels, ns = on_gpu.with_decoded(kernels, sums=FAMILY == "reduce"), pl.col("exclusive_ns")
    longest = pl.coalesce(ns.filter(~pl.col("sums")).max().over("group"), ns.max().over("group"))
    return kernels.with_columns(large=ns >= _LARGE * longest)


def _formulas(runs: Work, compiled: Mending | partial[Mending]) -> Finding | None:
    """The finding on formulas; torch.compile, its remedy, fuses what else it can in the program as well."""
    rows = runs.rows
    groups = rows.unique("group")
    saved = runs.ns - total(groups, "merged_ns")
    if saved < 0.06 * runs.device.kernel_ns:
        return None

    sums = rows.group_by(pl.col("name").cast(pl.String)).agg(pl.col("exclusive_ns").sum())
    names = sums.sort("exclusive_ns", "name", descending=[True, False]).get_column("name")
    operations = [*dict.fromkeys(one for one in (decode(name).operation for name in names) if one)][: say.NAMED]
    words, searched = _words(runs), pl.col("group").is_in(_searches(runs).implode())
    least_ns = None
    if words == "fusion: distances":  # by a product, without a tensor of all differences
        least_ns = on_gpu.part("exclusive_ns", _DISTANCES_LEFT).sum().over("group")
    elif 2 * total(rows.filter(searched), "exclusive_ns") >= runs.ns:
        # a search for a million values among thousands takes so long on an H200
        words, runs = "fusion: comparisons", runs._replace(rows=rows.filter(searched))
        least_ns = pl.min_horizontal("merged_ns", pl.lit(15_000))
    if least_ns is not None:
        rows = runs.rows.with_columns(merged_ns=least_ns)
        groups = rows.unique("group")
        compiled, saved = on_gpu.merged(rows), runs.ns - total(groups, "merged_ns")
    return runs.finding(
        words,
        "",
        runs=groups.height,
        operations=literal(", ".join(operations)),
        at_stake_ns=saved,
        mending=compiled,
        retold=lambda left: _formulas(runs.left_of(left, "group"), compiled),
    )


#: What torch.compile records: regions that it compiled, by function and version, of which it makes no more of one
#: function; and each call of a function that it was asked to compile, of which some have no region where it gave up.
_REGION: Final = r"^Torch-Compiled Region: \d+/\d+$"
_VERSIONS: Final = 8
_WITHOUT: Final = 1.25

#: Operators that a compiler fuses; and those of a distance, after the difference.
_FUSIBLE: Final = (
    r"^aten::(?:add|sub|rsub|mul|div|pow|square|exp|log|tanh|sigmoid|sqrt|rsqrt|abs|neg|sum|mean|where)_?$"
)
_OF_DISTANCES: Final = r"^aten::(?:sub|pow|square|abs|norm|linalg_vector_norm|sum|mean|sqrt|neg|exp)$"
_DISTANCES_LEFT: Final = 0.15  # of the kernels of differences by a product: of two programs 0.12 and 0.2
_RAISED: Final = r"^aten::(?:pow|square|abs|norm|linalg_vector_norm)$"


def _words(runs: Work) -> str:
    """Which words tell what formulas need, by what the trace shows: distances of pairs, a compiler that gave up."""
    if (trace := on_host.traced(runs.report)) is None:
        return "fusion"
    top, regions = on_host.working(runs.report), on_host.spans_named(_REGION, trace.kind("op"))
    if regions.height:
        function = regions.get_column("name").cast(pl.String).unique().str.extract(r"(\d+)/")
        calls = on_host.spans_named("^TorchDynamo Cache Lookup$", trace.kind("op")).height
        if (function.unique_counts() >= _VERSIONS).any() and calls >= _WITHOUT * regions.height:
            return "fusion: limit"
        inside = top.filter(on_gpu.is_inside(top.select(*THREAD, at="start"), regions.select(on_host.SPAN)))
        fusible = inside.get_column("name").str.contains(_FUSIBLE).sum()
        if 2 * fusible > inside.height and not runs.device.launches(COMPILED_KERNELS):
            return "fusion: backend"
    # differences of all pairs of rows
    pairs = (pl.col("name") == "aten::sub") & _across(-2) & (side(0, -1) == side(1, -1)) & (side(0, -1) > 1)
    if top.filter(pairs & pl.col("name").shift(-1).over(THREAD).str.contains(_RAISED)).is_empty():
        return "fusion"
    work = on_gpu.with_operators(runs.report, runs.rows.select("row", "exclusive_ns"))
    of_distances = work.filter(pl.col("outer").str.contains(_OF_DISTANCES))
    return "fusion" if 2 * total(of_distances, "exclusive_ns") < runs.ns else "fusion: distances"


def _across(at: int) -> pl.Expr:
    """Whether of the first two inputs of operators each is repeated along one of the dimensions before and `at`."""
    return pl.any_horizontal(
        (side(one, at) == 1) & (side(one, at - 1) > 1) & (side(other, at - 1).fill_null(1) == 1) & (side(other, at) > 1)
        for one, other in ((0, 1), (1, 0))
    )


def _searches(runs: Work) -> pl.Series:
    """Groups that for the most part compare each value of a row with each of another, and count what is true."""
    if not names_inputs(runs.report):
        return runs.rows.get_column("group").clear()
    name = pl.col("name")
    shapes = operations_with_roofs(runs.report).select("row", "input_shapes", name="op")
    work = runs.rows.select("row", "group", "exclusive_ns").join(shapes, on="row", how="left", maintain_order="left")
    pairs = name.str.contains("^aten::(?:lt|le|gt|ge)$") & _across(-1)
    counts = name.str.contains("^aten::(?:sum|count_nonzero|argmax)$")
    own = pl.col("exclusive_ns").filter(pairs.fill_null(value=False) | counts | (name == "aten::copy_"))
    most = 2 * own.sum() >= pl.col("exclusive_ns").sum()
    return work.group_by("group").agg(search=pairs.any() & counts.any() & most).filter("search").get_column("group")


# Optimizers that run kernel by kernel.

#: How many lists a step reads and writes in one pass, by class of torch.optim that takes fused=True: weights and
#: moments both ways, and the gradients.
_PASSES: Final = {"Adam": 7, "AdamW": 7, "": 7, "SGD": 5}

#: Further classes of torch.optim, which take foreach=True; Adagrad takes fused=True on GPUs of NVIDIA after torch 2.11.
_FOREACH: Final = ("ASGD", "Adagrad", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")

_BOTH: Final = 2  # a step of this many operators or more could be one; each of them reads a list and writes one
_FEWEST_UPDATES: Final = 4  # so many updates of weights in a row are an optimizer's: one for each tensor

_ATEN: Final = LIBRARY == "aten"
_LISTS: Final = FAMILY == "optimizer"
_SINGLE: Final = FAMILY == "elementwise"
_FUSED_STEP: Final = _LISTS & (~_ATEN | pl.col("functor").str.contains("Fused"))

#: Operations of lists of tensors that do not update weights: norms are for clipping.
_NO_UPDATES: Final = ["norm", "copy", "zero", "non_finite_check_and_unscale"]

#: The update that ends a step of Adam's kind: w += a · m / √v of lists or of one tensor, or its root; and what only
#: optimizers, or what works on their tensors, run.
_MARKS: Final = _ATEN & (
    (_LISTS & pl.col("functor").str.starts_with("PointwiseOp")) | (_SINGLE & OPERATION.is_in(["addcdiv", "sqrt"]))
)
_BELONGS: Final = _ATEN & (
    (_SINGLE & OPERATION.is_in(["addcmul", "addcdiv", "lerp", "sqrt"])) | (_LISTS & ~OPERATION.is_in(_NO_UPDATES))
)


class _Steps(NamedTuple):
    """Launches of one optimizer's steps on one device."""

    device: int
    optimizer: str  # its class; empty where only the launches tell that it is one
    kernels: pl.DataFrame  # the operations: row, kind, name, exclusive_ns, step (a number)
    spans: pl.DataFrame  # when the host was in each step: process_id, start, end, sorted

    @property
    def each(self) -> int:
        """The median number of operations of a step: a window may cut the first and the last one."""
        counts = self.kernels.group_by("step").len().get_column("len").sort()
        return int(counts.item(len(counts) // 2))

    def finding(
        self,
        report: Report,
        name: str,
        at_stake_ns: int | None = None,
        *besides: pl.DataFrame,
        **others: Any,  # noqa: ANN401 - as `told`
    ) -> Finding:
        """The finding of this name on when the kernels of the steps ran, and the idle time in and between these."""
        work = _operations.exclusive_operations(report).join(self.kernels.select("row", "step"), on="row")
        each = work.group_by("step").agg(pl.col("start").min(), pl.col("end").max())
        claims = (work, say.idle_in(report, self.device, each, self.spans), *besides)
        others |= {
            "optimizer": self.optimizer,
            "nameless": not self.optimizer,
            "steps": self.kernels["step"].n_unique(),
        }
        where = say.place_of(report, self.kernels.get_column("row"))
        return say.told(report, name, self.device, claims, at_stake_ns, where=where, **others)

    def waited(self, report: Report) -> int:
        """Idle time (ns) that a shorter host time of steps can save: until the next one, no more than each took."""
        low, high = say.sides_of(report, self.device)
        start, end = (self.spans.get_column(name).clip(low, high) for name in ("start", "end"))
        after = intervals.overlap(start, start.shift(-1, fill_value=high), _windows.idle_spans(report)[self.device])
        return int(pl.select(pl.min_horizontal(end - start, after).sum()).item() or 0)


@Rule
def unfused_optimizer(report: Report) -> Findings:
    """One finding per device and optimizer that updates weights by an operation at a time."""
    # launches like those of Adam's steps, by device; none where a fused one runs, or has ranges
    every, seen = on_gpu.kernel_sums(report), _in_ranges(report, "step")
    devices = [one.device for one in every if one.launches(_MARKS) and not one.launches(_FUSED_STEP)]
    if devices and not _ranges(report, "step").height:
        seen = [*seen, *_steps(report, _update_runs(on_gpu.stream_lines(report, *devices)))]
    for whole in seen:
        optimizer, kernels = whole.optimizer, whole.kernels
        # updates of each element on its own, as an optimizer's operators do
        updates = on_gpu.decoded_as(kernels, pl.col("elementwise") & ~OPERATION.is_in(_NO_UPDATES))
        steps = whole._replace(kernels=kernels.filter(updates)) if optimizer else whole
        sums = steps.kernels.group_by("name").agg(pl.len().alias("launches"), pl.col("exclusive_ns").sum())
        # classes of torch.optim that have no way of working on lists, and steps that are fused
        fused = optimizer in ("LBFGS", "Muon", "SparseAdam") or on_gpu.decoded_as(kernels, _FUSED_STEP).any()
        if fused or sums.is_empty():
            continue
        lists, has_fused = on_gpu.decoded_as(steps.kernels, _LISTS).any(), optimizer in _PASSES
        # one operator is as many launches as it takes for all tensors; a step of one operator is fused as it is
        if steps.kernels.height < _BOTH * sums.get_column("launches").sort().item(0) or (lists and not has_fused):
            continue
        # what the shortest of the operators takes to read and write its tensors, a fused kernel takes in any case
        ran, waited = total(steps.kernels, "exclusive_ns"), steps.waited(report)
        saved = ran - sums.get_column("exclusive_ns").sort().item(0)
        known = optimizer in (*filter(None, _PASSES), *_FOREACH)
        yield steps.finding(
            report,
            "unfused-optimizer",
            saved + waited,
            table="ops --by phase" if "op" in report.kinds else "kernels --by family",
            each=steps.each,
            ran=ran,
            host=total(steps.spans.select(ns=pl.col("end") - pl.col("start")), "ns"),
            kernels=saved,
            waited=waited,
            lists=lists,
            singly=not lists,
            known=known,
            own=not known and optimizer,
            how="fused=True" if has_fused else "foreach=True",
            at_most=True,
            mending=partial(_in_one_pass, steps),
        )


#: A step that calls so many operators on lists is of many groups of parameters, of few tensors each where their shapes
#: are known; longer kernels are of more (ns).
_GROUPS: Final = 16
_FEW_TENSORS: Final = 4
_OF_GROUP_NS: Final = 20_000


@Rule
def optimizer_groups(report: Report) -> Findings:
    """One finding per device and optimizer, fused or on lists, whose groups have few parameters each."""
    # of texts such as ``[[[8, 9], [8]], []]`` the shapes in the first list
    tensors = pl.col("input_shapes").cast(pl.String).str.split("]], ").list.first().str.count_matches(r"\[[\d\]]|\[$")
    calls = on_host.operators(report).filter(pl.col("name").str.contains(r"^aten::_(?:foreach_|fused_\w+_$)"))
    calls = calls.filter(tensors.fill_null(1) <= _FEW_TENSORS).select("name", *THREAD, at="start")
    ranges, took = _recorded_ranges(on_host.traced(report) or report, "step"), pl.col("exclusive_ns")
    for whole in _in_ranges(report, "step"):
        lists = whole.kernels.filter(on_gpu.decoded_as(whole.kernels, _LISTS))
        steps, spans = whole._replace(kernels=lists), ranges.filter(optimizer=whole.optimizer)
        own = calls.filter(on_gpu.is_inside(calls.drop("name"), spans.select(*on_host.SPAN)))
        # in the median, as some operators are called for some of the groups, and some more than once
        each = int(median_of(own.group_by("name").len(), "len")) // max(spans.height, 1)
        # a step that is given a closure runs the model, too
        few = 2 * lists.height <= whole.kernels.height
        if each < _GROUPS or few or median_of(lists, "exclusive_ns") > _OF_GROUP_NS:
            continue
        merged = {"kept": pl.lit(1), "merged_ns": took.sum().over("step", "name")}
        change = on_gpu.merged(lists.select("row", group=pl.struct("step", "name"), dur_ns=took, **merged))
        # one group takes the host its part of the step
        later = pl.col("start") + (pl.col("end") - pl.col("start")) // each
        change = change._replace(host=steps.spans.with_columns(start=later))
        yield steps.finding(report, "unfused-optimizer: groups", mending=change, each=each)


def _in_one_pass(steps: _Steps, _: Report) -> Mending:
    """Each step in one pass, at the rate of its shortest operator; each operator of unknown classes on lists at once.

    The kernels of these take as long on lists as one by one, at least: nothing tells what else fuses them.
    """
    keys = ("step",) if steps.optimizer in _PASSES else ("step", "name")
    sums = steps.kernels.group_by("step", "name").agg(pl.len().alias("launches"), pl.col("exclusive_ns").sum())
    # how many tensors one launch of a fused optimizer updates, about
    together = 1 if on_gpu.decoded_as(steps.kernels, _LISTS).any() else 24
    shortest = pl.col("exclusive_ns").min() * _PASSES.get(steps.optimizer, _BOTH) // _BOTH
    kept = (pl.col("launches").min() - 1) // together + 1
    groups = sums.group_by(keys).agg(kept=kept, merged_ns=pl.min_horizontal(shortest, pl.col("exclusive_ns").sum()))
    work = steps.kernels.select("row", *keys, dur_ns="exclusive_ns").join(groups, on=keys, maintain_order="left")
    return on_gpu.merged(work.with_columns(group=pl.struct(keys)))


def _in_ranges(report: Report, method: str) -> list[_Steps]:
    """Launches of each optimizer in the ranges that torch's record (Optimizer.step#AdamW.step), by device and class."""
    ranges = _ranges(report, method)
    if ranges.is_empty() or "api" not in report.kinds:
        return []
    work = _operations.exclusive_operations(report, "thread_id", "call_start")
    work = work.select("row", "kind", "name", "exclusive_ns", "device", *THREAD, at="call_start")
    inside = nearest(work.drop_nulls("at"), ranges, ("at", "start"), THREAD).filter(pl.col("at") < pl.col("end"))
    return _by_optimizer(inside, inside.select("device", "optimizer", "process_id", "start", "end").unique())


def _by_optimizer(rows: pl.DataFrame, spans: pl.DataFrame) -> list[_Steps]:
    """Operations (device, optimizer, step) with the `spans` of their steps, by device and class."""
    return [
        _Steps(
            int(device),
            str(optimizer),
            own.select("row", "kind", "name", "exclusive_ns", "step"),
            spans.filter(device=device, optimizer=optimizer).select("process_id", "start", "end").sort("start", "end"),
        )
        for (device, optimizer), own in sorted(rows.partition_by("device", "optimizer", as_dict=True).items())
    ]


def _ranges(report: Report, method: str) -> pl.DataFrame:
    """The ranges of a method of torch's optimizers, here or in the trace beside: step, SPAN, optimizer."""
    own, other = _recorded_ranges(report, method), on_host.traced(report)
    if own.is_empty() and other not in (report.whole, None):
        by_class = _recorded_ranges(other, method).partition_by("optimizer", as_dict=True, include_key=False)
        placed = [(on_host.within(report, rows).host, name) for (name,), rows in sorted(by_class.items())]
        own = pl.concat([own, *(spans.with_columns(pl.lit(name).alias("optimizer")) for spans, name in placed)])
    return own.sort("start").with_row_index("step")


def _recorded_ranges(report: Report, method: str) -> pl.DataFrame:
    """The ranges of one method of torch's optimizers: process_id, thread_id, start, end, optimizer (its class)."""
    pattern = rf"^Optimizer\.{method}#(\w+)\."
    optimizer = pl.col("name").cast(pl.String).str.extract(pattern)
    return on_host.spans_named(pattern, report.kind("range")).select(*on_host.SPAN, optimizer=optimizer).drop_nulls()


def _numbered(lines: pl.DataFrame, alike: pl.Series, run: str = "step") -> pl.DataFrame:
    """The operations of `lines` that are `alike`; the column `run` numbers those that follow each other on a stream."""
    return lines.with_columns(alike=alike).with_columns(pl.struct("line", "alike").rle_id().alias(run)).filter("alike")


def _update_runs(lines: pl.DataFrame) -> pl.DataFrame:
    """The kernels of each run from the first of an optimizer to its last: the columns of `lines`, and step."""
    # what works on lists of tensors and what works on single ones are optimizers each, or none: the other way to work
    # before and after one is another's, as where a program keeps a mean of the weights
    marked = _numbered(lines, on_gpu.decoded_as(lines, pl.col("elementwise")))
    marked = on_gpu.with_decoded(marked, marks=_MARKS, lists=_LISTS, own=_BELONGS)
    marked = marked.filter(pl.col("step").is_in(marked.filter("marks").get_column("step").unique().implode()))
    marked = marked.with_columns(place=pl.int_range(pl.len()))
    lists, marks, own = pl.col("lists"), pl.col("marks"), pl.col("own")
    listed, single = (lists & marks).any(), (~lists & marks).sum() >= _FEWEST_UPDATES
    of_lists, singly = lists & listed, ~lists & single
    first = pl.col("place").filter(own & (of_lists | singly)).min()
    last = pl.col("place").filter((own & of_lists) | (marks & singly)).max()
    return marked.filter(pl.col("place").is_between(first.over("step"), last.over("step")))


def _steps(report: Report, rows: pl.DataFrame) -> list[_Steps]:
    """The runs as steps by device, each from the end of the launch before its first one to that of its last."""
    launched = _operations.with_facts(report, rows, "call_start", "call_end").drop_nulls("call_start")
    spans = on_gpu.host_of(launched, "device", "step", end="call_end")
    before = say.launch_before(report, spans.select("process_id", at="start"))
    start = pl.min_horizontal(pl.coalesce(before, "start"), "start")
    unknown = pl.lit("").alias("optimizer")
    spans = spans.select("device", unknown, "process_id", start.alias("start"), "end")
    return _by_optimizer(rows.with_columns(unknown), spans)


# Gradients that are filled with zeros.

_FEWEST_FILLS: Final = 16  # so many fills in a row are one for each tensor
_RECURRING: Final = 2  # rows of fills of one length that occur so often recur


@Rule
def zero_grad_fills(report: Report) -> Findings:
    """One finding per device and optimizer whose gradients are filled with zeros."""
    for whole in _in_ranges(report, "zero_grad") or _by_fills(report):
        steps = whole._replace(kernels=whole.kernels.filter(_fills(whole.kernels)))
        if steps.kernels.is_empty():
            continue
        # what adds gradients to the zeros, by the operators: in the first backward pass after each row of fills
        marked = on_gpu.with_operators(report, on_gpu.stream_lines(report, steps.device))
        fills = pl.col("row").is_in(steps.kernels.get_column("row").implode())
        # what has no operator is of the pass that it is in
        backward = pl.when(pl.col("inner").is_not_null()).then(pl.col("node").is_not_null()).forward_fill()
        marked = marked.with_columns(period=(fills & ~fills.shift(1, fill_value=False)).cum_sum(), backward=backward)
        marked = marked.with_columns(turn=pl.struct("period", "backward").rle_id()).filter("backward")
        first = (pl.col("turn") == pl.col("turn").min().over("period")) & (pl.col("period") > 0)
        sums = marked.filter(first, node=on_host.ACCUMULATES, inner="aten::add_")
        ran, added, waited = total(steps.kernels, "exclusive_ns"), total(sums, "exclusive_ns"), steps.waited(report)
        yield steps.finding(
            report,
            "zero-grad-fills",
            ran + added + waited,
            sums,
            fills=steps.each,
            ran=ran,
            waited=waited,
            added=added,
            sums=sums.height,
            unseen=sums.is_empty(),
            mending=on_gpu.without(pl.concat([steps.kernels.select("row"), sums.select("row")])),
        )


#: Kernels that fill lists of tensors, and any.
_LIST_FILLS: Final = _LISTS & (OPERATION == "zero")
_FILLS: Final = _ATEN & ((OPERATION == "fill") | _LIST_FILLS)


def _fills(work: pl.DataFrame) -> pl.Series:
    """Whether each operation fills memory: a kernel that does, or a memset."""
    return on_gpu.decoded_as(work, _FILLS) | (work.get_column("kind").cast(pl.String) == "memset")


def _by_fills(report: Report) -> list[_Steps]:
    """Fills of lists of tensors, and of many tensors in a row, again and again, where no ranges tell whose they are."""
    devices = [
        one.device
        for one in on_gpu.kernel_sums(report)
        if one.launches(_LIST_FILLS) or one.launches(_FILLS) >= _RECURRING * _FEWEST_FILLS
    ]
    if not devices or not say.in_pytorch(report):
        return []
    lines = on_gpu.stream_lines(report, *devices)
    fills = _numbered(lines, _fills(lines))
    fills = on_gpu.with_decoded(fills, lists=_LIST_FILLS).with_columns(many=pl.len().over("step"))
    fills = _operations.with_facts(report, fills, "grid_x", "size_bytes")
    sizes = pl.coalesce("grid_x", "size_bytes").n_unique().over("step")
    alike = pl.col("step").n_unique().over("device", "many")
    # what fills one and the same tensor is no zero_grad
    row = (pl.col("many") >= _FEWEST_FILLS) & (alike >= _RECURRING) & (sizes > 1)
    return _steps(report, fills.filter(row | pl.col("lists")))


# Rows that are gathered to be summed, as a bag of embeddings by hand; many in a loop are another rule's.


@on_gpu.choosing(on_gpu.GATHERS, 0.1, PYTORCH)
def bags_by_hand(own: Work) -> Finding | None:
    """One finding per device on gathers whose rows are summed right after, weighted or not."""
    report, device = own.report, own.device
    if on_gpu.in_a_loop(own):
        return None
    line = on_gpu.stream_lines(report, device.device)
    marked = on_gpu.with_decoded(line, gathers=on_gpu.GATHERS, weighs=OPERATION == "mul", sums=on_gpu.SUMS)

    def after(what: str, by: int) -> pl.Expr:
        # what takes this part of a gather's time, or more, works on all that it wrote
        whole = pl.col("exclusive_ns").shift(-by) >= 0.25 * pl.col("exclusive_ns")
        return (pl.col(what).shift(-by) & whole).over("line").fill_null(value=False)

    length = pl.when(after("sums", 1)).then(1).when(after("weighs", 1) & after("sums", 2)).then(2).otherwise(0)
    marked = marked.with_columns(bag=pl.when("gathers").then(length).otherwise(0))
    inside = (pl.col("bag").shift(by, fill_value=0).over("line") >= by for by in (1, 2))
    work = own._replace(rows=marked.filter((pl.col("bag") > 0) | pl.any_horizontal(inside)))
    return work.finding(
        "gathers: bags",
        own.longest,
        many=own.rows.height,
        mending=Mending(
            work.rows.filter("gathers").select("row", saved_ns=on_gpu.part("exclusive_ns", 1 - on_gpu.READS)),
            work.rows.filter(~pl.col("gathers")).get_column("row"),
        ),
    )
