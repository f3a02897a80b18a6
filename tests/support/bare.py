"""Collections without the run that has no profiler, for tests that count the runs which a tool sees."""

from kanalyze.collectors.options import BARE
from kanalyze.collectors.run import plan, recording
from kanalyze.collectors.tools import found

WANTED = found.wanted_passes


def leave_out_bare(monkeypatch):
    """Leaves that run out, as `--no-bare` does."""

    def wanted(workload, options):
        return tuple(name for name in WANTED(workload, options) if name != BARE)

    for module in (found, recording, plan):
        monkeypatch.setattr(module, "wanted_passes", wanted)
