"""Classifies host events by phase of training.

The innermost event that indicates a phase, of an event and its ancestors on its thread, decides:

- ``backward``: an operator of autograd's engine (``autograd::engine::evaluate_function: …``), or one recorded by
  autograd as the backward of a forward operator (it has the number of the forward thread).
- ``optimizer``: ``Optimizer.step#…`` and ``Optimizer.zero_grad#…``, which torch's optimizers record themselves.
- ``data loading``: ``enumerate(DataLoader)#…``, which torch's DataLoader records itself.
- Any of the four: a user annotation with one of the words below in its name, such as ``forward`` or ``## backward ##``.

Otherwise an event is ``forward`` if it or an ancestor is an ``nn.Module`` recorded by Python's tracer, or an operator
that caused a backward one or called such an operator. All others are ``other``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.operators._event_tree import in_subtrees
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._forward import forward_rows
from kanalyze.analyses.operators._paths import inherited
from kanalyze.analyses.shared.cached import once_per_process

if TYPE_CHECKING:
    from kanalyze.report import Report

PHASES: Final = ("forward", "backward", "optimizer", "data loading", "other")
PHASE: Final = pl.Enum(PHASES)

#: Names of torch's own events, by phase.
_OWN_NAMES: Final = {
    "backward": r"^autograd::engine::evaluate_function",
    "optimizer": r"^Optimizer\.(?:step|zero_grad)#",
    "data loading": r"^enumerate\(DataLoader\)",
}

#: Words in user annotations, by phase; the first match counts.
_WORDS: Final = {
    "backward": r"(?i)(?:^|[^a-z])(?:backward|bwd)(?:$|[^a-z])",
    "forward": r"(?i)(?:^|[^a-z])(?:forward|fwd)(?:$|[^a-z])",
    "optimizer": r"(?i)(?:^|[^a-z])(?:optimi[sz]er|optim|zero_grad)(?:$|[^a-z])",
    "data loading": r"(?i)(?:^|[^a-z])(?:data|dataloader|data_?load(?:ing|er)?|h2d)(?:$|[^a-z])",
}

#: The prefix of module calls in Python's tracer.
MODULE: Final = "nn.Module: "


@once_per_process
def phases(report: Report) -> pl.Series:
    """The phase (:data:`PHASE`) of each row of the host tree."""
    rows, forward = host_tree(report).rows, forward_rows(report)
    names = rows.select("name", "kind").unique().with_columns(text=pl.col("name").cast(pl.String))
    told = names.select("name", "kind", phase=_phase_by_name(pl.col("kind")), module=_is_module())
    known = rows.select("name", "kind").join(
        told, on=["name", "kind"], how="left", maintain_order="left", nulls_equal=True
    )
    phase = known.get_column("phase")
    strong = inherited(rows, phase.set(forward.is_not_null() & phase.is_null(), "backward"))
    causes = pl.zeros(rows.height, dtype=pl.Int64, eager=True).scatter(forward.drop_nulls().unique(), 1)
    calls_cause = (in_subtrees(rows, causes) > 0) & rows.select(pl.col("kind") == "op").to_series()
    none = pl.Series([None], dtype=PHASE).new_from_index(0, rows.height)
    weak = inherited(rows, none.set(calls_cause | known.get_column("module"), "forward"))
    return strong.zip_with(strong.is_not_null(), weak).fill_null("other").alias("phase")


def _is_module() -> pl.Expr:
    return ((pl.col("kind") == "python") & pl.col("text").str.starts_with(MODULE)).fill_null(value=False)


def _phase_by_name(kind: pl.Expr) -> pl.Expr:
    """The phase indicated by a name; null for none."""
    text, annotation = pl.col("text"), kind == "range"
    own = [
        _phase(phase, text.str.contains(pattern) & kind.is_in(["op", "range"])) for phase, pattern in _OWN_NAMES.items()
    ]
    words = [_phase(phase, text.str.contains(pattern) & annotation) for phase, pattern in _WORDS.items()]
    return pl.coalesce(*own, *words)


def _phase(phase: str, where: pl.Expr) -> pl.Expr:
    return pl.when(where).then(pl.lit(phase, dtype=PHASE))
