"""Builds the page of a change: time now and then with its bounds, what is critical then, single changes by gain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze import units
from kanalyze.outlets import command
from kanalyze.renderers.page.time import Page
from kanalyze.renderers.text.grid import Column, Section, section
from kanalyze.window import PerIteration

if TYPE_CHECKING:
    from kanalyze.analyses.replay._whatif import WhatIf

#: Of the gain, what Amdahl's differs by for the page to say so.
_NOTABLE: Final = 0.1


def whatif_page(found: WhatIf, top: int) -> Page:
    """Builds the page of a change, at most `top` rows per table."""
    sections = [_critical(found, top)] if found.changes or not found.single else []
    sections += [_single(found, top)] if found.single else []
    more = command("kanalyze", "whatif", found.meta.path, *(["--faster", "NAME=2"] if found.single else ["--each"]))
    heading = ["kanalyze whatif", found.meta.path.name, found.meta.tool, *found.changes]
    return Page(heading, answer(found), sections, more)


def answer(found: WhatIf) -> str:
    """Time now and then, the bounds, and what Amdahl's law would have promised."""
    per = PerIteration(found.iterations, found.each)
    measured = "" if found.measured_ns is None else f" {_profiler(found)}"
    if not found.changes:
        return f"The recording takes {per.time(found.now_ns)}.{measured}"
    between = f"{units.time(_each(found, found.low_ns))} to {units.time(_each(found, found.high_ns))}"
    told = f"Now {per.time(found.now_ns)}, then {units.time(_each(found, found.then_ns))} ({between}): {_gain(found)}."
    promised = found.now_ns - found.amdahl_ns
    amdahl = f" By Amdahl's law it would be {units.time(_each(found, promised))} less."
    apart = abs(promised - found.gain_ns) > _NOTABLE * max(promised, found.gain_ns, 1)
    return f"{told}{amdahl if apart else ''}{measured}"


def _profiler(found: WhatIf) -> str:
    """How much of the host's time is left without the profiler, and how well that is known."""
    low, usual, high = map(units.percent, (found.host_kept_low, found.host_kept, found.host_kept_high))
    if found.host_kept < 1:
        return f"Without the profiler {usual} ({low} to {high}) of the host's time is taken to be left."
    if found.host_kept_low < 1:
        untold = "How much shorter the host's time is without the profiler cannot be told from the measured time"
        return f"{untold}: the bounds take {low} to {high} of it."
    return "No shorter time of the host explains the measured time."


def _each(found: WhatIf, ns: float) -> float:
    return ns / (found.iterations or 1)


def _gain(found: WhatIf) -> str:
    if not found.now_ns or abs(found.gain_ns) * 1000 < found.now_ns:
        return "nothing is gained"
    word = "less" if found.gain_ns > 0 else "more"
    gain = abs(found.gain_ns)
    return f"{units.time(_each(found, gain))} {word}, {units.percent(gain / found.now_ns)}"


def _critical(found: WhatIf, top: int) -> Section:
    """Critical path to the end of the window, now and then."""
    columns = (
        Column("now", lambda one: units.time(_each(found, one.now_ns))),
        Column("then", lambda one: units.time(_each(found, one.then_ns))),
        Column("of then", lambda one: units.percent(one.then_ns / found.then_ns) if found.then_ns else ""),
        Column("", lambda one: one.name or one.cause, left=True),
    )
    remark = "what the end waits for, adding up to all of it"
    return section("CRITICAL PATH", found.critical, columns, top, remark, named=True)


def _single(found: WhatIf, top: int) -> Section:
    """Single changes by gain."""

    def gain(then_ns: float) -> str:
        return units.time(_each(found, found.now_ns - then_ns))

    columns = (
        Column("gain", lambda one: gain(one.then_ns)),
        Column("then", lambda one: units.time(_each(found, one.then_ns))),
        Column("at least", lambda one: gain(one.high_ns), wide=True),
        Column("at most", lambda one: gain(one.low_ns), wide=True),
        Column("by Amdahl", lambda one: gain(one.amdahl_ns)),
        Column("change", lambda one: one.change, left=True),
    )
    return section("CHANGES", found.single, columns, top, "each alone", cut=True)
