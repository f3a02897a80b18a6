"""Code that is compiled again while the program runs, and algorithms of convolutions that are tried anew."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules._operators import (
    SPAN,
    Told,
    Within,
    joined,
    on_time,
    outermost,
    traced,
    within,
)
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.report import Report

#: What torch.compile, its parts and Triton call the ranges in which they compile.
_COMPILES: Final = (
    r"dynamo_timed|^_compile\.|compile_inner|compile_fx|inductor_compile|call_user_compiler|create_aot_dispatcher"
    r"|CachingAutotuner\.precompile|async_compile|triton\S*compile"
)

#: It recurs in so many of as many equal parts of the window, and after so much of it.
_PARTS: Final = 8
_RECURS: Final = 3

#: A convolution that tries algorithms launches so many kernels; others launch a few.
_TRIES: Final = 12

_AGAIN: Final = Told(
    "recompilation",
    "Code is compiled again while the program runs",
    "torch.compile(…, dynamic=True); pad to a few shapes; no Python numbers that change",
    (
        "Let shapes and numbers that go into compiled code stay the same: pad lengths or sort them into buckets, mark "
        "what changes as dynamic (dynamic=True, torch._dynamo.mark_dynamic; no tl.constexpr for it), and pass numbers "
        "that change as tensors. TORCH_LOGS=recompiles says what changed."
    ),
    "culprits",
)
_TRIED: Final = Told(
    "recompilation",
    "cuDNN tries its algorithms anew for new shapes",
    "torch.backends.cudnn.benchmark = False, or keep to a few shapes",
    (
        "With torch.backends.cudnn.benchmark each new shape of a convolution has all algorithms tried: keep to a few "
        "shapes (pad, or sort into buckets), or leave it off where shapes change."
    ),
)


def recompilation(report: Report) -> list[Finding]:
    """At most one finding per device on code that is compiled again, or on cuDNN that tries algorithms again."""
    for told, how, inside in (
        (_AGAIN, "compiles", _compiling(report)),
        (_TRIED, "runs a convolution with many algorithms", _trying(report)),
    ):
        if _recurs(report, inside.host):
            return on_time(report, told, inside, partial(_sentence, report, how))
    return []


def _sentence(report: Report, how: str, number: int, taken: str) -> str:
    return f"The program {how} {per_iteration(report).plural(number, 'time')}, not only at its start: {taken}."


def _recurs(report: Report, spans: pl.DataFrame) -> bool:
    """Whether spans are in several parts of the window of a device, its second half among them."""
    for _, low, high in windows(report).iter_rows():
        part = (pl.col("start") - low) * _PARTS // max(high - low, 1)
        parts = intervals.overlapping(spans, (low, high)).select(part.alias("part")).to_series()
        if parts.n_unique() >= _RECURS and (parts >= _PARTS // 2).any():
            return True
    return False


def _compiling(report: Report) -> Within:
    """Ranges, operators and functions in which something is compiled."""
    found, other = [pl.DataFrame(schema=dict.fromkeys(SPAN, pl.Int64))], traced(report)
    for events in [] if other is None else [other.kind(kind) for kind in ("range", "op", "python")]:
        named = events.filter(pl.col("name").cast(pl.String).str.contains(_COMPILES).fill_null(value=False))
        found.append(named.select(*THREAD, start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns")).drop_nulls())
    return within(report, joined(pl.concat(found)))


def _trying(report: Report) -> Within:
    """Convolutions that launch many kernels."""
    return within(
        report, outermost(report).filter(pl.col("name").str.contains("conv") & (pl.col("launches") >= _TRIES))
    )


RULES: Final = (recompilation,)
