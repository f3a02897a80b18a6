"""Weights, and matrices of graphs, made anew before each layer; gradients that nothing uses, or few rows of."""

import re
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_host import SPAN, elements, side, sides
from kanalyze.analyses.findings.rules import Finding, Findings, Rule
from kanalyze.analyses.shared.analysis import once_per_process, source_lines
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD, outermost
from kanalyze.columns import nearest
from kanalyze.report import Report

# Weights that are made of others in each pass, though nothing trains them.


@on_gpu.choosing(pl.col("name").str.contains("weight_norm_fwd"), 0.01)
def weight_norm(norms: on_gpu.Work) -> Finding | None:
    """One finding per device on weights that weight normalization makes anew where it has no backward pass."""
    report, device = norms.report, norms.device.device
    if any(one.launches(pl.col("name").str.contains("weight_norm_bwd")) for one in on_gpu.kernel_sums(report.whole)):
        return None
    # with the Python of a parametrization or hook before each; what follows calls the layer
    operators = on_host.with_code(report).filter(pl.col("launches") > 0, name="aten::_weight_norm")
    inside = on_host.within(report, operators)
    claims = intervals.union(pl.concat([norms.rows.select("start", "end"), say.idle_in(report, device, inside.host)]))
    change = on_gpu.without(norms.rows).with_all_of(inside.mending)
    return norms.finding("weight-norm", claims=claims, at_stake_ns=intervals.length(claims), mending=change)


#: What divides rows by their lengths, and what may make a tensor of as many rows right before.
_NORMALIZES: Final = r"^aten::(?:linalg_vector_norm|norm|clamp_min|div)_?$"
_MAKES: Final = r"^aten::(?:index|index_select|embedding|gather|cat|stack|to|copy_|rand\w*|normal_|uniform_)$"
_TAKES_ROWS: Final = r"^aten::(?:index|index_select|embedding)$"


@Rule
def normalized_tables(report: Report) -> Findings:
    """One finding per device on tables whose rows are normalized in each pass, which no operator there makes."""
    every = on_host.working(report)
    if on_host.runs_backward(report):  # a training changes them
        return
    marked = every.with_columns(
        height=side(0, 0),
        normalizes=pl.col("name").str.contains(_NORMALIZES),
        made=pl.col("name").shift(1).over(THREAD).str.contains(_MAKES).fill_null(value=False),
        other=pl.max_horizontal(side(1, -1), side(1, -2)),
    )
    # tables of as many rows as a side of products with few, and of which nothing else reads a tensor but for a few rows
    few = pl.col("name").str.contains(on_host.MULTIPLIES) & (8 * side(0, -2) <= pl.col("other"))
    takes_rows = pl.col("name").str.contains(_TAKES_ROWS)
    others = ((~pl.col("normalizes") & ~takes_rows) | pl.col("made")) & (sides(pl.col("input_shapes")).list.len() > 1)
    taller, read = (marked.filter(chosen).get_column(name) for chosen, name in ((few, "other"), (others, "height")))
    height = pl.col("height")
    tables = marked.filter("normalizes", height.is_in(taller.implode()), ~height.is_in(read.implode()))
    for work in on_host.works_within(report, tables.select(SPAN)):
        yield work.finding("weight-norm: table", rows=int(tables.select(height.max()).item()))


#: What computes a matrix element by element, of which some bring it to another type alone.
_CASTS: Final = r"^aten::(?:to|_to_copy|float|half|bfloat16)$"
_BY_ELEMENT: Final = (
    r"^aten::(?:to|_to_copy|float|half|bfloat16|mul|div|add|sub|neg|pow|sqrt|rsqrt|where|masked_fill|clamp|sign"
    r"|round)_?$"
)
#: Layers that take such a matrix, and what makes another one in each pass.
_TAKES_WEIGHTS: Final = r"^aten::(?:linear|conv[123]d)$"
_MAKES_WEIGHTS: Final = (
    r"^aten::(?:einsum|rand\w*|normal|uniform|bernoulli|index\w*|scatter\w*|gather|cat|stack|embedding)_?$"
)


@Rule
def computed_weights(report: Report) -> Findings:
    """One finding per device on weights that are computed before each layer that takes them, where nothing trains."""
    if on_host.runs_backward(report) or not say.per_iteration(report).iterations:
        return
    # operators in a row that compute the weight of the next layer of tensors with its shape: not casts alone, nor of
    # what is made in the pass: by a product, of random numbers, in place, of a sample's style
    name, layer, weight, shapes = pl.col("name"), pl.col("takes"), pl.col("weight"), pl.col("input_shapes")
    group, added = [*THREAD, "layer"], name == "aten::addmm"
    columns = pl.when(name == "aten::linear").then(side(1, 0)).when(added).then(side(2, -1)).otherwise(side(1, -1))
    rows = pl.when(added).then(side(1, -2)).otherwise(elements() / side(0, -1))
    line = on_host.working(report).with_columns(
        takes=name.str.contains(_TAKES_WEIGHTS),
        result=pl.when(name.str.contains(r"^aten::(?:matmul|mm|bmm|addmm|linear)$")).then(rows * columns),
        style=(sides(shapes, 1).list.len() == len(("out", "in", "height", "width"))) & (side(1, 0) == 1),
    )
    line = line.with_columns(
        layer=layer.shift(1, fill_value=False).cum_sum().over(THREAD),
        result=pl.col("result").shift(1).over(THREAD),
        made=name.shift(1).over(THREAD).str.contains(_MAKES_WEIGHTS),
        weight=pl.when(layer & (elements() != elements(1))).then(sides(shapes, 1)),
    )
    line = line.with_columns(weight=weight.last().over(group))
    same = (sides(shapes) == weight) | (sides(shapes, 1) == weight)
    other = ~(layer | (name.str.contains(_BY_ELEMENT) & same).fill_null(value=False))
    made = pl.col("made") | (pl.col("result") == weight.list.eval(pl.element().product()).list.first())
    in_place = (pl.int_range(pl.len()).over(group) == 0) & name.str.ends_with("_")
    chains = line.filter(~other.cum_max(reverse=True).over(group), ~layer)
    unlike = (made | pl.col("style")).fill_null(value=False) | in_place
    chains = chains.filter((~name.str.contains(_CASTS)).any().over(group), ~unlike.any().over(group))
    for work in on_host.works_within(report, chains):
        yield work.finding("weight-norm: computed")


# Weights that come from the host in each pass.

#: What weights go through that stay as they are.
_KEEPS: Final = r"^aten::(?:to|_to_copy|pin_memory|is_pinned|detach_?|empty_like|_has_compatible_shallow_copy_type)$"
_SHAPES: Final = 3  # of a model: a gallery that is searched, or templates that are matched, are of fewer
_COPIED_AGAIN: Final = 3  # times that layers took such a weight in between


@Rule
def offloaded_weights(report: Report) -> Findings:
    """One finding per device on weights that are copied to it before the layers that take them, if nothing trains."""
    passes = say.per_iteration(report).iterations
    if not passes or on_host.runs_backward(report):
        return
    inside = on_host.within(report, _copied_weights(report))
    copies = on_host.device_copies(report).filter(pl.col("row").is_in(inside.mending.gone.implode()))
    if 2 * total(copies, "exclusive_ns") >= total(copies, "dur_ns"):  # not ahead, beside kernels
        weights_bytes = total(copies.filter(pl.col("detail") == on_host.TO_DEVICE), "size_bytes") // passes
        yield from on_host.on_time(report, "offloaded-weights", inside, copies=copies.height, bytes=weights_bytes)


def _copied_weights(report: Report) -> pl.DataFrame:
    """Copies in a row of weights, with biases among them, to the device again and again: SPAN.

    Weights have a shape that layers take, beside input of another one, and hardly anything else does: nor does the host
    make them anew for each copy.
    """
    name, shapes, ran = pl.col("name"), pl.col("input_shapes"), pl.col("launches") > 0
    every = on_host.outermost(report).sort(*THREAD, "start")
    every = every.with_columns(
        moved=name.is_in(("aten::to", "aten::_to_copy")) & (pl.col("to_device") > 0) & ~pl.col("aside"),
        takes=ran & name.str.contains(_TAKES_WEIGHTS) & (sides(shapes) != sides(shapes, 1)),
        other=~name.str.contains(_KEEPS),
        shape=shapes.cast(pl.String).str.extract_all(r"\[[\d, ]*\]"),
    )
    given = every.select("moved", "takes", "other", "shape", which=pl.int_ranges(pl.col("shape").list.len()))
    given = given.explode("shape", "which").filter(pl.col("shape").str.contains(","))
    weight = pl.col("takes") & (pl.col("which") == 1)
    given = given.with_columns(turn=weight.cum_sum().over("shape"), weight=weight)
    turns = given.group_by("shape").agg(
        again=pl.col("turn").filter("moved").n_unique(),
        moves=pl.col("moved").sum(),
        others=(pl.col("other") & ~pl.col("weight")).sum(),
    )
    few = 2 * pl.col("others") < pl.col("moves")  # as in a set-up
    weights = turns.filter(few, pl.col("again") >= _COPIED_AGAIN).get_column("shape")
    if len(weights) < _SHAPES:
        return every.clear().select(SPAN)
    first = pl.col("shape").list.first()
    line = every.filter(ran).with_columns(weight=pl.col("moved") & first.is_in(weights.implode()))
    line = line.with_columns(run=pl.struct(*THREAD, "moved").rle_id())
    beside = pl.col("moved") & ~first.str.contains(",") & pl.col("weight").any().over("run")
    line = line.with_columns(chosen=pl.col("weight") | beside).with_columns(run=pl.struct("run", "chosen").rle_id())
    spans = line.filter("chosen").group_by(*THREAD, "run", maintain_order=True)
    return spans.agg(pl.col("start").first(), pl.col("end").last()).select(SPAN)


# Matrices of graphs, which are put in order before each layer that takes them, with all else that makes them.

#: What is told of an operator and its tensors, and with other values that it is given.
_TAKES: Final = pl.concat_str(pl.col("name", "input_shapes").cast(pl.String), separator=" ", ignore_nulls=True)
_TEXT: Final = pl.concat_str(_TAKES, pl.col("input_values").cast(pl.String), separator=" ", ignore_nulls=True)
_PAIR: Final = 2  # an index has a row and a column for each entry
_MADE: Final = ("row", *SPAN, "input_shapes", "input_values", "call", "place")


@Rule
def coalesced_again(report: Report) -> Findings:
    """One finding per device on square sparse tensors of one size that the program puts in order again in a pass."""
    passes, square = say.per_iteration(report).iterations or 0, side(0, 0) == side(0, 1)
    calls = on_host.working(report).filter(pl.col("name").is_in(on_host.COALESCING), square)
    if not passes or calls.height < 2 * passes:  # a matrix that is new is put in order once
        return
    # of as many entries before and after: by the shapes of all that the operators within take
    inner = nearest(on_host.operators(report), calls.select(call="row", until="stop").sort("call"), ("row", "call"))
    inner = inner.filter(pl.col("row") < pl.col("until")).sort("row")
    shapes = inner.group_by(row="call").agg(shapes=pl.col("input_shapes").cast(pl.String).str.join(" "))
    alike = on_host.with_nodes(report, calls).join(shapes, on="row").sort("row")
    # values with gradients, as of attention, are others in each layer
    alike = alike.filter(pl.col("shapes") == pl.col("shapes").mode().sort().first(), ~pl.col("makes_node"))
    made = _made_alike(report, alike)
    left = 0 if alike.height == calls.height and _stays(report, alike, made) else 1
    spans = made.group_by("call").agg(pl.col(THREAD).first(), pl.col("start").min(), pl.col("end").max()).sort("call")
    for work in on_host.works_within(report, spans):
        kernels = work.rows.group_by("name").agg(pl.len(), ns=pl.col("exclusive_ns").sum())
        # a kernel that takes less of their time may not run in each
        once = kernels.filter(pl.col("ns") >= 0.02 * work.ns).select(pl.col("len").min()).item()
        times = (2 * (once or 0) + passes) // (2 * passes)
        # nearest neighbours of other points are as many
        if times > 1 and not work.device.launches(on_gpu.TOPK):
            others = made.height // spans.height - 1
            yield work.finding(
                "repeated-coalescing: same",
                at_stake_ns=work.ns * (times - left) // times,
                mending=on_host.within(report, spans.filter(pl.int_range(pl.len()) % times >= left)).mending,
                height=alike.select(side(0, 0)).item(0, 0),
                times=times,
                what="made" if others else "sorted",
                others=others,
                when="for all layers" if left else "before the loop",
                stays=not left,
            )


def _made_alike(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """What makes the matrices that `calls` put in order: these, and all in a row that is the same around each.

    Where no layer has a gradient, the calls alone; nothing if random numbers are drawn for each. It has :data:`_MADE`.
    """
    alone = calls.with_columns(call="row", place=pl.lit(0, pl.Int64)).select(_MADE)
    if calls.get_column("sequence_number").n_unique() < calls.height or calls.is_empty():
        return alone
    height = calls.select(side(0, 0)).item(0, 0)
    line = _around(report, calls, height)
    # up to where these are no longer the same before and after each call
    same = (pl.len() == calls.height) & (_TEXT.n_unique() == 1) & ~pl.col("apart").any()
    draws = pl.col("name").str.contains("rand|bernoulli|dropout|normal|uniform|poisson|exponential").any()
    places = line.group_by("place").agg(same=same, draws=draws)
    unlike = places.filter(~pl.col("same") | (pl.col("draws") & (pl.col("place") > 0))).get_column("place")
    first, last = unlike.filter(unlike <= 0).max(), unlike.filter(unlike >= 0).min()
    if first == last == 0:
        return alone
    within = pl.col("place").is_between(first or -line.height, last or line.height, closed="none")
    made, drawn = line.filter(within), places.filter(within).get_column("draws").any()
    # what is before may take one of several for each layer, of as many elements
    lengths = on_host.each_input(made).explode("sides").filter(pl.col("sides") != height).get_column("sides")
    before = on_host.each_input(line.filter("apart")).explode("sides").filter(pl.col("sides").is_in(lengths.implode()))
    before = line.join(before, on="row", how="semi")
    if before.select(_TAKES.n_unique() < _TEXT.n_unique()).item():
        return alone
    return made.filter(~pl.lit(drawn)).select(_MADE)


def _around(report: Report, calls: pl.DataFrame, height: float) -> pl.DataFrame:
    """The operators in a row around each of some calls: those of its run, with the call, and the place from it on.

    What takes another matrix, as features are, or has a gradient, is `apart`: a run begins with it.
    """
    every, sides_of = on_host.outermost(report).sort(*THREAD, "row"), pl.col("sides").list
    index = (sides_of.len() == _PAIR) & (sides_of.first() == _PAIR)
    others = (sides_of.len() > 1) & (sides_of.len() != sides_of.count_matches(height)) & ~index
    matrices = on_host.each_input(every).filter(others).get_column("row")
    apart = pl.col("makes_node") | pl.col("aside") | pl.col("row").is_in(matrices.implode())
    line = on_host.with_nodes(report, every).sort(*THREAD, "row").with_columns(apart=apart, at=pl.int_range(pl.len()))
    line = line.with_columns(run=pl.struct(*THREAD, pl.col("apart").cum_sum()).rle_id())
    own = line.filter(pl.col("row").is_in(calls.get_column("row").implode())).select("run", call="row", since="at")
    return line.join(own.filter(pl.len().over("run") == 1), on="run").with_columns(place=pl.col("at") - pl.col("since"))


def _stays(report: Report, calls: pl.DataFrame, made: pl.DataFrame) -> bool:
    """Whether matrices seem to be the same in each pass: `calls` merge entries, as many in each, as of no other graph.

    And nothing else takes tensors of as many elements as they are made of.
    """
    if made.is_empty():
        return False
    texts, first = calls.item(0, "shapes"), made.filter(pl.col("place") < 0)
    merged, before = re.findall(r"\[2, (\d+)\]", texts), re.findall(r"\[\[(\d+)\], ", texts)
    if not merged or not before or int(merged[0]) >= max(map(int, before)):
        return False
    given = on_host.each_input(first).select(pl.col("sides").list.max().cast(pl.Int64).cast(pl.String)).to_series()
    named = first.get_column("input_values").cast(pl.String).str.extract_all(r"\d+").explode()
    numbers = sorted({max(before, key=int), *given} - {*named})
    others = on_host.outermost(report).filter(pl.col("row") > made.get_column("row").min())
    others = others.join(made, on="row", how="anti")
    return not others.select(_TEXT.str.contains(rf"\b(?:{'|'.join(numbers)})\b").any()).item()


# Gradients that nothing uses: of a teacher, or of a backbone whose parameters the optimizer does not have.

_ZEROES: Final = ("aten::zero_", "aten::_foreach_zero_")
_FEWEST_CALLS: Final = 4  # of backward, behind the first one, which finds no gradients yet


@Rule
def unneeded_gradients(report: Report) -> Findings:
    """Per device what backward does for nothing but gradients never reset, or reset unused, by the operators."""
    for name, nodes in (("unneeded-gradients", _past_reset(report)), ("unneeded-gradients: reset", _unused(report))):
        spans = nodes.group_by(*THREAD, "call").agg(pl.col("start").min(), pl.col("end").max())
        if spans.is_empty():
            continue
        inside, called = on_host.within(report, spans), nodes.get_column("call").unique()
        taken = on_host.forward(report).join(nodes, on=["process_id", "sequence_number"], how="semi")
        calls = _calling(report).filter(pl.col("row").is_in(called.implode()))
        where = on_host.site_of(report, calls if name.endswith("reset") else outermost(taken))
        gradients = int(nodes.get_column("adds").sum()) // len(called)
        for work in on_host.works_within(report, spans):
            yield work.finding(name, gradients=gradients, where=where, mending=inside.mending)


def _past_reset(report: Report) -> pl.DataFrame:
    """The nodes of autograd with their `call` of backward, after the last gradient there that was reset.

    Those that were not are `adds`: the new gradient is added to that of the step before. There are no such nodes but
    where steps of an optimizer and calls of backward take turns, with as many gradients of both kinds in each call, and
    where nothing fills gradients with zeros.
    """
    nodes = _of_steps(report)
    calls = _alike(nodes, on_host.updated(report))
    return _between(nodes, calls)


def _unused(report: Report) -> pl.DataFrame:
    """The nodes of autograd as of :func:`_past_reset` whose gradients are reset before a step may use them.

    Their call of backward gives other gradients anew, and adds to these, which a step used before. The next call of
    another kind gives the same ones, by their shapes, and no others, all of them anew. Each call has a step.
    """
    calls, kind = _with_steps(_of_steps(report), on_host.updated(report)), pl.struct("added", "new")
    calls = calls.with_columns(kinds=kind.rle_id().over("process_id"))
    following = calls.unique(("process_id", "kinds"), keep="first", maintain_order=True).select(
        "process_id", pl.col("kinds") - 1, next_new="new", next_sums="sums"
    )
    calls = calls.join(following, on=["process_id", "kinds"], maintain_order="left")
    own = (pl.col("added") == pl.col("next_new")) & (pl.col("next_sums") == 0) & (pl.col("sums") > 0)
    chosen = calls.filter(own, pl.col("others") > 0)
    return _between(_of_steps(report), chosen if chosen.height >= _FEWEST_CALLS else chosen.clear())


def _between(nodes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The nodes that are between `since` and `until` of their `call`."""
    sides = calls.select("call", "since", "until")
    return nodes.join(sides, on="call", maintain_order="left").filter(pl.col("start").is_between("since", "until"))


def _of_steps(report: Report) -> pl.DataFrame:
    """The nodes of :func:`_in_calls` of a program that steps optimizers; none where something fills gradients."""
    every, name, updated = on_host.operators(report), pl.col("name"), on_host.updated(report)
    nodes = every.filter(on_host.IS_NODE)
    own = _calling(report)
    # what is filled before is set up
    zeroed = own.filter(name.is_in(_ZEROES), pl.col("start") > (updated.get_column("start").min() or 0))
    nested = outermost(nodes).height < nodes.height
    # nodes in nodes are of backward within backward, as checkpoints run it
    every_node = _in_calls(report)
    return every_node.clear() if updated.is_empty() or zeroed.height or nested else every_node


@once_per_process
def _calling(report: Report) -> pl.DataFrame:
    """The operators of threads that step optimizers, which no other operator calls, by time."""
    own = on_host.forward(report).join(on_host.updated(report), on=THREAD, how="semi").sort("start")
    rows = on_host.operators(report).get_column("row")
    return own.filter(~pl.col("parent").is_in(rows.implode()).fill_null(value=False))


@once_per_process
def _in_calls(report: Report) -> pl.DataFrame:
    """The nodes of autograd with their `call` of backward: the row of its operator, begun, by (its name).

    And whether a gradient `adds` to one that is there, and the shape of a `gradient`: null for others' nodes.
    """
    every, name = on_host.operators(report), pl.col("name")
    given = every.filter(name == on_host.ACCUMULATES).select("parent", "row", gradient="input_shapes")
    inner = every.group_by(row="parent").agg(adds=(name == "aten::add_").all())
    adds = pl.col("adds").fill_null(value=False)
    given = given.join(inner, on="row", how="left").select("gradient", row="parent", adds=adds)
    # a thread runs nothing else during its call: the last operator before a node is that of the call
    begun = _calling(report).select("process_id", begun="start", call="row", by="name")
    nodes = every.filter(on_host.IS_NODE)
    return nearest(nodes.join(given, on="row", how="left"), begun, ("start", "begun"), ["process_id"])


def _alike(nodes: pl.DataFrame, updated: pl.DataFrame) -> pl.DataFrame:
    """The calls of backward but the first one, as of :func:`_with_steps`, if all are alike."""
    calls = _with_steps(nodes, updated)
    return calls.filter(calls.height >= _FEWEST_CALLS, pl.lit(all(calls.select(_SAME).row(0))))


#: Whether all calls give as many gradients.
_SAME: Final = pl.col("sums", "others").n_unique() == 1


def _with_steps(nodes: pl.DataFrame, updated: pl.DataFrame) -> pl.DataFrame:
    """The calls of backward but the first one, by time, if each is of a loss, and has a step: call, since, until.

    And how many gradients they sum (`sums`, with their shapes: `added`) and give anew (`others`, `new`).
    """
    adds, of, keys = pl.col("adds"), ["process_id"], ["process_id", "begun", "call", "by"]
    since, until = pl.col("end").filter(~adds).max(), pl.col("start").filter(adds).max()
    numbers = {"sums": adds.sum(), "others": (~adds).sum()}
    shapes = pl.col("gradient").cast(pl.String).fill_null("")
    lists = {"added": shapes.filter(adds).sort(), "new": shapes.filter(~adds).sort()}
    calls = nodes.drop_nulls("call").group_by(keys).agg(since=since, until=until, **numbers, **lists).sort("begun")
    steps = nearest(updated, calls, ("start", "begun"), of).group_by("call").agg(steps=pl.len())
    calls = calls.join(steps, on="call", how="left", maintain_order="left")
    # a recording may end before the last step
    ends = (pl.col("begun") == pl.col("begun").max().over(of)) & pl.col("steps").is_null()
    calls = calls.filter(pl.col("begun") > pl.col("begun").min().over(of))
    stepped = (pl.col("by") == on_host.BEGINS_BACKWARD) & (ends | (pl.col("steps") == 1)).fill_null(value=False)
    return calls.filter(stepped.all())


@Rule
def repeated_backward(report: Report) -> Findings:
    """At most two findings per device on nodes of autograd that run again: for gradients that are reset, or added."""
    nodes, calling = _run_again(report), _calling(report)
    for name, own in (("twice", nodes.filter(~pl.col("adds"))), ("added", nodes.filter("adds"))):
        if own.get_column("call").n_unique() < _FEWEST_CALLS:
            continue
        spans, calls = own.select(SPAN), calling.filter(pl.col("row").is_in(own.get_column("call").implode()))
        mending = on_host.within(report, spans).mending
        where = on_host.site_of(report, calls) if source_lines(report).height else ""
        for work in on_host.works_within(report, spans):
            yield work.finding(f"unneeded-gradients: {name}", where=where, mending=mending)


#: Nodes of layers that keep their weights; and what reads or scales gradients between two calls of backward.
_OF_WEIGHTS: Final = r"Addmm|Mm|Convolution|Linear"
_READS: Final = r"^aten::(?:clone|norm|linalg_vector_norm|_foreach_(?:norm|mul|clone).*)$"


def _run_again(report: Report) -> pl.DataFrame:
    """The nodes of autograd that a later call of backward runs again: :data:`SPAN`, call, adds (what it gives then).

    They include the gradients right behind them. All of a later call are new, after the step of an optimizer that has
    other parameters (what is left of a graph whose weights were changed does not run, but for layers that come first),
    or all are added, and nothing reads or scales those of the first time.
    """
    own, process, node = _calling(report), ["process_id"], ("forward_thread_id", "sequence_number", "node")
    # in calls with nodes of several threads some are of what backward runs: checkpoints, gradients of gradients
    nodes = _in_calls(report).drop_nulls("call").sort(*THREAD, "start").with_columns(node="name")
    nodes = nodes.filter((pl.col("forward_thread_id").drop_nulls().n_unique() == 1).over("call"))
    numbered = pl.col("sequence_number").is_not_null()
    each_call = [*THREAD, "call"]
    nodes = nodes.with_columns(pl.when(numbered).then(key).forward_fill().over(each_call).alias(key) for key in node)
    by_call = nodes.group_by(*THREAD, *node, "call", "begun", maintain_order=True)
    adds, facts = pl.col("adds"), ("call", "begun", "given", "new")
    sides = {"start": pl.col("start").min(), "end": pl.col("end").max()}
    each = by_call.agg(**sides, given=adds.count(), new=(~adds).sum()).sort("begun")
    later = (pl.col(key).shift(-1).over(*process, *node).alias(f"next_{key}") for key in facts)
    again = each.with_columns(later).drop_nulls("next_call")
    pairs = again.group_by(*process, "call", "begun", "next_call", "next_begun").agg(
        pl.sum("given", "next_given", "next_new"), layers=pl.col("node").str.contains(_OF_WEIGHTS).sum()
    )
    used = own.filter(pl.col("name").is_in(_ZEROES) | pl.col("name").str.contains(_READS))
    for by, events in (("stepped", on_host.updated(report)), ("used", used)):
        pairs = nearest(pairs, events.select(*process, pl.col("start").alias(by)), ("begun", by), process, "after")
    stepped, used_between = ((pl.col(by) < pl.col("next_begun")).fill_null(value=False) for by in ("stepped", "used"))
    reset = (pl.col("next_new") == pl.col("next_given")) & stepped & (pl.col("layers") > 1)
    added = (pl.col("next_new") == 0) & ~stepped & ~used_between
    # what gave hardly any gradients the first time was asked for others: torch.autograd.grad()
    pairs = pairs.filter(reset | added, pl.col("next_given") > 0, 2 * pl.col("given") >= pl.col("next_given"))
    return again.join(pairs.select("call", "next_call", adds=added), on=["call", "next_call"])


# Gradients of embeddings that have all rows of a table, few of which are looked up.

#: Backward of embeddings whose gradients have all rows of the table, which they fill with zeros, and what calls it.
_DENSE: Final = r"^aten::(?:embedding_dense_backward|_embedding_bag_dense_backward)$"
_AROUND: Final = r"^aten::(?:embedding|_embedding_bag)(?:_dense)?_backward$"


@Rule
def dense_gradients(report: Report) -> Findings:
    """One finding per device with embeddings of many rows, few of which a step looks up, by a trace with shapes."""
    tables = _tables(report)
    filled, summed = (max(tables.get_column(name).sum(), 1.0) for name in ("filled", "summed"))
    # a table has so many times as many rows as a step of the optimizer has indices
    unused = tables.filter(pl.col("taken") <= 1 / 8)
    unfilled, unsummed = unused.select((pl.col("filled", "summed") * (1 - pl.col("taken"))).sum()).row(0)
    if not (unfilled and unsummed):
        return
    every = on_gpu.with_operators(report, exclusive_operations(report))
    fills, updates = (on_gpu.decoded_as(every, on_gpu.FAMILY.eq(family)) for family in ("fill", "optimizer"))
    fills &= every.get_column("outer").str.contains(_AROUND).fill_null(value=False)
    spared = pl.when(fills).then(unfilled / filled).when(updates).then(unsummed / summed)
    for work in on_gpu.works(report, every.with_columns(saved_ns=on_gpu.part("dur_ns", spared)).drop_nulls("saved_ns")):
        saved_ns = total(work.rows, "saved_ns")
        yield work.finding(
            "dense-gradients",
            taken=unused.get_column("taken").max(),
            spared=saved_ns / work.device.kernel_ns,
            at_stake_ns=saved_ns,
            at_most=True,  # an optimizer of sparse gradients sorts and sums their rows, table by table
            left=None,
        )


@once_per_process
def _tables(report: Report) -> pl.DataFrame:
    """Shapes of gradients: filled (elements that backward of embeddings fills), summed (elements of all), taken.

    `taken` is the part of the rows that have an index in a step of the optimizer, at most: null for what is no table of
    embeddings, or is the weight of a layer as well.
    """
    every = on_host.operators(report).with_columns(sides=sides(pl.col("input_shapes")), values=elements())
    name, steps = pl.col("name"), on_host.updated(report).height
    backward = every.filter(name.str.contains(_DENSE)).select(since="row", until="stop", indices=elements(1))
    fills = nearest(every.filter(name == "aten::zero_"), backward, ("row", "since"))
    fills = fills.filter(pl.col("row") < pl.col("until"))
    fills = fills.group_by("sides").agg(filled=pl.col("values").sum(), indices=pl.col("indices").sum())
    sums = every.filter(name == on_host.ACCUMULATES).group_by("sides").agg(summed=pl.col("values").sum())
    shapes = sums.drop_nulls().join(fills.drop_nulls(), on="sides", how="full", coalesce=True)
    products = every.filter(name.str.contains(on_host.MULTIPLIES))
    factors = pl.concat(products.select(sides=sides(pl.col("input_shapes"), at)) for at in range(3))
    both = factors.select(pl.concat([pl.col("sides"), pl.col("sides").list.reverse()])).drop_nulls().unique()
    free = ~pl.col("sides").is_in(both.get_column("sides").implode())
    taken = pl.when(free, pl.lit(steps) > 0).then(pl.col("indices") / max(steps, 1) / pl.col("sides").list.first())
    return shapes.select(pl.col("filled", "summed").fill_null(0), taken=taken)
