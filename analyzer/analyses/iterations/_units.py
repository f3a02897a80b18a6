"""Launches of each process in the order of their calls, and units that repeat in such a line.

Launches have codes that are equal for equal work. A unit is what lies between two occurrences of one launch, again and
again. A launch that occurs once in every iteration (an anchor) cuts the line into segments, and those of one program
are alike whichever anchor cuts them. What a segment holds is compared as a sum of hashes, regardless of the order in
it: threads and streams may swap launches within an iteration. Sums of segments are differences of running sums, so that
all launches are tried as anchors in one pass.

Kernels of a generation of tokens change with the length of the text: segments of a near unit have nearly equally many
launches. Which unit is an iteration, and not a part or a multiple of one, is decided here, too.
"""

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import launch_shapes, operations, with_facts
from kanalyze.analyses.host._call_kinds import bucket_of, names_that
from kanalyze.analyses.iterations._marks import HALF, MANY, MOSTLY, NEAR, NEARLY_ALL, of_process
from kanalyze.columns import count_up_to, gathered, in_order, mixed, nearest_place, parts_by, positions, rows_at
from kanalyze.report import Report

#: Names of copies between host and device.
_HOST_COPY: Final = r"Host-to-Device|Device-to-Host"

#: How many values a thread of a PyTorch kernel loads at once, which the address of the data decides; and what runs the
#: same function where it allows none but one.
_WIDTH: Final = r"(vectorized\w*kernel\w*<)(?:\(int\))?\d+"
_ARRAY: Final = r", (?:std::array|at::detail::Array)<"
_ALIGNED: Final = rf"(vectorized_elementwise_kernel<)#, (.*?){_ARRAY}.*"
_UNALIGNED: Final = rf"unrolled_elementwise_kernel<(.*?){_ARRAY}.*LoadWithoutCast.*"

#: Columns that a launch takes from the first of its operations, and sums over all of them.
_FIRST: Final = ("thread_id", "device", "since", "until", "copies", "input", "optimizer", "fill")
_SUMMED: Final = ("ns", "work_ns", "exact", "alike", "loose", "blocks")

#: Names of kernels with which a training step ends, and those of others among them: of lists of tensors that are
#: copied, cleared, scaled or measured.
_OPTIMIZER: Final = r"(?i)adam|sgd|lamb_|adagrad|rmsprop|optimizer|multi_tensor_apply"
_NO_OPTIMIZER: Final = r"(?i)hadamard|multi_tensor_apply.*(?:copy|zero|norm|unscale|non_?finite)"


def updates_parameters(name: pl.Expr) -> pl.Expr:
    """Whether names of kernels, as text, are an optimizer's."""
    return name.str.contains(_OPTIMIZER) & ~name.str.contains(_NO_OPTIMIZER)


def launch_lines(report: Report) -> dict[int | None, pl.DataFrame]:
    """Launches by process, in the order of their calls, with everything that one call launched as one launch.

    Columns: thread_id, device, since and until (its call; the operation itself in a process whose calls are unknown),
    ns (summed durations of its operations), work_ns (of its kernels and graphs), exact (number for names and shapes),
    alike (for names alone), loose (for names without the numbers in them), blocks (of its kernels), copies (between
    host and device), input (a copy to the device), optimizer (a kernel that updates parameters), fill (of memory),
    graph (or several operations at once), waited (how often the host waited for the device, or a copy, before).
    """
    names = names_that(report, lambda name: bucket_of(name) == "sync")
    waits, lines = report.kind("api").filter(pl.col("name").is_in(names)).select("process_id", at="start_ns"), {}
    for (process,), part in parts_by(_coded(report), ["process_id"]).items():
        line, at = _line(part), waits.filter(of_process(process)).get_column("at").sort()
        lines[process] = line.with_columns(count_up_to(at, line.get_column("since"), equal=False).alias("waited"))
    return lines


def _coded(report: Report) -> pl.DataFrame:
    """Every operation with its call, its codes and its size: without what unified memory moved by itself."""
    work, kind = operations(report), pl.col("kind")
    work = work.hstack(_attributes(work.get_column("name")))
    work = work.filter(~pl.col("unified")) if work.get_column("unified").any() else work
    work = with_facts(report, work, "call_row", "thread_id", "call_start", "call_end", "shape", "size_bytes")
    codes = work.select(kind.to_physical(), "shape", "size_bytes", "named", "masked").select(
        exact=mixed(("kind", "named", "shape", "size_bytes")),
        alike=mixed(("kind", "named")),
        loose=mixed(("kind", "masked")),
    )
    grid = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    blocks = gathered(launch_shapes(report).select(blocks=grid).to_series(), work.get_column("shape"))
    ns, ran = pl.col("dur_ns").clip(lower_bound=0).fill_null(0), kind.is_in(("kernel", "graph"))
    return work.select(
        *("row", "start", "end", "process_id", "device", "call_row", "thread_id", "fill"),
        *codes.get_columns(),
        blocks.fill_null(0),
        since="call_start",
        until="call_end",
        ns=ns,
        work_ns=pl.when(ran).then(ns).otherwise(0),
        copies=pl.col("copies") & (kind == "memcpy"),
        input=pl.col("input") & (kind == "memcpy"),
        optimizer=pl.col("optimizer") & ran,
        graph=kind == "graph",
    )


def _attributes(names: pl.Series) -> pl.DataFrame:
    """Of each name its number, that of the name without the numbers in it, and which patterns it has.

    Each different name is looked at once. Columns: named, masked, unified, copies, input, optimizer, fill.
    """
    different = names.unique().drop_nulls().alias("name").to_frame().sort(pl.col("name").to_physical())
    name = pl.col("name").cast(pl.String)
    named = name.str.replace(_WIDTH, "${1}#").str.replace(_ALIGNED, "${1}${2}")
    named = named.str.replace(_UNALIGNED, "vectorized_elementwise_kernel<${1}")
    patterns = {"unified": r"Unified", "copies": _HOST_COPY, "input": r"Host-to-Device", "fill": r"(?i)fill|memset"}
    attributes = different.select(
        named.rank("dense").cast(pl.UInt32).alias("named"),
        named.str.replace_all(r"\d+", "#").rank("dense").cast(pl.UInt32).alias("masked"),
        updates_parameters(name).alias("optimizer"),
        *(name.str.contains(like).alias(key) for key, like in patterns.items()),
    )
    at = positions(different.get_column("name").to_physical(), names.to_physical())
    filled = pl.col("named", "masked").fill_null(0), pl.col("optimizer", *patterns).fill_null(value=False)
    return rows_at(attributes, at).with_columns(filled)


def _line(part: pl.DataFrame) -> pl.DataFrame:
    """The launches of one process."""
    called = part.get_column("since").is_not_null()
    if called.sum() < HALF * part.height:
        part = part.with_columns(since="start", until="end", call_row="row")
    elif not called.all():
        part = part.filter(called)
    part = in_order(part.with_columns(pl.max_horizontal("since", "until").alias("until")), "since")
    call = part.get_column("call_row")
    if (call == call.shift(1)).any():
        # nodes of one graph may run in any order: sums do not depend on it
        together = part.group_by("call_row", maintain_order=True)
        part = together.agg(pl.col(*_FIRST).first(), pl.col(*_SUMMED).sum(), pl.col("graph").first() | (pl.len() > 1))
    return part.select([*_FIRST, *_SUMMED, "graph"])


def with_begins(line: pl.DataFrame) -> pl.DataFrame:
    """Adds what tells where an iteration begins: gap, fresh, updated and returned.

    The time from the end of the call before to the start of each launch's own, in ns; whether a copy to the device
    begins with it; and whether an update, or a copy to the host, ended before it.
    """
    out = pl.col("copies") & ~pl.col("input")
    before = pl.when(out).then(None).otherwise("optimizer").forward_fill().shift(1, fill_value=False)
    return line.with_columns(
        gap=(pl.col("since") - pl.col("until").shift(1)).clip(lower_bound=0),
        fresh=pl.col("input") & ~pl.col("input").shift(1, fill_value=False),
        updated=~pl.col("optimizer") & ~out & before.fill_null(value=False),
        returned=~out & out.shift(1, fill_value=False),
    )


# Units that repeat in a line, and which of them is an iteration.

#: Columns of a line whose codes may be alike: of names and shapes, of names, and of names without numbers.
COLUMNS: Final = ("exact", "alike", "loose")

#: Least and greatest number of launches of a repetition, odd or not, as multiples of the usual number; and from which
#: factor on one size is that of another level.
SMALLEST: Final = 0.5
LARGEST: Final = 1.5

#: Fewest repetitions of a program; of a single kernel that is not waited for each time. So many are compared.
FEWEST: Final = 4
LONG: Final = 64

#: Up to how many launches a unit is short, which a near one never is.
SHORT: Final = 8

#: Most occurrences of an anchor that are looked at to find units.
_SAMPLED: Final = 1 << 12

#: What must be alike (column of the line), and what an anchor is: a column, and how many launches in a row, which are
#: several where single ones cover less than nearly all of the line; numbers count not where these do so, too.
_ONE: Final = (("exact", "exact", 1), ("alike", "exact", 1), ("alike", "alike", 1))
_SEVERAL: Final = tuple((column, column, size) for size, column in product((2, 8), COLUMNS[:2]))
_LOOSE: Final = (("loose", "alike", 1), ("loose", "loose", 1))

#: Mixes the codes of several launches in a row.
_MULTIPLIER: Final = 6364136223846793005


class Unit(NamedTuple):
    """A segment that recurs.

    All of its repetitions are alike in `column`: the sum of their codes is `word` (of a near unit the code of its
    anchor), and they have `length` launches. Its `anchor` (a code) is `at` these places of the line;
    `alike` says whether the segment from each to the next one is this unit, and `share` what part of the line's weight
    these have. Segments of a `near` unit have nearly equally many launches.
    """

    column: str
    length: int
    word: int
    anchor: int
    at: pl.Series
    alike: pl.Series
    share: float
    near: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """Key of units with the same launches, in whichever process."""
        return self.column, self.length, self.word

    @property
    def segments(self) -> pl.DataFrame:
        """From each anchor to the next one: first and stop."""
        return pl.DataFrame({"first": self.at.slice(0, len(self.at) - 1), "stop": self.at.slice(1)})

    def codes(self, line: pl.DataFrame, column: str) -> pl.Series:
        """A column of the launches of the unit, where it occurs in the middle of the line."""
        places = self.segments.get_column("first").filter(self.alike)
        return line.get_column(column).slice(int(places.item(len(places) // 2)), self.length)


def units(line: pl.DataFrame) -> list[Unit]:
    """The units of `line` that may be iterations."""
    by_word: dict[tuple[str, int], Unit] = {}
    sums = {name: running(line.get_column(name)) for name in (*COLUMNS, "weight")}
    for ways in (_ONE, _SEVERAL, _LOOSE):
        if max((unit.share for unit in by_word.values()), default=0.0) >= NEARLY_ALL:
            break
        for column, of, size in ways:
            codes, before = line.get_column(of), size // 2
            while before:  # one number for each launch and those before it, `size` in a row
                codes, before = (codes.shift(before) * _MULTIPLIER + codes).fill_null(0), before // 2
            for code, word in _best_anchors(sums, codes, column):
                if (column, word) not in by_word:
                    unit = Unit(column, 0, word, code, (codes == code).arg_true(), pl.Series(), 0.0)
                    alike, weight = between(sums[column]) == word, between(sums["weight"])
                    rows = unit.segments.select(alike.alias("alike"), weight.alias("weight"), length=sizes())
                    own = rows.filter("alike")
                    share = int(own.get_column("weight").sum()) / int(sums["weight"].item(-1))
                    unit = unit._replace(length=own.item(0, "length"), alike=rows.get_column("alike"), share=share)
                    by_word[column, word] = unit
    return sorted(by_word.values(), key=lambda unit: (unit.length, COLUMNS.index(unit.column)))


def held(line: pl.DataFrame, column: str) -> pl.Expr:
    """The sum of a column of `line` over each row (first, stop); null where these are."""
    return between(running(line.get_column(column))).alias(column)


def running(values: pl.Series) -> pl.Series:
    """Sums of what lies before each place, from 0 before the first one to the sum of all."""
    sums = values.cum_sum()
    return pl.Series([0], dtype=sums.dtype).extend(sums)


def between(sums: pl.Series) -> pl.Expr:
    """The sum over each row (first, stop), from running sums."""
    return pl.lit(sums).gather(pl.col("stop")) - pl.lit(sums).gather(pl.col("first"))


def apart(rows: pl.DataFrame) -> pl.DataFrame:
    """What lies between two neighbours of `rows`: first and stop, and the other columns of the one after."""
    return rows.with_columns(first=pl.col("stop").shift(1), stop="first").filter(pl.col("stop") > pl.col("first"))


def stretches() -> pl.Expr:
    """Number of the stretch of each repetition, by first and stop: each one adjoins the next."""
    apart = (pl.col("first") != pl.col("stop").shift(1)).fill_null(value=True)
    return apart.cum_sum().cast(pl.UInt32).alias("stretch")


def sizes() -> pl.Expr:
    """The number of launches from first to stop."""
    return pl.col("stop").cast(pl.Int64) - pl.col("first").cast(pl.Int64)


def _best_anchors(sums: dict[str, pl.Series], codes: pl.Series, column: str) -> list[tuple[int, int]]:
    """The best anchors for one way to tell them, by `codes`: the code of each, and the sum of codes of its unit."""
    segments = _segments(sums["weight"], codes).with_columns(between(sums[column]).alias("word"), length=sizes())
    place = pl.col("code", "word", "length", "segments", "place").first()
    # by one number for both, which takes half the time of two columns
    same = segments.group_by(mixed(("code", "word")).alias("same"))
    alike = same.agg(pl.len().alias("count"), place, pl.col("weight").sum())
    # chance makes short ones alike, and hardly ever long ones
    needed = pl.col("segments") * (0.5 + 0.45 * pl.lit(0.9).pow(pl.col("length") - 1))
    least = SHORT if column == "loose" else 1
    alike = alike.filter(pl.col("count") > 1, pl.col("count") >= needed, pl.col("length") >= least)
    # an anchor that occurs in odd ones, too; what is equal is told apart by its place, since codes depend on the order
    # in which names were read
    best = alike.sort("count", "segments", "place", descending=[True, True, False])
    best = best.unique("word", keep="first", maintain_order=True)
    best = best.sort("weight", "place", descending=[True, False]).head(12)
    return best.select("code", "word").collect(engine="in-memory").rows()


def _segments(weights: pl.Series, codes: pl.Series) -> pl.LazyFrame:
    """Segments between occurrences of each code (of many, those in the middle).

    Columns: code, place (its first one), segments (how many it has here), first, stop and weight.
    """
    line = pl.LazyFrame([codes.alias("code")]).with_row_index("first")
    places = line.group_by("code", maintain_order=True).agg("first")
    often, begin = pl.col("first").list.len(), pl.col("first").list.len().cast(pl.Int64) - _SAMPLED
    places = places.with_columns(
        pl.col("first").list.slice(begin.clip(lower_bound=0) // 2, _SAMPLED),
        place=pl.col("first").list.first(),
        segments=often.clip(upper_bound=_SAMPLED) - 1,
    )
    places = places.explode("first").with_columns(stop=pl.col("first").shift(-1))
    inside = (pl.col("code") == pl.col("code").shift(-1)).fill_null(value=False)
    return places.filter(inside).with_columns(between(weights).alias("weight"))


def near_unit(line: pl.DataFrame) -> Unit | None:
    """What lies between two launches of one name, if nearly all of it has nearly equally many launches.

    In each the host copies from the device or waits for it. Of such names those with the fewest launches between them
    that cover most, and of these the one before which the host pauses longest.
    """
    every = _segments(running(line.get_column("weight")), line.get_column("alike"))
    segments = every.filter(pl.col("segments") >= SHORT).collect(engine="in-memory")
    results = line.select(returned=(pl.col("copies") & ~pl.col("input")).cast(pl.UInt32))
    length = pl.col("size").median().over("code")
    waited = gathered(line.get_column("waited"), segments.get_column("stop"))
    before, gap = (gathered(line.get_column(name), segments.get_column("first")) for name in ("waited", "gap"))
    host = pl.lit(waited > before) | (held(results, "returned") > 0)
    segments = segments.with_columns(sizes().alias("size"), gap=gap, host=host)
    segments = segments.with_columns(length=length, near=(pl.col("size") - length).abs() <= NEAR * length)
    each = segments.group_by("code").agg(
        pl.col("place", "length").first(),
        pl.col("host", "near").mean(),
        pl.col("weight").filter("near").sum(),
        pl.col("gap").median(),
    )
    best = each.filter(pl.col("near", "host") >= NEARLY_ALL, pl.col("length") >= SHORT)
    best = best.filter(pl.col("length") <= pl.col("length").min() * (1 + NEAR))
    best = best.filter(pl.col("weight") >= pl.col("weight").max() * NEARLY_ALL)
    if best.is_empty():
        return None
    code, size = best.sort("gap", "place", descending=[True, False]).select("code", "length").row(0)
    at = (line.get_column("alike") == code).arg_true()
    unit = Unit("alike", int(size), code, code, at, pl.Series(), 0.0, near=True)
    return unit._replace(alike=unit.segments.select((sizes() - size).abs() <= NEAR * size).to_series())


def iteration_unit(line: pl.DataFrame) -> Unit | None:
    """The unit that is an iteration: the shortest that updates parameters, or to which the host brings data.

    Layers repeat within an iteration, and iterations within an epoch. Without any of that it is the shortest, and a
    longer one in its place if the host pauses longer before it.
    """
    levels, candidates = list[Unit](), units(line)  # the best of each length, the shortest first
    most = max((unit.share for unit in candidates), default=0.0)
    for unit in sorted(candidates, key=lambda one: (-one.share, one.length)):
        others = ((unit.length, level.length) for level in levels)
        if unit.share >= most * MOSTLY and all(max(pair) >= LARGEST * min(pair) for pair in others):
            levels.append(unit)
    levels.sort(key=lambda one: one.length)
    several = [unit for unit in levels if unit.length > 1 or _alone(unit)]
    for column in ("optimizer", "input"):
        for unit in several:
            if holds(line, unit, column):
                return unit
    best, longest = None, 0.0
    for unit in several:
        pause = _pause(line, unit)
        # a longer unit takes its place if the host pauses for clearly longer before it
        if best is None or pause > 1.25 * longest:
            best, longest = unit, pause
    return None if line.get_column("optimizer").any() else best


def _pause(line: pl.DataFrame, unit: Unit) -> float:
    """The longest of the host's usual pauses before the launches of a unit, in ns."""
    places = unit.segments.filter(unit.alike).select(pl.int_ranges("first", "stop").alias("place"))
    places = places.with_columns(at=pl.int_ranges(0, pl.col("place").list.len())).explode("place", "at")
    gaps = places.select("at", gap=gathered(line.get_column("gap"), places.get_column("place").cast(pl.UInt32)))
    return float(gaps.group_by("at").agg(pl.col("gap").median()).select(pl.col("gap").max()).item())


def holds(line: pl.DataFrame, unit: Unit, column: str) -> bool:
    """Whether the unit has a launch of which a column is true."""
    return bool(unit.codes(line, column).any())


def only_computes(line: pl.DataFrame, unit: Unit) -> bool:
    """Whether the unit neither copies between host and device nor updates parameters."""
    return not (holds(line, unit, "copies") or holds(line, unit, "optimizer"))


def _alone(unit: Unit) -> bool:
    """Whether next to nothing but the unit lies between its first and its last anchor."""
    size = unit.segments.select(sizes()).to_series()
    near = (size - unit.length).abs() <= NEAR * unit.length
    # from here on the loop holds nothing else
    return int(size.filter(near).sum()) >= 0.99 * int(size.sum())


def waited_for(line: pl.DataFrame, unit: Unit) -> bool:
    """Whether the host waits for the device in nearly each repetition."""
    before = gathered(line.get_column("waited"), unit.at)
    waited = (before.slice(1) > before.slice(0, len(before) - 1)).filter(unit.alike)
    return int(waited.sum()) >= NEARLY_ALL * len(waited)


# Repetitions of a training whose texts, graphs and images have any size: from the end of one update of the parameters
# to that of the next one. They have as many launches as their steps need, but for the update.

#: Most launches between two of an optimizer's that belong to one update, the smallest tried first.
_APART: Final = tuple(4**power for power in range(7))

#: A usual number of launches is up to so many times the median, or so small a part of it.
_USUAL: Final = 2

#: Fewest repetitions between updates: of fewer, most might have a usual number of launches by accident.
FEWEST_UPDATES: Final = 14


def between_updates(line: pl.DataFrame) -> tuple[int, pl.DataFrame] | None:
    """Repetitions from the end of each update to the end of the next one, if updates and what lies between are alike.

    Code of the update, and columns first, stop (places in `line`), usual, stretch, sorted and disjoint; None if none
    are. The first one begins where the others do, as far as that is known. Copies to the host right after an
    update are part of what it ends.
    """
    for updates in _updates(line):
        word = updates.get_column("word").mode().sort().item(0)
        own = updates.filter(pl.col("word") == word)
        same = int(own.group_by("sum").len().select(pl.col("len").max()).item())
        if own.height > FEWEST_UPDATES and own.height >= MANY * updates.height and same >= MANY * own.height:
            rows = _up_to(line, own)
            if rows is not None:
                return word, rows
    return None


def _updates(line: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Updates by how far apart an optimizer's launches are, if most of what each holds is its own.

    Columns: first and stop (places), word (the name of its first own launch), sum (of the names of all of these).
    """
    own = line.select("optimizer", code="alike").with_row_index("at").filter("optimizer")
    apart = pl.col("at").cast(pl.Int64).diff() - 1
    before = own.height + 1
    for most in _APART:
        number = (apart > most).fill_null(value=False).cum_sum().alias("update")
        updates = own.group_by(number, maintain_order=True).agg(
            pl.col("at").first().alias("first"),
            (pl.col("at").last() + 1).alias("stop"),
            pl.col("code").first().alias("word"),
            pl.col("code").sum().alias("sum"),
        )
        if updates.height < before and own.height >= HALF * int(updates.select(sizes().sum()).item()):
            yield updates
        before = updates.height


def _up_to(line: pl.DataFrame, updates: pl.DataFrame) -> pl.DataFrame | None:
    """The repetitions that end with each of `updates`; None where they do not begin alike, or have any size."""
    # each begins after the update before and what is copied to the host right after that
    others = (~line.get_column("copies") | line.get_column("input")).arg_true()
    others = others.extend(pl.Series([line.height], dtype=pl.UInt32))
    begins = gathered(others, others.search_sorted(updates.get_column("stop"), side="left"))
    rows, names = pl.DataFrame({"first": begins.shift(1, fill_value=0), "stop": begins}), line.get_column("loose")
    whole = rows.slice(1)
    first = gathered(names, whole.get_column("first")).value_counts(sort=True)
    if int(first.item(0, "count")) < MOSTLY * whole.height:
        return None
    median = float(whole.select(sizes().median()).item())
    usual = sizes().is_between(median / _USUAL, median * _USUAL)
    # nearly all are usual, and these are no parts of what the others are
    every = whole.with_columns(usual=usual, size=sizes())
    own = every.filter("usual")
    most = int(own.get_column("size").sum()) >= MANY * int(every.get_column("size").sum())
    copying = int(own.select((held(line, "copies") > 0).sum()).item()) >= MANY * own.height
    if own.height < MANY * every.height or not (most or copying):
        return None
    # large ones, and the first one, begin at the last place where one may begin; those in which none fits are left out
    starts = (names == first.item(0, names.name)).arg_true()
    latest = rows.get_column("stop").cast(pl.Int64) - int(median / _USUAL)
    begin = gathered(starts, nearest_place(starts.cast(pl.Int64), latest)).alias("begin")
    fits = (pl.col("begin") >= pl.col("first")) & (pl.col("stop") <= pl.col("begin") + median * _USUAL)
    lead = (sizes() > median * _USUAL) | (pl.int_range(pl.len()) == 0)
    rows = rows.with_columns(begin).with_columns(lead=lead).filter(~pl.col("lead") | fits.fill_null(value=False))
    rows = rows.select(pl.when("lead").then("begin").otherwise("first").alias("first"), "stop")
    return rows.with_columns(usual.alias("usual"), stretches())
