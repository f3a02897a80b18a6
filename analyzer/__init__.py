"""Where did the GPU time go?

    >>> import kanalyze
    >>> report = kanalyze.read("sample_reports/add/nsys.sqlite")
    >>> kanalyze.kernels(report)["name"].to_list()
    ['add(int, float *, float *)']

:func:`read` gives a :class:`Report`, whose tables (``report.events``, ``report.kernel_config``, …) are polars frames.
Every analysis is a function from a report to one polars frame, documented column by column in its module's ``TABLE``
and by ``kanalyze tables``. Each takes ``window=``, ``device=`` and ``process=`` to look at a part alone, which
:meth:`Report.narrow` does once for several. :func:`summarize` gives everything that the page shows.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kanalyze.analyses.advice import advice
    from kanalyze.analyses.agreement import agreement
    from kanalyze.analyses.api import api
    from kanalyze.analyses.cold import cold
    from kanalyze.analyses.compiled import compiled
    from kanalyze.analyses.concurrency import concurrency
    from kanalyze.analyses.copies import copies
    from kanalyze.analyses.counters import counters
    from kanalyze.analyses.culprits import culprits
    from kanalyze.analyses.exposure import exposure
    from kanalyze.analyses.faults import faults
    from kanalyze.analyses.findings import findings
    from kanalyze.analyses.fusion import fusion
    from kanalyze.analyses.gains import gains
    from kanalyze.analyses.gaps import gaps
    from kanalyze.analyses.gpu import gpu
    from kanalyze.analyses.graphs import graphs
    from kanalyze.analyses.health import health
    from kanalyze.analyses.hot_kernels import hot_kernels
    from kanalyze.analyses.hot_lines import hot_lines
    from kanalyze.analyses.joined import joined
    from kanalyze.analyses.kernels import kernels
    from kanalyze.analyses.launch_summary import launch_summary
    from kanalyze.analyses.launches import launches
    from kanalyze.analyses.ledger import ledger
    from kanalyze.analyses.libraries import libraries
    from kanalyze.analyses.memory import memory
    from kanalyze.analyses.migration_totals import migration_totals
    from kanalyze.analyses.migrations import migrations
    from kanalyze.analyses.occupancy import occupancy
    from kanalyze.analyses.op_kernels import op_kernels
    from kanalyze.analyses.ops import ops
    from kanalyze.analyses.range_gpu import range_gpu
    from kanalyze.analyses.range_kernels import range_kernels
    from kanalyze.analyses.ranges import ranges
    from kanalyze.analyses.roofline import roofline
    from kanalyze.analyses.stalls import stalls
    from kanalyze.analyses.steps import steps
    from kanalyze.analyses.summary import Summary, summarize
    from kanalyze.analyses.syncs import syncs
    from kanalyze.analyses.tree import tree
    from kanalyze.analyses.utilisation import utilisation
    from kanalyze.analyses.variants import variants
    from kanalyze.errors import KanalyzeError
    from kanalyze.notebook import read_all
    from kanalyze.readers import read
    from kanalyze.report import Report
    from kanalyze.window import Window

__all__ = [
    "KanalyzeError",
    "Report",
    "Summary",
    "Window",
    "advice",
    "agreement",
    "api",
    "cold",
    "compiled",
    "concurrency",
    "copies",
    "counters",
    "culprits",
    "exposure",
    "faults",
    "findings",
    "fusion",
    "gains",
    "gaps",
    "gpu",
    "graphs",
    "health",
    "hot_kernels",
    "hot_lines",
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
    "range_gpu",
    "range_kernels",
    "ranges",
    "read",
    "read_all",
    "roofline",
    "stalls",
    "steps",
    "summarize",
    "syncs",
    "tree",
    "utilisation",
    "variants",
]

#: Where the names that are no tables are, by module: imported when first used, since polars takes long to import.
_PLACES = {
    "kanalyze.analyses.summary": ("Summary",),
    "kanalyze.errors": ("KanalyzeError",),
    "kanalyze.notebook": ("read", "read_all", "summarize"),
    "kanalyze.report": ("Report",),
    "kanalyze.window": ("Window",),
}
_HOMES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used; tables show their units in notebooks."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES.get(name, f"kanalyze.analyses.{name}")), name)
    if name not in _HOMES:
        found = import_module("kanalyze.notebook").shown(found)
    globals()[name] = found
    return found
