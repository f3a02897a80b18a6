"""``kanalyze workloads``: the reference workloads, with what each teaches."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from kanalyze.cli import _complete
from kanalyze.cli._late import late
from kanalyze.cli._output import emit, width
from kanalyze.errors import UnknownNameError

with late():
    from kanalyze.collectors.base import workload as shipped

if TYPE_CHECKING:
    from kanalyze.collectors.base.workload import Reference


@click.command()
@click.argument("name", required=False, shell_complete=_complete.references)
def workloads(name: str | None) -> None:
    """List the reference workloads with what each teaches; or describe NAME."""
    known = shipped.references()
    if name is not None:
        found = shipped.reference(name)
        if found is None:
            raise UnknownNameError.of("workload", name, [one.name for one in known])
        emit(f"{found.path}\n\n{found.doc}\n", None)
        return
    indent = max((len(one.name) for one in known), default=0) + 2
    emit("".join(f"{line}\n" for one in known for line in _lines(one, indent)), None)


def _lines(one: Reference, indent: int) -> list[str]:
    """A workload's name, what it teaches, and its variants."""
    margin = " " * indent
    teaches = textwrap.wrap(one.teaches, width(), initial_indent=one.name.ljust(indent), subsequent_indent=margin)
    variants = f"--variant {', '.join(one.variants)}" if one.variants else ""
    return [*teaches, *textwrap.wrap(variants, width(), initial_indent=margin, subsequent_indent=margin)]
