"""What `summarize` shows, one or several: the page of a report, or that of all instances of a range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.analyses.comparison import comparison
from kanalyze.analyses.summary import Summary
from kanalyze.renderers.instances_page import instances_page
from kanalyze.renderers.page import page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.instances import Instances
    from kanalyze.renderers.page import Page

    Shown = Summary | Instances


def page_of_any(shown: Shown, top: int) -> Page:
    """The page of either, with at most `top` rows in each table."""
    return page_of(shown, top) if isinstance(shown, Summary) else instances_page(shown, top)


def closing(shown: Sequence[Shown]) -> str:
    """What tells several reports apart; empty for one."""
    return comparison([one for one in shown if isinstance(one, Summary)])
