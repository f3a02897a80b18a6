"""Where did the GPU time go?

    >>> import kanalyze
    >>> report = kanalyze.read("sample_reports/add/nsys.sqlite")
    >>> kanalyze.kernels(report)["name"].to_list()
    ['add(int, float *, float *)']

:func:`read` gives a :class:`Report`, whose tables (``report.events``, ``report.kernel_config``, …) are polars frames.
Every analysis is a function from a report to one polars frame, documented column by column in its module and by
``kanalyze show``. Each takes ``window=``, ``device=`` and ``process=`` to look at a part alone, which
:meth:`Report.narrow` does once for several. :func:`summarize` gives everything that the page shows, and :func:`compare`
tells whether one program is faster than another.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the public names, for type checkers and for the list of tables
    from kanalyze.analyses.comparing._comparison import Comparison as Comparison, Verdict as Verdict
    from kanalyze.analyses.counters.advice import advice as advice
    from kanalyze.analyses.counters.counters import counters as counters, hot_lines as hot_lines, stalls as stalls
    from kanalyze.analyses.counters.roofline import roofline as roofline
    from kanalyze.analyses.device.kernels import copies as copies, gpu as gpu, kernels as kernels
    from kanalyze.analyses.device.occupancy import occupancy as occupancy
    from kanalyze.analyses.findings.findings import findings as findings
    from kanalyze.analyses.findings.health import health as health
    from kanalyze.analyses.host.calls import (
        api as api,
        launch_summary as launch_summary,
        launches as launches,
        libraries as libraries,
    )
    from kanalyze.analyses.idle.code import code as code
    from kanalyze.analyses.idle.culprits import culprits as culprits
    from kanalyze.analyses.idle.ledger import (
        exposure as exposure,
        gaps as gaps,
        ledger as ledger,
        utilisation as utilisation,
    )
    from kanalyze.analyses.idle.syncs import host_waits as host_waits, syncs as syncs
    from kanalyze.analyses.iterations.iterations import iterations as iterations
    from kanalyze.analyses.iterations.phases import phases as phases
    from kanalyze.analyses.joining.agreement import agreement as agreement
    from kanalyze.analyses.joining.joined import gains as gains, joined as joined, variants as variants
    from kanalyze.analyses.launches.cold import cold as cold
    from kanalyze.analyses.launches.graphs import graphs as graphs
    from kanalyze.analyses.launches.hot_kernels import hot_kernels as hot_kernels
    from kanalyze.analyses.memory.memory import memory as memory
    from kanalyze.analyses.memory.migrations import (
        faults as faults,
        migration_totals as migration_totals,
        migrations as migrations,
    )
    from kanalyze.analyses.operators.fusion import compiled as compiled, fusion as fusion
    from kanalyze.analyses.operators.ops import op_kernels as op_kernels, ops as ops
    from kanalyze.analyses.operators.tree import tree as tree
    from kanalyze.analyses.page.overview_page import Overview as Overview, Summary as Summary, overview as overview
    from kanalyze.analyses.page.time_page import summarize as summarize
    from kanalyze.analyses.ranges.captured import captured as captured
    from kanalyze.analyses.ranges.instances import steps as steps
    from kanalyze.analyses.ranges.ranges import range_gpu as range_gpu, range_kernels as range_kernels, ranges as ranges
    from kanalyze.analyses.replay.critical_path import critical_path as critical_path
    from kanalyze.analyses.serving.engine_steps import engine_steps as engine_steps
    from kanalyze.analyses.serving.requests import requests as requests
    from kanalyze.analyses.serving.step_laws import step_laws as step_laws
    from kanalyze.analyses.streams.concurrency import concurrency as concurrency
    from kanalyze.analyses.timeline.gpu_units import gpu_units as gpu_units
    from kanalyze.analyses.work.roofs import budget as budget, mfu as mfu, roofs as roofs
    from kanalyze.analyses.work.work import work as work
    from kanalyze.errors import KanalyzeError as KanalyzeError
    from kanalyze.notebook import (
        compare as compare,
        ranks as ranks,
        read_all as read_all,
        reduce as reduce,
        sql as sql,
        timeline as timeline,
        whatif as whatif,
        without_profiler as without_profiler,
    )
    from kanalyze.readers import read as read
    from kanalyze.readers.request_log import read_requests as read_requests
    from kanalyze.report import Report as Report
    from kanalyze.window import Window as Window

#: Where types are; imported when first used, since polars takes long to import.
_TYPES = {
    "Comparison": "kanalyze.analyses.comparing._comparison",
    "KanalyzeError": "kanalyze.errors",
    "Overview": "kanalyze.analyses.page.overview_page",
    "Report": "kanalyze.report",
    "Summary": "kanalyze.analyses.page.overview_page",
    "Verdict": "kanalyze.analyses.comparing._comparison",
    "Window": "kanalyze.window",
}
_FUNCTIONS = (
    *("compare", "overview", "ranks", "read", "read_all", "reduce", "sql", "summarize", "timeline", "whatif"),
    *("read_requests", "without_profiler"),
)


def _public() -> dict[str, str]:
    """The module of each public name, in the order of the alphabet: types, functions, and every table of a report."""
    tables = import_module("kanalyze.analyses").homes()
    return dict(sorted((tables | _TYPES | dict.fromkeys(_FUNCTIONS, "kanalyze.notebook")).items()))


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used; tables show their units in notebooks."""
    if name == "__all__":
        return [*_public()]
    folder = Path(__file__).parent
    is_module = (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()  # yet to be imported
    home = None if name.startswith("_") or is_module else _public().get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    if name not in _TYPES and name not in _FUNCTIONS:
        value = import_module("kanalyze.notebook").shown(value)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The package as users see it: its public names, of which no import makes anything else."""

    def __dir__(self) -> list[str]:
        """The public names alone, in the order of the alphabet."""
        return [*_public()]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but no folder without code, as ``import kanalyze.kernels`` would in a table's place."""
        if not (isinstance(value, ModuleType) and value.__file__ is None):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
