"""The phase of training that a host event belongs to.

Of an event and what is around it on its thread, the innermost that says a phase decides; these say one:

- ``backward``: an operator of autograd's engine (``autograd::engine::evaluate_function: …``), and one that autograd
  recorded as the backward of a forward operator (it has the number of the forward thread).
- ``optimizer``: ``Optimizer.step#…`` and ``Optimizer.zero_grad#…``, which torch's optimizers record themselves.
- ``data loading``: ``enumerate(DataLoader)#…``, which torch's DataLoader records itself.
- Any of the four: an annotation of the user with one of the words below in its name, such as ``forward`` or
  ``## backward ##``.

Where none says one, an event is ``forward`` if it, or what is around it, is an ``nn.Module`` that Python's tracer
recorded, or an operator that a backward one followed from, or that called such a one. All else is ``other``.
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

#: Names by which torch itself says a phase.
_OWN_NAMES: Final = {
    "backward": r"^autograd::engine::evaluate_function",
    "optimizer": r"^Optimizer\.(?:step|zero_grad)#",
    "data loading": r"^enumerate\(DataLoader\)",
}

#: Words by which a user's annotation says one; the first that fits counts.
_WORDS: Final = {
    "backward": r"(?i)(?:^|[^a-z])(?:backward|bwd)(?:$|[^a-z])",
    "forward": r"(?i)(?:^|[^a-z])(?:forward|fwd)(?:$|[^a-z])",
    "optimizer": r"(?i)(?:^|[^a-z])(?:optimi[sz]er|optim|zero_grad)(?:$|[^a-z])",
    "data loading": r"(?i)(?:^|[^a-z])(?:data|dataloader|data_?load(?:ing|er)?|h2d)(?:$|[^a-z])",
}

#: How Python's tracer names the call of a module.
MODULE: Final = "nn.Module: "


@once_per_process
def phases(report: Report) -> pl.Series:
    """The phase (:data:`PHASE`) of each row of the host tree."""
    rows, forward = host_tree(report).rows, forward_rows(report)
    names = rows.select("name", "kind").unique().with_columns(text=pl.col("name").cast(pl.String))
    told = names.select("name", "kind", phase=_told(pl.col("kind")), module=_is_module())
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


def _told(kind: pl.Expr) -> pl.Expr:
    """The phase that a name says; null for none."""
    text, annotation = pl.col("text"), kind == "range"
    own = [
        _phase(phase, text.str.contains(pattern) & kind.is_in(["op", "range"])) for phase, pattern in _OWN_NAMES.items()
    ]
    words = [_phase(phase, text.str.contains(pattern) & annotation) for phase, pattern in _WORDS.items()]
    return pl.coalesce(*own, *words)


def _phase(phase: str, where: pl.Expr) -> pl.Expr:
    return pl.when(where).then(pl.lit(phase, dtype=PHASE))
