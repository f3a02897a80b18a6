"""Pages and tables as HTML fragments for notebooks: no script, no external resources, any colour scheme."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from kanalyze import outlets
from kanalyze.renderers.page.of_any_kind import page_of_any
from kanalyze.renderers.page.time import short_names
from kanalyze.renderers.report_file.document import environment
from kanalyze.renderers.tables.frame import laid_out
from kanalyze.renderers.text.colours import COLOURS
from kanalyze.renderers.text.kernel_names import short_forms

if TYPE_CHECKING:
    import polars as pl
    from jinja2 import Environment

    from kanalyze.renderers.page.of_any_kind import Shown

_NAME: Final = 72
_ROWS: Final = 40


def page(shown: Shown, top: int | None) -> str:
    """Renders a page as one ``<div>``."""
    found = page_of_any(shown, top)
    return _rendered(page=found, names=short_names(found, _NAME))


def table(frame: pl.DataFrame) -> str:
    """Renders a table with units; a long one is truncated, with its row count below."""
    grid = laid_out(frame.head(_ROWS))
    return _rendered(page=None, grid=grid, names=short_forms(grid.names(), _NAME), more=frame.height - _ROWS)


def _rendered(**parts: Any) -> str:  # noqa: ANN401 - whatever a page consists of
    """The fragment; lines of the template are joined, since no text has one of its own."""
    text = _environment().get_template("notebook.html.j2").render(parts, colours=COLOURS)
    return "".join(map(str.strip, text.splitlines()))


@cache
def _environment() -> Environment:
    """That of the file, with texts escaped for quoted attributes, too."""
    return environment().overlay(
        finalize=lambda one: Markup(outlets.html(one)) if isinstance(one, str) and not isinstance(one, Markup) else one  # noqa: S704 - escaped
    )
