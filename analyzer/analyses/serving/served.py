"""What a page tells of a serving engine: its steps by kind, the gaps between them, its graphs, and what to do first."""

from typing import Final, NamedTuple

import polars as pl
import polars.selectors as cs

from kanalyze import model, window
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.host.engine_marks import DECODE, names_by_kind
from kanalyze.analyses.iterations.phases import steady_part_by_launches
from kanalyze.analyses.serving.engine_steps import EAGER, GRAPH, OUTSIDE, engine_steps
from kanalyze.analyses.serving.step_laws import in_words, laws
from kanalyze.analyses.shared.statistics import MEANINGS, longest, total
from kanalyze.report import Report
from kanalyze.units import count, percent, plural, shortened, time

#: The tables of a page, by the grouping of engine_steps that each is.
TABLES: Final = {"engine_steps": "kind", "engine_gaps": "gap", "engine_graphs": "graph"}

#: What gains less than this part of the time of steps and gaps is no thing to do; the longest name in a sentence.
_WORTH_DOING: Final = 0.01
_LONGEST: Final = 48


def by_kind(report: Report, operators: pl.DataFrame) -> pl.DataFrame:
    """The table `ops` with one row for all labels of steps of one kind, in the order of device time."""
    kinds = names_by_kind(report).select(name="label", of_kind="name").unique("name")
    rows = operators.join(kinds, on="name", how="left", maintain_order="left")
    if not rows.get_column("of_kind").count():
        return operators
    sums = rows.with_columns(name=pl.coalesce("of_kind", "name")).group_by("name", maintain_order=True)
    summed = sums.agg(cs.numeric().sum(), (~cs.numeric()).first()).select(operators.columns)
    return summed.sort("exclusive_device_ns", descending=True, maintain_order=True)


class Served(NamedTuple):
    """What a page tells of an engine: :data:`TABLES`, a sentence, and what to do first.

    Of kinds that replay no graph there are no sizes.
    """

    tables: dict[str, pl.DataFrame]
    sentence: str
    remarks: dict[str, str]


def served(report: Report, device: int | None = None) -> Served | None:
    """What a page tells of the steps of an engine on a GPU, or on all; None without any step."""
    if report.meta.timeless or not {*model.DEVICE_KINDS}.intersection(report.kinds):
        return None
    steps = engine_steps(report, device=device)
    if not steps.get_column("device").count():
        return None
    kinds, gaps, graphs = (engine_steps(report, by, device=device) for by in TABLES.values())
    graphs = graphs.filter((pl.col("mode") == GRAPH).any().over("device", "kind"))
    tables = dict(zip(TABLES, (kinds, gaps, graphs), strict=True))
    kinds = kinds.filter(pl.col("kind") != OUTSIDE).sort("ns", descending=True)
    idle = gaps.filter(~pl.col("bucket").is_in(BUSY_BUCKETS))
    layers = steady_part_by_launches(report) if steps.height == 1 else None
    sentence = _sentence(steps, kinds, idle)
    if layers is not None:
        sentence += f" In it launches repeat at least {layers.number} times, {time(layers.ns / layers.number)} each."
    whole = max(total(kinds, "ns"), total(steps, "dur_ns"))  # of a window that cuts steps these in full
    first = _first_to_do(steps.filter(kind=DECODE), idle, graphs, int(whole))
    remark = ". ".join(filter(None, (first, in_words(laws(report.narrow(device=device))))))
    return Served(tables, sentence, {"engine_steps": remark} if remark else {})


def _sentence(steps: pl.DataFrame, kinds: pl.DataFrame, idle: pl.DataFrame) -> str:
    """Sentence on the steps of an engine by kind, and on the time between them."""
    each = {
        device: ", ".join(
            f"{count(number)} {kind}" + (f" ({time(ns)}{f', {time(token)} a token' if token else ''})" if ns else "")
            for kind, number, ns, token in own.select("kind", "count", "per_step_ns", "per_token_ns").iter_rows()
        )
        for (device,), own in kinds.partition_by("device", as_dict=True, maintain_order=True).items()
    }
    parts = each.values() if len(each) == 1 else [f"GPU {device} {text}" for device, text in sorted(each.items())]
    number = steps.drop_nulls("device").select("process_id", "index").n_unique()  # those on several GPUs are one
    whole = max(int(kinds.get_column("ns").sum()), 1)
    engines = ", ".join(steps.get_column("engine").unique(maintain_order=True))
    text = f"{plural(number, 'step')} of {engines}: {'; '.join(parts)}"
    if waited := int(idle.get_column("ns").sum()):
        bucket, culprit = _largest(idle)
        text += f"; between steps the GPU waits {percent(waited / whole)} of their time, most for {MEANINGS[bucket]}"
        text += f" ({_who(culprit)})" if culprit else ""
    return f"{text}."


def _largest(gaps: pl.DataFrame) -> tuple[str, str | None]:
    """The bucket with most time in gaps, and who had most of that; None for what nothing between the steps names."""
    by_bucket = gaps.group_by("bucket").agg(pl.col("ns").sum()).sort("ns", "bucket", descending=[True, False])
    bucket: str = by_bucket.item(0, "bucket")
    named = pl.when(~pl.col("culprit").str.contains("^between [a-z]+ step and [a-z]+ step$")).then("culprit")
    own = gaps.filter(bucket=bucket).group_by(culprit=named).agg(pl.col("ns").sum())
    return bucket, own.sort("ns", "culprit", descending=True, nulls_last=True).item(0, "culprit")


def _who(culprit: str) -> str:
    """Who holds the GPU up between steps, in a sentence: a step holds it up before its first launch."""
    return f"the {culprit} itself" if culprit in window.WORDS else shortened(culprit, _LONGEST)


def _first_to_do(steps: pl.DataFrame, idle: pl.DataFrame, graphs: pl.DataFrame, whole: int) -> str:
    """What would save most of the time of an engine: of gaps, of decode `steps` without a graph, or of padding."""
    gains: list[tuple[float, str]] = []
    if idle.height:
        bucket, culprit = _largest(idle)
        what = f"{MEANINGS[bucket]}{f', most {window.located(_who(culprit), None)}' if culprit else ''}"
        gains.append((total(idle, "ns"), f"prepare a step while the one before runs: {what}"))
    eager, replayed = steps.filter(mode=EAGER), steps.filter(mode=GRAPH).height
    if eager.height and replayed:
        most = longest(eager, "requests")
        sizes = f", up to {plural(most, 'request')}" if most else ""
        lost = eager.select(pl.col("dur_ns").sum() - pl.col("busy_ns").sum()).item()
        of = f"{count(eager.height)} of {count(eager.height + replayed)} run without one"
        gains.append((lost, f"capture graphs for all decode steps: {of}{sizes}"))
    graphs = graphs.filter(kind=DECODE)
    if (best := size_to_capture(steps, graphs)) is not None:
        padding = time(total(graphs, "lost_ns"))
        gains.append((best[1], f"capture a graph of {best[0]} requests as well: padding takes {padding}"))
    ns, text = max(gains, default=(0.0, ""))
    if ns < max(_WORTH_DOING * whole, 1):
        return ""
    return f"For the engine: {text} (at most {time(ns)}, {percent(ns / whole)})"


def size_to_capture(steps: pl.DataFrame, sizes: pl.DataFrame) -> tuple[int, float] | None:
    """The size of a graph that would save most of what padding takes, and how much (ns); None where none would."""
    rows = steps.filter(pl.col("mode") == GRAPH).join(
        sizes.select("device", "kind", "padded", "per_request_ns"), on=["device", "kind", "padded"]
    )
    padded = rows.filter(pl.col("requests") < pl.col("padded")).select("kind", "padded", "requests", "per_request_ns")
    other = padded.select("kind", "padded", size="requests").unique()
    saved = (pl.col("padded") - pl.col("size")) * pl.col("per_request_ns")
    tried = padded.join(other, on=["kind", "padded"]).filter(pl.col("requests") <= pl.col("size"))
    gains = tried.group_by("size").agg(saved.sum().alias("ns")).filter(pl.col("ns") > 0)
    best = gains.sort("ns", "size", descending=[True, False]).head(1)
    return None if best.is_empty() else (best.item(0, "size"), best.item(0, "ns"))
