"""``kanalyze name``: what the name of a kernel says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kanalyze.cli._late import late
from kanalyze.cli._options import formats, output
from kanalyze.cli._output import emit, width

with late():
    from kanalyze.decoder import decode
    from kanalyze.renderers.tables import explanations as rendered

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="KERNEL...")
@formats("json")
@output
def name(names: tuple[str, ...], form: str, output: Path | None) -> None:
    """Decode the name KERNEL: family, library, operation, types, layout, tile and more.

    Names are taken as nsys, ncu or torch.profiler prints them. A `-` stands for names read from standard input, one per
    line.
    """
    told = [line for one in names for line in (_lines() if one == "-" else [one])]
    found = [(one, decode.decode(one)) for one in told]
    if form == "json":
        emit(rendered.decoded_json(found).encode(), output)
    else:
        emit(rendered.decoded(found, width()), output)


def _lines() -> list[str]:
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
