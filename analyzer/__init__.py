"""Where did the GPU time go?

    >>> import kanalyze
    >>> report = kanalyze.read("sample_reports/add/nsys.sqlite")
    >>> kanalyze.kernels(report)["name"].to_list()
    ['add(int, float *, float *)']

:func:`read` gives a :class:`Report`, whose tables (``report.events``, ``report.kernel_config``, …) are polars frames.
Every analysis is a function from a report to one polars frame, documented column by column in its module's ``TABLE``
and by ``kanalyze tables``. Each takes ``window=``, ``device=`` and ``process=`` to look at a part alone, which
:meth:`Report.narrow` does once for several. :func:`summarize` gives everything that the page shows, and :func:`compare`
tells whether one program is faster than another.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._comparison import Comparison, Verdict
    from kanalyze.analyses.counters.advice import advice
    from kanalyze.analyses.counters.counters import counters
    from kanalyze.analyses.counters.hot_lines import hot_lines
    from kanalyze.analyses.counters.roofline import roofline
    from kanalyze.analyses.counters.stalls import stalls
    from kanalyze.analyses.critical.critical_path import critical_path
    from kanalyze.analyses.device.copies import copies
    from kanalyze.analyses.device.gpu import gpu
    from kanalyze.analyses.device.kernels import kernels
    from kanalyze.analyses.findings.findings import findings
    from kanalyze.analyses.findings.health import health
    from kanalyze.analyses.fusion.compiled import compiled
    from kanalyze.analyses.fusion.fusion import fusion
    from kanalyze.analyses.host.api import api
    from kanalyze.analyses.host.launch_summary import launch_summary
    from kanalyze.analyses.host.launches import launches
    from kanalyze.analyses.host.libraries import libraries
    from kanalyze.analyses.idle.culprits import culprits
    from kanalyze.analyses.idle.exposure import exposure
    from kanalyze.analyses.idle.gaps import gaps
    from kanalyze.analyses.idle.ledger import ledger
    from kanalyze.analyses.idle.syncs import syncs
    from kanalyze.analyses.idle.utilisation import utilisation
    from kanalyze.analyses.iterations.iterations import iterations
    from kanalyze.analyses.iterations.phases import phases
    from kanalyze.analyses.joining.agreement import agreement
    from kanalyze.analyses.joining.gains import gains
    from kanalyze.analyses.joining.joined import joined
    from kanalyze.analyses.joining.variants import variants
    from kanalyze.analyses.launches.cold import cold
    from kanalyze.analyses.launches.graphs import graphs
    from kanalyze.analyses.launches.hot_kernels import hot_kernels
    from kanalyze.analyses.memory.faults import faults
    from kanalyze.analyses.memory.memory import memory
    from kanalyze.analyses.memory.migration_totals import migration_totals
    from kanalyze.analyses.memory.migrations import migrations
    from kanalyze.analyses.occupancy.occupancy import occupancy
    from kanalyze.analyses.operators.op_kernels import op_kernels
    from kanalyze.analyses.operators.ops import ops
    from kanalyze.analyses.operators.tree import tree
    from kanalyze.analyses.page.overview_page import Overview, overview
    from kanalyze.analyses.page.time_page import Summary, summarize
    from kanalyze.analyses.ranges.range_gpu import range_gpu
    from kanalyze.analyses.ranges.range_kernels import range_kernels
    from kanalyze.analyses.ranges.ranges import ranges
    from kanalyze.analyses.ranges.steps import steps
    from kanalyze.analyses.streams.concurrency import concurrency
    from kanalyze.analyses.units.gpu_units import gpu_units
    from kanalyze.errors import KanalyzeError
    from kanalyze.notebook import compare, ranks, read_all, reduce, sql, timeline, whatif, without_profiler
    from kanalyze.readers import read
    from kanalyze.report import Report
    from kanalyze.window import Window

__all__ = [
    "Comparison",
    "KanalyzeError",
    "Overview",
    "Report",
    "Summary",
    "Verdict",
    "Window",
    "advice",
    "agreement",
    "api",
    "cold",
    "compare",
    "compiled",
    "concurrency",
    "copies",
    "counters",
    "critical_path",
    "culprits",
    "exposure",
    "faults",
    "findings",
    "fusion",
    "gains",
    "gaps",
    "gpu",
    "gpu_units",
    "graphs",
    "health",
    "hot_kernels",
    "hot_lines",
    "iterations",
    "joined",
    "kernels",
    "launch_summary",
    "launches",
    "ledger",
    "libraries",
    "memory",
    "migration_totals",
    "migrations",
    "occupancy",
    "op_kernels",
    "ops",
    "overview",
    "phases",
    "range_gpu",
    "range_kernels",
    "ranges",
    "ranks",
    "read",
    "read_all",
    "reduce",
    "roofline",
    "sql",
    "stalls",
    "steps",
    "summarize",
    "syncs",
    "timeline",
    "tree",
    "utilisation",
    "variants",
    "whatif",
    "without_profiler",
]

#: Where types are; imported when first used, since polars takes long to import.
_TYPES = {
    "Comparison": "kanalyze.analyses.comparing._comparison",
    "KanalyzeError": "kanalyze.errors",
    "Overview": "kanalyze.analyses.page.overview_page",
    "Report": "kanalyze.report",
    "Summary": "kanalyze.analyses.page.time_page",
    "Verdict": "kanalyze.analyses.comparing._comparison",
    "Window": "kanalyze.window",
}


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used; tables show their units in notebooks."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tables = {} if name in _TYPES else import_module("kanalyze.analyses").homes()
    found: object = getattr(import_module(tables.get(name) or _TYPES.get(name, "kanalyze.notebook")), name)
    if name in tables:
        found = import_module("kanalyze.notebook").shown(found)
    globals()[name] = found
    return found


class _Package(ModuleType):
    """The package as users see it: its public names, of which no import makes anything else."""

    def __dir__(self) -> list[str]:
        """The public names alone, in the order of the alphabet."""
        return [*__all__]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but put no module in a table's place, as ``import kanalyze.kernels`` would."""
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
