"""What `summarize` shows, one or several: the page of a report, of all instances of a range, or of counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.analyses.comparison import comparison
from kanalyze.renderers.counters_page import counters_page
from kanalyze.renderers.instances_page import instances_page
from kanalyze.renderers.joint_page import joint_page
from kanalyze.renderers.page import page_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from kanalyze.analyses.counter_summary import CounterSummary
    from kanalyze.analyses.instances import Instances
    from kanalyze.analyses.joint_summary import JointSummary
    from kanalyze.analyses.summary import Summary
    from kanalyze.renderers.page import Page

    Shown: TypeAlias = Summary | Instances | CounterSummary | JointSummary


def page_of_any(shown: Shown, top: int) -> Page:
    """The page of any of them, with at most `top` rows in each table."""
    if shown.kind == "counters":
        return counters_page(shown, top)
    if shown.kind == "joint":
        return joint_page(shown, top)
    return page_of(shown, top) if shown.kind == "time" else instances_page(shown, top)


def closing(shown: Sequence[Shown]) -> str:
    """What tells several reports apart; empty for one."""
    summaries = [one.summary if one.kind == "joint" else one for one in shown]
    return comparison([one for one in summaries if one.kind == "time"])
