"""Pictures of tables for print: the ledger, the iterations, durations of a kernel, and what a comparison is made of."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import outlets, units
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.errors import OutputError
from kanalyze.renderers.text.colours import COLOURS, DARK
from kanalyze.renderers.text.kernel_names import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORMATS: Final = ("svg", "png", "pdf")

_WIDE: Final = 9.0
_DPI: Final = 160
_NAME: Final = 90

_FASTER: Final = COLOURS["kernel"]
_SLOWER: Final = COLOURS["launch"]
_TOTAL: Final = "#555555"

#: A bucket is labelled in its bar from this share of the longest on; a waterfall has so many steps beside the rest.
_LABELLED: Final = 0.065
_STEPS: Final = 9
_BINS: Final = 60

#: An axis of iterations ends so far above the longest that is no warm-up.
_ABOVE: Final = 1.15

_MS: Final = 1_000_000


def ledger(rows: pl.DataFrame, form: str) -> bytes:
    """A bar for each device (of each report): its window by bucket."""
    keys = [name for name in ("report", "instance", "device") if name in rows.columns]
    sums = rows.group_by(*keys, "bucket", maintain_order=True).agg(pl.col("ns").sum())
    bars = [
        (_label(keys, key), dict(part.select(pl.col("bucket").cast(pl.String), "ns").iter_rows()))
        for key, part in sums.group_by(keys, maintain_order=True)
    ]

    def draw(axes: Any) -> None:  # noqa: ANN401 - matplotlib is not installed everywhere
        longest = max((sum(own.values()) for _, own in bars), default=0)
        for at, (_, own) in enumerate(bars):
            _stacked(axes, at, own, longest)
        axes.set_yticks(range(len(bars)), [outlets.picture(label) for label, _ in bars])
        axes.invert_yaxis()
        axes.set(xlabel="ms", title="Where the time went")
        _legend(axes, [own for _, own in bars])

    return picture(draw, form, 1.6 + 0.45 * max(len(bars), 1))


def _label(keys: Sequence[str], key: tuple[object, ...]) -> str:
    told = {"report": "{}", "instance": "{}", "device": "GPU {}"}
    return ", ".join(told[name].format(value) for name, value in zip(keys, key, strict=True))


def _stacked(axes: Any, at: int, own: dict[str, int], longest: int) -> None:  # noqa: ANN401 - as above
    """A horizontal bar of buckets, in the ledger's order, those labelled that have room beside the `longest` bar."""
    left, whole = 0.0, sum(own.values()) or 1
    for bucket in BUCKETS:
        ms = own.get(bucket, 0) / _MS
        axes.barh(at, ms, left=left, color=COLOURS[bucket], edgecolor="white", linewidth=0.5)
        if own.get(bucket, 0) > _LABELLED * longest:
            text, ink = units.percent(own[bucket] / whole), "white" if bucket in DARK else "black"
            axes.text(left + ms / 2, at, text, ha="center", va="center", fontsize=8, color=ink)
        left += ms


def _legend(axes: Any, found: list[dict[str, int]]) -> None:  # noqa: ANN401 - as above
    from matplotlib.patches import Patch  # noqa: PLC0415 - an extra

    there = [bucket for bucket in BUCKETS if any(own.get(bucket) for own in found)]
    handles = [Patch(color=COLOURS[bucket], label=bucket) for bucket in there]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)


def steps(rows: pl.DataFrame, form: str) -> bytes:
    """A bar for each iteration, in order of time: its ledger."""
    line = rows.sort("start_ns")

    def draw(axes: Any) -> None:  # noqa: ANN401 - as above
        below = [0.0] * line.height
        for bucket in BUCKETS:
            own = [ns / _MS for ns in line.get_column(f"{bucket}_ns")]
            axes.bar(range(1, line.height + 1), own, bottom=below, width=0.85, color=COLOURS[bucket])
            below = [low + ms for low, ms in zip(below, own, strict=True)]
        names = " and ".join(outlets.picture(name) for name in line.get_column("name").unique(maintain_order=True))
        axes.set(xlabel="in order of time", ylabel="ms", title=f"Iterations: {names}")
        axes.margins(x=0.01)
        _cut_warm_up(axes, line, below)
        sums = line.select(pl.sum(f"{bucket}_ns").alias(bucket) for bucket in BUCKETS).row(0, named=True)
        _legend(axes, [sums])

    return picture(draw, form, 3.6)


def _cut_warm_up(axes: Any, line: pl.DataFrame, totals: list[float]) -> None:  # noqa: ANN401 - as above
    """Ends the axis above what is no warm-up, and says how long that is where it does not fit."""
    usual = [ms for ms, kind in zip(totals, line.get_column("kind"), strict=True) if kind != "warm-up"]
    top = max(usual, default=0.0) * _ABOVE
    if not usual or max(totals) <= top:
        return
    axes.set_ylim(0, top)
    for at, ms in enumerate(totals, 1):
        if ms > top:
            axes.text(at, top, f" ↑ {units.time(round(ms * _MS))}", ha="left", va="bottom", fontsize=7)


def durations(name: str, values: pl.Series, form: str) -> bytes:
    """How long the launches of a kernel took, as counts, with median and 95th percentile."""
    (short,) = shorten([name], _NAME)
    us = values / 1000
    marked = us.to_frame("us").select(median=pl.col("us").median(), late=pl.col("us").quantile(0.95, "linear")).row(0)

    def draw(axes: Any) -> None:  # noqa: ANN401 - as above
        axes.hist(us.to_list(), bins=_BINS, color=COLOURS["kernel"], edgecolor="white", linewidth=0.3)
        for value, label, style in zip(marked, ("median", "95 %"), ("-", "--"), strict=True):
            axes.axvline(value, color="#333333", linestyle=style, linewidth=1, label=f"{label}: {value:.2f} µs")
        axes.legend(frameon=False, fontsize=8)
        axes.set(xlabel="µs", ylabel="launches", title=outlets.picture(f"{short}: {units.plural(len(us), 'launch')}"))

    return picture(draw, form, 3.4)


def waterfall(rows: pl.DataFrame, form: str) -> bytes:
    """From base to new: what each bucket adds or takes away, the largest first."""
    sums = rows.group_by("bucket").agg(pl.col("base_ns", "new_ns", "delta_ns").sum())
    line = sums.filter(pl.col("delta_ns") != 0).sort(pl.col("delta_ns").abs(), "bucket", descending=[True, False])
    parts = [(bucket, delta / _MS) for bucket, delta in line.head(_STEPS).select("bucket", "delta_ns").iter_rows()]
    rest = line.slice(_STEPS).get_column("delta_ns").sum() / _MS
    parts += [("rest", rest)] if rest else []
    base, new = (sums.get_column(name).sum() / _MS for name in ("base_ns", "new_ns"))

    def draw(axes: Any) -> None:  # noqa: ANN401 - as above
        axes.bar(0, base, color=_TOTAL)
        at = base
        for place, (_, delta) in enumerate(parts, 1):
            axes.bar(place, abs(delta), bottom=min(at, at + delta), color=_SLOWER if delta > 0 else _FASTER)
            axes.plot([place - 0.6, place + 0.4], [at, at], color="#999999", linewidth=0.7)
            text = f"{'+' if delta > 0 else '−'}{units.time(round(abs(delta) * _MS))}"
            axes.annotate(
                text, (place, max(at, at + delta)), (0, 3), textcoords="offset points", ha="center", fontsize=7
            )
            at += delta
        axes.bar(len(parts) + 1, new, color=_TOTAL)
        names = ["base", *(bucket for bucket, _ in parts), "new"]
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axes.margins(y=0.12)
        axes.set(ylabel="ms", title="From base to new, by bucket")

    return picture(draw, form, 3.6)


def picture(draw: Callable[[Any], None], form: str, high: float, wide: float = _WIDE) -> bytes:
    """A figure of one pair of axes in one of :data:`FORMATS`; sizes in inches.

    Raises:
        OutputError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise OutputError.without_package("a picture", "matplotlib", "plot") from error
    dated = {"svg": "Date", "pdf": "CreationDate"}
    titles: dict[Any, Any] = {"axes.titlesize": 10, "axes.titlelocation": "left", "axes.titleweight": "bold"}
    with (
        mpl.rc_context({"svg.hashsalt": "kanalyze", "svg.fonttype": "none", "font.size": 9, **titles}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph")  # a box stands for what the font lacks
        figure = Figure(figsize=(wide, high), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        draw(axes)
        out = io.BytesIO()
        figure.savefig(out, format=form, dpi=_DPI, metadata={dated[form]: None} if form in dated else None)
    return out.getvalue()
