"""Kernels that others spare: unfused attention, losses by hand, layouts, types, biases, layers computed again."""

from typing import Final

import polars as pl

from kanalyze import intervals, tools, units
from kanalyze.analyses.device._operations import exclusive_operations, with_facts
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_gpu import FAMILY, INPUTS, LIBRARY, OPERATION, OUTPUT, Work
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding, Findings, Rule, literal, phrases
from kanalyze.analyses.host._call_kinds import PYTORCH, spoken
from kanalyze.analyses.idle.code import line_that_reads
from kanalyze.analyses.operators import _host_tree, _work
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD, touched
from kanalyze.analyses.work.work import operations_with_roofs
from kanalyze.columns import beside, gathered, marked
from kanalyze.report import Report

_FARTHEST: Final = 9  # maximum distance of a softmax from either product, in operations: scale, mask, casts, dropout

#: What is left of the products of attention in a fused kernel, which neither writes the scores nor reads them again: on
#: an H100, of heads of 64 in bfloat16, 40 % forward and 55 % backward; with random numbers to drop some of the scores
#: twice that and more (an H200, heads of 32 to 128, 256 to 4,096 tokens).
_PRODUCTS_LEFT: Final = 0.6

#: The same of products in full float32, whose fused kernel is in bfloat16, by compute capability: peak rates of float32
#: over it (A100 19.5 of 312, H100 66.9 of 989.4 TFLOP/s), of which fused kernels reach two thirds of what products do.
#: Of TF32 the rate is half of bfloat16's.
_FLOAT32_LEFT: Final = {(8, 0): 1.5 * 19.5 / 312, (9, 0): 1.5 * 66.9 / 989.4}
_IN_FLOAT32: Final = INPUTS.str.contains(r"^t?f32(?:/t?f32)*$").fill_null(value=False)
_LONGEST_PASS: Final = 16.0  # what takes more of it does something else, such as sums into few rows

_EXP: Final = (FAMILY == "elementwise") & (OPERATION == "exp")  # of a softmax by hand, with sums of rows around it
_SOFTMAX: Final = ((FAMILY == "softmax") & (OPERATION == "softmax")) | _EXP
_PRODUCT: Final = FAMILY == "gemm"

#: What may stand between a softmax and a product: scale, mask, cast, dropout.
_BETWEEN: Final = FAMILY.is_in(["elementwise", "copy", "fill"]) | (
    (FAMILY == "random") & OPERATION.is_in(["dropout", "masked_scale"])
)


#: What flex_attention calls in one chain where it is not compiled, and computes in float32 whatever its inputs are.
_OF_FLEX: Final = ("aten::logsumexp", "aten::_safe_softmax")


@Rule
def unfused_attention(report: Report) -> Findings:
    """One finding per device on which softmaxes of scores stand between two products again and again."""
    for device in on_gpu.kernel_sums(report):
        # one such softmax may be something else
        if device.launches(_SOFTMAX) <= 1 or not device.launches(_PRODUCT):
            continue
        chain = Work(report, device, _chains(report, on_gpu.stream_lines(report, device.device)))
        of_flex = pl.all_horizontal((pl.col("outer") == name).any().over("chain") for name in _OF_FLEX)
        own = chain.rows.filter(of_flex.fill_null(value=False))
        if flex := 2 * total(own, "exclusive_ns") > chain.ns:
            chain = chain._replace(rows=own)
        if total(chain.rows, "softmax") <= 1:
            continue
        softmaxes, products = chain.rows.filter("softmax"), chain.rows.filter("product")
        names = report.kind("op").get_column("name").unique().cast(pl.String)
        most = total(products, "exclusive_ns") // (1 if flex else 2)
        in_float32, in_full = (total(products.filter(one), "exclusive_ns") > most for one in ("in_float32", "in_full"))
        left = _PRODUCTS_LEFT / 2 if in_float32 else _PRODUCTS_LEFT
        left = _FLOAT32_LEFT.get(chain.device.capability, left) if in_full else left
        # one kernel in place of each chain, two backward, which take a part of what its products do
        two = pl.col("backward").any().over("chain") & (pl.col("product").sum().over("chain") > 1)
        each = pl.when(pl.col("drops").any().over("chain")).then(2 * left).otherwise(left)
        kept = pl.when(two).then(2).otherwise(1)
        groups = chain.rows.with_columns(group="chain", kept=kept, left=each, dur_ns="exclusive_ns")
        merged_ns = (pl.col("left") * pl.col("exclusive_ns").sum().over("chain")).cast(pl.Int64)
        fused = on_gpu.merged(groups.filter("product").with_columns(merged_ns=merged_ns))
        one = chain.finding(
            f"unfused-attention{': flex' * flex}",
            str(softmaxes.sort("exclusive_ns", "name").item(-1, "name")),
            passes=softmaxes.height,
            length=units.mean(chain.rows.height, chain.rows.get_column("chain").n_unique()),
            falls_back="aten::_scaled_dot_product_attention_math" in names,
            slower=in_float32 and not in_full and say.in_pytorch(report),
            mending=fused.with_all_of(on_gpu.without(chain.rows.filter(~pl.col("product")))),
        )
        yield one._replace(action=f"{one.action} in bfloat16") if in_float32 and say.in_pytorch(report) else one


def _chains(report: Report, lines: pl.DataFrame) -> pl.DataFrame:
    """The operations of `lines` that attention takes, with softmax and product (whether it is one).

    A chain is a softmax between two products with little but elementwise work in between, or whatever is where their
    shapes are those of scores; backward, the next product on either side belongs to it alike. Copies right before and
    after bring its inputs and outputs into place. An exponential with a sum behind it is a softmax by hand.
    """
    decoded = _with_products(report, lines)
    place = pl.col("place")
    softmaxes = decoded.filter("softmax").drop_nulls(["first", "last"])
    batched = decoded.get_column("batched")
    changes, sums = (decoded.get_column(f"until_{name}") for name in ("changes", "sums"))
    first, last = softmaxes.get_column("first"), softmaxes.get_column("last")
    # a network may end with a softmax, after which the next call of it begins with a product: attention is known by the
    # operators of its products, or else by the scale or mask before its softmax
    scaled = (softmaxes.get_column("until_changes") > changes.gather(first)) | softmaxes.get_column("backward")
    both = batched.gather(first) & batched.gather(last)
    near = softmaxes.select(pl.col("first_near") & pl.col("last_near") & ~pl.col("by_hand")).to_series()
    sure = near & both.fill_null(scaled)
    if not near.all():
        summed = ~softmaxes.get_column("by_hand") | (sums.gather(last) > softmaxes.get_column("until_sums"))
        rows = decoded.get_column("row")
        scores = summed & _share_scores(report, rows.gather(first), rows.gather(last))
        sure |= both.fill_null(value=False) & scores
    softmaxes = softmaxes.filter(sure)
    ends = []
    for end, side in (("first", "since"), ("last", "until")):
        at = softmaxes.get_column(end)
        further = decoded.get_column(end).gather(at).fill_null(at)
        joins = softmaxes.get_column("backward") & decoded.get_column(f"{end}_near").gather(at).fill_null(value=False)
        joins &= batched.gather(further).fill_null(value=True)
        ends.append(decoded.get_column(side).gather(further.zip_with(joins, at)))
    sides = pl.DataFrame(ends, {"start": pl.Int64, "end": pl.Int64})
    begins = place.is_in(sides.get_column("start").implode()).cum_sum()
    touching = touched(decoded.select(start=place, end=place + 1), intervals.union(sides))
    return decoded.with_columns(chain=begins).filter(touching)


def _with_products(report: Report, lines: pl.DataFrame) -> pl.DataFrame:
    """The operations of `lines` with what each is in attention, and the products (first, last) around it."""
    numbered = lines.with_columns(place=pl.int_range(pl.len()))
    decoded = on_gpu.with_decoded(
        on_gpu.with_operators(report, numbered).with_columns(batched=pl.col("inner").is_in(on_gpu.BATCHED)),
        softmax=_SOFTMAX,
        by_hand=_EXP,
        sums=(FAMILY == "reduce") & (OPERATION == "sum"),
        product=_PRODUCT,
        in_float32=_IN_FLOAT32,
        in_full=_IN_FLOAT32 & ~INPUTS.str.contains("tf32") & (~pl.col("tensor_core")).fill_null(value=False),
        passes=_BETWEEN,
        drops=FAMILY == "random",
        copies=FAMILY == "copy",
        changes=FAMILY == "elementwise",
        backward=pl.col("direction") == "backward",
    ).with_columns(pl.col("changes", "sums").cum_sum().name.prefix("until_"))
    place = pl.col("place")
    others, works = (pl.when(~(pl.col(name) | on_gpu.MOVES)).then(place) for name in ("passes", "copies"))
    products = pl.when("product").then(place)
    before, behind = _before(products), _behind(products)
    return decoded.with_columns(
        first=before,
        last=behind,
        first_near=(_before(others) == before) & (place - before <= _FARTHEST),
        last_near=(_behind(others) == behind) & (behind - place <= _FARTHEST),
        # where copies right before and after a row begin and end
        since=pl.coalesce(_before(works) + 1, place.min().over("line")),
        until=pl.coalesce(_behind(works), place.max().over("line") + 1),
    )


def _share_scores(report: Report, first: pl.Series, last: pl.Series) -> pl.Series:
    """Whether a product (`first`, rows) makes scores, more than it reads, that are a side of another one (`last`)."""
    kernels = operations_with_roofs(report).select("row", "sides")
    pairs = pl.DataFrame({"row": first, "last": last}).join(kernels, on="row", how="left", maintain_order="left")
    pairs = pairs.join(kernels.rename({"row": "last"}), on="last", how="left", maintain_order="left", suffix="_last")
    then_height, then_inner, then_batch = (pl.col("sides_last").list.get(at) for at in (1, 2, 3))
    same = (then_height == on_gpu.M) & (then_inner == on_gpu.N) & (then_batch == on_gpu.BATCH)
    more = on_gpu.N * on_gpu.M >= on_gpu.K * (on_gpu.N + on_gpu.M)
    return pairs.select((same & more).fill_null(value=False)).to_series()


def _before(places: pl.Expr) -> pl.Expr:
    """The last of `places`, null in between, before each operation of its line."""
    return places.forward_fill().shift(1).over("line")


def _behind(places: pl.Expr) -> pl.Expr:
    """The next of `places`, null in between, behind each operation of its line."""
    return places.backward_fill().shift(-1).over("line")


#: Types of weights and what is computed with them.
_FLOATS: Final = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}

#: So much of the kernel time casts take in a training that has too little work for each of its weights.
_OF_TRAINING: Final = 0.15

#: Copies to another type: those whose input's type only the call tells cast, too.
_CASTS: Final = on_gpu.COPIES & OUTPUT.is_in(list(_FLOATS)) & (INPUTS != OUTPUT)


@on_gpu.choosing(_CASTS, 0.03)  # losses and norms in float32 need some
def recurring_casts(work: Work) -> Finding | None:
    """One finding per device whose kernels convert values between types again and again."""
    per, device = say.per_iteration(work.report), work.device
    updates = device.launches(FAMILY == "optimizer") > 0
    trains = updates or on_host.runs_backward(on_host.traced(work.report) or work.report)
    # fewer do not recur; of a training under autocast they take a tenth
    if work.rows.height < max(32, per.iterations or 1) or (trains and work.share < _OF_TRAINING):
        return None
    types, outputs = (work.names.get_column(column) for column in ("inputs", "output_type"))
    source, target = (_FLOATS.get(one, one) for one in (types.item(0).partition("/")[0], outputs.item(0)))
    all_types = {*outputs, *(one for each in types for one in each.split("/") if one)}
    names = sorted(_FLOATS.get(one, one) for one in all_types)
    between = f"between {names[0]} and {names[1]}" if len(names) == len(("from", "to")) else "from type to type"
    # idle time of the device right before casts that begin after it: of each from the end of the process's launch
    # before, and no more than in the median: what else the host did now and then, as loading data, is not the cast's
    called = with_facts(work.report, work.rows, "call_start")
    before = say.launch_before(work.report, called.select("process_id", at="call_start"))
    gaps = idle_spans(work.report)[device.device].select(since="start", start="end")
    waits = called.select("start", before=before).drop_nulls("before").join(gaps, on="start")
    idle = waits.select(ns=pl.col("start") - pl.max_horizontal("since", "before")).filter(pl.col("ns") > 0).to_series()
    waited = int(idle.clip(upper_bound=idle.sort().item(len(idle) // 2)).sum()) if len(idle) else 0
    compiled = device.launches(on_gpu.COMPILED_KERNELS) > 0
    # with float16, as under autocast, and without an optimizer, which would be of a training
    half = "f16" in all_types and "bf16" not in all_types and not updates
    gone, autocast = on_gpu.without(work.rows).gone, on_host.within(work.report, _of_autocast(work.report)).mending
    return work.finding(
        "recurring-casts",
        to=f"{target} from {source}" if source else target,
        around=say.operator_of(work.report, device.are(_CASTS)),
        waited=waited,
        headline=say.per_iteration(work.report).plural(work.rows.height, "cast", between),
        compiled=compiled,
        eager=not compiled,
        half=half,
        wide=not half,
        at_stake_ns=work.ns + waited,
        mending=autocast._replace(gone=pl.concat([gone, autocast.gone]).unique(maintain_order=True)),
    )


def _of_autocast(report: Report) -> pl.DataFrame:
    """Where autocast converts what an operator is given, before it calls the one of the same name: SPAN."""
    every = on_host.operators(report)
    inner = every.select("name", row="parent", until="start")
    casts = every.filter(name="aten::to").select(row="parent").unique()
    spans = every.join(inner, on=["row", "name"], maintain_order="left").join(casts, on="row", how="semi")
    return spans.select(*THREAD, "start", end="until")


_NORMALIZATION: Final = "aten::batch_norm"
_ADDS: Final = "aten::add_"  # adds the bias, forward, within a convolution; aten::sum sums its gradient, backward


@Rule
def bias_before_batchnorm(report: Report) -> Findings:
    """One finding per device that adds biases of convolutions before batch normalizations."""
    if _NORMALIZATION not in report.kind("op").get_column("name").unique().cast(pl.String):
        return
    tree, work = _host_tree.host_tree(report), _work.launched_work(report).filter(pl.col("kind") == "kernel")
    operators, operator = tree.of_kinds("op"), work.get_column("operator")
    outermost = operators & tree.nearest(tree.rows.get_column("parent"), operators).is_null()
    rows = tree.rows.select(*THREAD, pl.col("name").cast(pl.String), event_id="last_id").with_row_index("row")
    name, after = pl.col("name"), pl.col("name").shift(-1)
    # the normalization counts its batches before it begins
    counts = (name == _ADDS) & (after == _NORMALIZATION)
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift(-1)) for key in THREAD)
    follows = name.is_in(("aten::conv1d", "aten::conv2d", "aten::conv3d")) & (after == _NORMALIZATION) & same
    before = rows.filter(outermost).filter(~counts.fill_null(value=False)).filter(follows)
    types = beside(before, report.table("op_detail"), "input_types").get_column("input_types").cast(pl.String)
    # its place among a convolution's inputs: image, weight, bias
    useless = marked(tree.rows.height, before.get_column("row").filter(types.str.json_path_match("$[2]") != ""))
    cause = gathered(_host_tree.inherited(tree.rows, _host_tree.forward_rows(report)), operator)
    forward, backward = (tree.nearest(inner, useless).is_not_null() for inner in (operator, cause))
    names = gathered(tree.rows.get_column("name"), operator).cast(pl.String)
    # kernels that add biases, and that sum their gradients
    biases = work.filter(((names == _ADDS) & forward) | ((names == "aten::sum") & backward)).get_column("row")
    own = exclusive_operations(report).filter(pl.col("row").is_in(biases.implode()))
    for one in on_gpu.works(report, own):
        yield one.finding("bias-before-batchnorm", "")


# Losses by hand over large logits.

_FULL: Final = 0.15  # a kernel that takes this part of the softmax's time, or more, works on tensors of its size
_LEFT: Final = {"softmax": 2, "fill": 1}  # how many of these passes a fused loss has, forward and backward

#: What entropies have, and neither dice losses nor formulas of exponentials, such as log1p(exp(x)).
_LOGS: Final = ("log_softmax", "log", "log2", "log10", "logsumexp", "xlogy")
_FUSED_LOG: Final = r"^triton_\w*?_log(?:_softmax|2|10|sumexp)?(?:_|$)"  # in a kernel of torch.compile

#: Softmaxes of long rows, or their exponential by hand: those of warps have up to 1024 or 2048 values, as attention's.
_BY_HAND: Final = (LIBRARY == "aten") & _EXP
_LONG_SOFTMAX: Final = _BY_HAND | ((FAMILY == "softmax") & ~pl.col("function").str.contains("softmax_warp"))


@on_gpu.choosing(_LONG_SOFTMAX, 0.012, PYTORCH)  # one pass of several
def large_logits(work: Work) -> Finding:
    """One finding per device with losses of several passes over tensors as large as a softmax's."""
    passes = work._replace(rows=_losses(work.report, on_gpu.stream_lines(work.report, work.device.device)))
    # F.kl_div of two models' words has no fused kernel
    diverges = on_gpu.decoded_as(passes.rows, OPERATION == "xlogy").any()
    # two softmaxes, as forward and backward, and one fill of each loss are left, in the type of the logits: of tensors
    # of 2³¹ bytes or more each is several kernels in a row. An exponential by hand reads and writes once: a softmax of
    # half of the bytes passes over them more often, and takes as long
    another = (pl.col("name") != pl.col("name").shift(1)).fill_null(value=True).over("run")
    softmax, fill = (pl.col(name) & ((pl.col(name) & another).cum_sum().over("run") <= _LEFT[name]) for name in _LEFT)
    halves = pl.col("short").any().over("run") & ~pl.col("by_hand")
    left = passes.rows.with_columns(stays=softmax | fill, halves=halves)
    shorter = left.filter(pl.col("stays") & pl.col("halves"))
    return passes.finding(
        "large-logits",
        passes.longest,
        wide=not passes.rows.get_column("short").all(),
        action="torch.compile of the loss with F.kl_div, of logits without .float()"
        if diverges
        else "F.cross_entropy(logits, targets), without .float() and one_hot",
        mending=Mending(
            shorter.select("row", saved_ns=on_gpu.part("exclusive_ns", 1 - on_gpu.HALF_LEFT)),
            left.filter(~pl.col("stays")).get_column("row"),
        ),
    )


def _losses(report: Report, lines: pl.DataFrame) -> pl.DataFrame:
    """The passes of losses by hand: rows of `lines` with run, softmax, by_hand, fill and short.

    A loss is a run of kernels between two products with a large softmax and a logarithm in it; passes are those about
    as long. Those of a policy's few actions, or of sampling one word, are short.
    """
    decoded = on_gpu.with_decoded(
        on_gpu.with_operators(report, lines),
        # between products in a loss
        passes=FAMILY.is_in(("elementwise", "copy", "fill", "reduce", "softmax", "loss", "index")),
        softmax=_LONG_SOFTMAX,
        by_hand=_BY_HAND,
        cast=on_gpu.COPIES & ((INPUTS != OUTPUT) | (OUTPUT == "")),
        fill=FAMILY == "fill",
        moved=FAMILY == "copy",
        # types of half the size of float32, in which logits are computed
        short=pl.concat_str(INPUTS, OUTPUT, separator="/").str.contains(r"\bb?f16\b"),
        logs=OPERATION.is_in(_LOGS) | pl.col("function").str.contains(_FUSED_LOG),
    ).with_columns(pl.col("passes", "moved") | on_gpu.MOVES)
    wall = pl.when(~pl.col("passes") & (pl.col("kind") == "kernel")).then(pl.col("inner").is_in(on_gpu.BATCHED))
    sides = (wall.forward_fill().over("line"), wall.backward_fill().over("line"))
    attends = pl.all_horizontal(side.fill_null(value=False) for side in sides)
    decoded = decoded.with_columns(attends=attends, run=pl.struct("line", "passes").rle_id())
    # of scores in 16 bits only operators tell whose they are
    known = pl.lit(value=decoded.get_column("inner").is_not_null().any()) | ~pl.col("short").all().over("run")
    runs = decoded.filter(pl.col("passes") & ~pl.col("attends") & known & pl.col("logs").any().over("run"))
    widest_ns = pl.col("exclusive_ns").filter("softmax").max().over("run")
    of_its_size = pl.col("exclusive_ns").is_between(_FULL * widest_ns, _LONGEST_PASS * widest_ns)
    large = runs.filter(of_its_size, widest_ns >= on_gpu.SHORTEST_NS)
    other = (~pl.col("softmax") & ~pl.col("moved") & ~pl.col("fill")).sum().over("run")
    # those into a short type are of the backward pass: of autocast, too, which casts within the loss
    explicit = pl.col("cast") & ~pl.col("short") & (pl.col("outer") == "aten::to").fill_null(value=False)
    return large.filter((other > 1) | explicit.any().over("run"))


# Forward passes that run again within backward.

#: Code that calls torch.utils.checkpoint, in no comment or text.
_CHECKPOINTS: Final = r"""^[^#'"]*(?:^|[^.\w]|\bcheckpoint\.)checkpoint(?:_sequential|_wrapper)?\("""


@Rule.of(PYTORCH)
def recomputation(report: Report) -> Findings:
    """One finding per device that runs layers again within backward, by the operators there."""
    line = on_gpu.stream_lines(report, *(device.device for device in on_gpu.kernel_sums(report)))
    line = on_gpu.with_operators(report, line)
    line = line.with_columns(run=pl.struct("line", "node").rle_id(), place=pl.int_range(pl.len()))
    # with what a node launches between them without an operator
    place = pl.col("place").filter("again")
    inside = pl.col("place").is_between(place.min().over("run"), place.max().over("run"))
    for work in on_gpu.works(report, line.filter(inside)):
        called = with_facts(report, work.rows, "call_start", "call_end").drop_nulls(("call_start", "call_end"))
        memory = report.devices.filter(device=work.device.device).get_column("memory_bytes").drop_nulls()
        yield work.finding(
            "recomputation",
            "",
            holds=int(memory.item(0)) if len(memory) else 0,
            where=literal(line_that_reads(report, _CHECKPOINTS, say.per_iteration(report).iterations or 1)),
            # and what the host does from the first of them to the last
            mending=on_gpu.without(work.rows)._replace(host=on_gpu.host_of(called, "run", end="call_end")),
        )


#: Kernels of sorts, not of topk.
_SORTS: Final = (FAMILY == "sort") & (OPERATION == "sort")
_COMPARES: Final = "aten::unique_dim"  # rows, of which something else is told
_SORTING: Final = ("aten::sort", "aten::argsort", "aten::msort", "aten::quantile", "aten::nanquantile")


#: What uses all that was sorted; and the part of a sort's time in which nothing can read a whole array of it: to eight
#: passes that read and write keys of 8 bytes and values of 4, reading the values once is a fiftieth.
_USES_ALL: Final = LIBRARY.is_in(["cub", "thrust"]) & FAMILY.is_in(["index", "reduce", "scan", "sort"])
_TOO_SHORT: Final = 50

#: What puts other values in the order that was found, so soon after; scattering back and embeddings, as in sampling
#: and of nearest neighbours, do with the first entries.
_REORDERS: Final = (LIBRARY == "aten") & ((FAMILY == "index") | pl.col("function").str.contains("searchsorted"))
_SOON: Final = 8
#: Kernels that write so many values with each thread, at most, in blocks of so many threads.
_WRITERS: Final = r"(?:index|gather)_elementwise_kernel<(?:\(int\))?(?<threads>\d+), (?:\(int\))?(?<each>\d+)"


@on_gpu.choosing(_SORTS, 0.1)
def full_sort(work: Work) -> Finding | None:
    """One finding per device whose kernels sort whole arrays of which the first entries may do.

    Of PyTorch what topk found, what other operators sort, and sorts by whose order others are put are left out;
    elsewhere sorts after which the next operation may read all.
    """
    report, torch = work.report, say.in_pytorch(work.report)
    if torch and work.device.launches(on_gpu.TOPK) >= work.rows.height:
        return None
    sorts, work = work.rows.height, work._replace(rows=_little_read(work, torch=torch))
    work = work._replace(rows=on_gpu.with_operators(report, work.rows).filter(pl.col("outer").ne_missing(_COMPARES)))
    if 2 * total(work.rows.filter(~pl.col("outer").is_in(_SORTING)), "exclusive_ns") > work.ns:
        return None
    gradients = on_gpu.with_operators(report, exclusive_operations(report)).filter(
        pl.col("node").str.starts_with("SortBackward"), device=work.device.device, inner="aten::scatter_"
    )
    # where nothing reads all of what any sort gives
    gradients = gradients.clear() if work.rows.height < sorts else gradients
    work = work._replace(rows=pl.concat([work.rows, gradients.select(work.rows.columns)]))
    return work.finding(
        "full-sort",
        gradients=gradients.height,
        rows=torch,
        arrays=not torch,
        action=spoken(report, phrases("selections"), phrases("selections")[tools.CUDA]),
        # what is left of a sort by a selection, which reads the keys twice, and sorts what it finds: about a third for
        # 32 of 8 million by a histogram of the keys
        # rows that fit on the chip are sorted in one read; less the copies of PyTorch's topk for 20 of 2,048 and 4,096
        left=0.45 if "SortKVInPlace" in work.most else None if torch else 0.3,
        at_most=not torch,
    )


def _little_read(work: Work, *, torch: bool) -> pl.DataFrame:
    """The kernels of sorts after which the next copy or kernel on the stream is too short to read all of the result.

    Of PyTorch those soon after which none that reorders is long enough for all, or writes as many values.
    """
    lines = on_gpu.stream_lines(work.report, work.device.device).filter(pl.col("kind") != "memset")
    shapes = operations_with_roofs(work.report).select("row", values=on_host.elements())
    lines = with_facts(work.report, on_gpu.with_operators(work.report, lines), "grid_x")
    lines = lines.join(shapes, on="row", how="left", maintain_order="left")
    # the most values that a kernel writes, by its launch
    writes = pl.col("name").cast(pl.String).str.extract_groups(_WRITERS).struct
    each = pl.col("grid_x") * writes.field("threads").cast(pl.Float64) * writes.field("each").cast(pl.Float64)
    decoded = on_gpu.with_decoded(lines, sorts=_SORTS, uses=_USES_ALL, fills=FAMILY == "fill", orders=_REORDERS)
    decoded = decoded.filter(~pl.col("fills")).with_columns(run=pl.struct("line", "sorts").rle_id())
    ns, others = (
        pl.col("exclusive_ns"),
        pl.col("outer").str.contains("scatter|embedding|value_selecting").fill_null(value=False),
    )
    # all that reorders after a sort, until the next one, may write less than was sorted
    decoded = decoded.with_columns(after_sort=pl.col("sorts").cum_sum().over("line"))
    sorted_values = pl.when("sorts").then(pl.col("values").fill_null(0)).max().over("line", "after_sort")
    written = pl.when("orders").then(each.fill_null(float("inf"))).sum().over("line", "after_sort")
    orders = pl.when(pl.col("orders") & ~others & (written >= sorted_values)).then(ns)
    soon = pl.max_horizontal(orders.shift(-at) for at in range(1, _SOON + 1)).fill_null(0)
    after, uses = (soon, pl.lit(value=False)) if torch else (ns.shift(-1), pl.col("uses").shift(-1))
    decoded = decoded.with_columns(after=after.over("line"), uses=uses.over("line"))
    # what takes more times as long as its longest kernel may be several sorts in a row
    longest = pl.min_horizontal(ns.sum(), 10 * ns.max())
    runs = decoded.group_by("run").agg(pl.col("sorts", "after", "uses").last(), ns=longest)
    runs = runs.filter("sorts", ~pl.col("uses"), pl.col("ns") >= _TOO_SHORT * pl.col("after"))
    chosen = decoded.join(runs, on="run", how="semi").get_column("row")
    return work.rows.filter(pl.col("row").is_in(chosen.implode()))


@on_gpu.choosing(_SORTS, 0.1)
def repeated_coalescing(sorting: Work) -> Finding | None:
    """One finding per device whose products sort the entries of the sparse tensors that they are given."""
    rows = on_gpu.with_operators(sorting.report, exclusive_operations(sorting.report))
    rows = rows.filter(sorting.device.are(pl.lit(value=True)), pl.col("inner").is_in(on_host.COALESCING))
    # a program that calls coalesce() itself may have to: gradients of embeddings are not in order
    work = sorting._replace(rows=rows.filter(~pl.col("outer").is_in(on_host.COALESCING)))
    sorts = work.rows.join(sorting.rows, on="row", how="semi").height
    if sorts <= 1:  # a tensor that is new is put in order once
        return None
    return work.finding("repeated-coalescing", operator=work.rows.select(pl.col("outer").mode().sort().first()).item())


# Orders of the elements of tensors: conversions of images, and copies of transposed tensors.

#: What brings channels last by the dimensions of most convolutions: nn.Module.to changes no weights of one.
_LAYOUTS_LAST: Final = {
    "1": "nn.Conv2d of height 1, in channels_last",
    "3": CHANNELS_LAST.replace("channels_last", "channels_last_3d"),
}

#: Normalizations of images in NCHW, channel by channel, and what is left of them in channels_last: less than half of a
#: ResNet's on an H100.
_BY_CHANNEL: Final = (
    r"batch_norm_(?:collect_statistics|backward)_kernel\b|\bbn_(?:fw|bw)_\w*(?:NCHW|1C11_(?:kernel_new|singleread))"
)


@on_gpu.choosing(on_gpu.LAYOUTS, 0.01)  # some are in well-made programs, too
def layout_conversions(work: Work) -> Finding | None:
    """One finding per device on which cuDNN converts images to the layout of its kernels and back."""
    if on_host.wants_planes(work.report):
        return None  # in channels_last those would convert all that they read
    norms = exclusive_operations(work.report).filter(work.device.are(pl.col("name").str.contains(_BY_CHANNEL)))
    one = work.finding(
        "layout-conversions",
        mending=Mending(norms.select("row", saved_ns=on_gpu.part("dur_ns", 0.5)), work.rows.get_column("row")),
        claims=pl.concat([work.rows, norms]),
    )
    sides = on_host.outermost(work.report).get_column("name").str.extract(r"^aten::conv(?:_transpose)?(\d)d$")
    most = str(sides.drop_nulls().mode().sort().last())
    if one.action != CHANNELS_LAST or most not in _LAYOUTS_LAST:
        return one
    return one._replace(action=_LAYOUTS_LAST[most], general=most == "1")


# Copies that change the order of a tensor's elements.

#: The least part of the kernel time that the program's own operators copy; of all a tenth, where none are recorded.
_WORTH_COPIES: Final = 0.05

#: What users write that copies a tensor into another order, by the outermost operator around the copy.
_WRITTEN: Final = {
    "aten::contiguous": ".contiguous()",
    "aten::reshape": ".reshape() of a transposed tensor",
    "aten::flatten": ".flatten() of a transposed tensor",
    "aten::clone": ".clone() of a transposed tensor",
    "aten::to": ".to(memory_format=…)",
    "aten::linear": "a linear layer on a transposed tensor",
    "aten::layer_norm": "layer_norm on a transposed tensor",
    "aten::group_norm": "group_norm on a transposed tensor",
    "aten::conv1d": "a convolution of a transposed tensor",
    "aten::conv2d": "a convolution of a transposed tensor",
    "aten::matmul": "matmul of transposed tensors",
    "aten::einsum": "einsum, which permutes",
}

#: Kernels that work element by element, where in order they would be vectorized.
_ACROSS: Final = pl.col("function").str.contains("(?:^|::)elementwise_kernel$")


@on_gpu.choosing(on_gpu.COPIES & _ACROSS & (INPUTS == OUTPUT) & (OUTPUT != ""), _WORTH_COPIES)
def layout_copies(strided: Work) -> Finding | None:
    """One finding per device on which the program copies tensors of one type into another order."""
    rows = on_gpu.with_operators(strided.report, strided.rows)
    known = rows.get_column("outer").is_not_null().any()
    copied = (pl.col("outer").is_in(_WRITTEN.keys()) & (pl.col("inner") == "aten::copy_")).fill_null(value=not known)
    work = strided._replace(rows=rows.filter(copied))
    # backward copies what autograd's views need, in any program: it counts where the program's own copies do
    own_ns = total(work.rows.filter(pl.col("node").is_null()), "exclusive_ns")
    if not work.rows.height or own_ns < (_WORTH_COPIES if known else 0.1) * work.device.kernel_ns:
        return None
    if (kept := _kept_layout(work)) is not None:
        return kept
    top = say.most(work.rows, "outer", "exclusive_ns")
    return work.finding("layout-copies", strided.most, by=f", most by {_WRITTEN[top]}" if top in _WRITTEN else "")


#: Operators that keep the order of their first tensor, and read the other one across.
_SUMS: Final = ("aten::add", "aten::add_", "aten::sub", "aten::mul")


def _kept_layout(copies: Work) -> Finding | None:
    """The finding, where most copies put one tensor in order for norms of layers, which sums hand on from each."""
    report, forward = copies.report, pl.col("node").is_null()
    own = copies.rows.filter(pl.col("outer").is_in(["aten::layer_norm", "aten::rms_norm"]), forward)
    copied_ns, iterations = total(own, "exclusive_ns"), say.per_iteration(report).iterations or 1
    if copied_ns < copies.ns / 2 or own.height < 4 * iterations:
        return None
    every = exclusive_operations(report).filter(device=copies.device.device, kind="kernel")
    across = on_gpu.with_operators(report, every.filter(on_gpu.decoded_as(every, _ACROSS)))
    least = operations_with_roofs(report).select("row", left=pl.col("dram_ns") / on_gpu.REACHED["memory"])
    sums = across.filter(pl.col("inner").is_in(_SUMS), forward).join(least, on="row", how="left", maintain_order="left")
    convolutions = on_host.outermost(report).get_column("name").str.contains("^aten::conv").sum()
    # layers of which each transposes anew are no such ones
    if 2 * sums.height < own.height or 2 * convolutions > own.height:
        return None
    spared = (pl.col("exclusive_ns") - pl.col("left")).clip(lower_bound=0).fill_null(0).cast(pl.Int64)
    shorter = sums.select("row", saved_ns=spared)
    return copies._replace(rows=pl.concat([own, sums.select(own.columns)])).finding(
        "layout-copies: kept",
        say.most(own, "name", "exclusive_ns"),
        copied=own.height,
        sums=sums.height,
        at_stake_ns=copied_ns + total(shorter, "saved_ns"),
        mending=on_gpu.without(own)._replace(shorter=shorter),
    )
