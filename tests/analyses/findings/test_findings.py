"""The table of findings: columns, order, and from when on a finding is worth a row; what rules find is tested there."""

import inspect
import pkgutil
from importlib import import_module
from types import SimpleNamespace

import polars as pl
import pytest

from kanalyze.analyses.findings import rules
from kanalyze.analyses.findings.findings import _sampled_run, findings
from kanalyze.errors import CannotTellError
from kanalyze.window import Window
from support.build import call, kernel, nvtx, report

LAUNCH = "cudaLaunchKernel_v7000"

#: 4 SMs of capability 9.0, each of which holds 8 such blocks.
LIMITS = {"compute_capability": "9.0", "sm_count": 4}
BLOCK = {"registers_per_thread": 32, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
COLUMNS = ("rule", "device", "at_stake_ns", "share")


US = 1_000


def launch(start, end, blocks=1, **keys):
    """A kernel, with its times in microseconds; one of a single block leaves three of the four SMs idle."""
    return kernel(start * US, end * US, grid=(blocks, 1, 1), block=(256, 1, 1), side=BLOCK, **keys)


def rows(*events, columns=COLUMNS, **where):
    return findings(report(events, limits=LIMITS), **where).select(columns).rows()


def test_every_column_of_a_finding():
    """Of 100 ns the GPU idles 40 in the wait after the first kernel; it works for 40 in any case."""
    events = [
        *(call(LAUNCH, 0, 10, correlation=1), kernel(10, 20, correlation=1)),
        call("cudaDeviceSynchronize_v3020", 20, 60),
        *(call(LAUNCH, 60, 70, correlation=2), kernel(70, 100, correlation=2)),
    ]
    assert findings(report(events)).to_dicts() == [
        {
            "rule": "host-blocks",
            "device": 0,
            "at_stake_ns": 40,
            "at_most": False,
            "per_iteration_ns": None,
            "replayed_ns": None,
            "replayed_low_ns": 0,
            "replayed_high_ns": 60,
            "share": 0.4,
            "headline": "The GPU idles while the host waits for it",
            "action": "launch the next work before you wait for the last",
            "where": None,
            "sentence": "GPU 0 idle while the host is blocked in a synchronizing call: 40.0 % of the window "
            "(cudaDeviceSynchronize 40 ns). More may follow: the host could run ahead.",
            "remedy": "Launch the next work before waiting, or wait for less: an event instead of the device, later "
            "instead of now.",
            "table": "syncs --by api",
            "definition": "explain host-blocks",
        }
    ]


def test_kernels_stand_in_sentences_with_their_whole_names_whatever_is_in_these():
    name = "void f<{1}, " + "x" * 500 + ">(int)"
    ((sentence,),) = rows(launch(0, 100, name=name), columns=["sentence"])
    assert sentence.startswith(name + " uses 1 block of 256 threads on 4 SMs")


def test_what_gains_nothing_as_another_device_is_at_work_is_not_told():
    """Half of the 60 for which processes 1 and 2 are on GPU 2 at once.

    Shorter kernels on the other GPUs gain nothing, as GPU 2 is at work until the end.
    """
    events = [launch(0, 80), launch(0, 40, device=3), launch(0, 40, device=1)]
    others = [launch(0, 80, 32, device=2), launch(20, 100, 32, device=2, process=2)]
    assert rows(*events, *others) == [("shared-gpu", 2, 30 * US, 0.3)]
    of_one = [launch(0, 80), launch(80, 120, 2)]
    assert rows(*of_one) == [("small-grid", 0, 80 * US, 2 / 3)]


@pytest.mark.parametrize(("end", "told"), [(300, [("small-grid", 0, 3 * US, 0.01)]), (301, [])])
def test_what_sound_programs_have_too_gains_at_least_a_hundredth_of_the_window(end, told):
    assert rows(launch(0, 4), launch(4, end, 32)) == told


def test_a_share_is_of_the_window_that_is_looked_at():
    events = [launch(0, 40), launch(40, 100, 32)]
    assert rows(*events) == [("small-grid", 0, 30 * US, 0.3)]
    assert rows(*events, window=Window(20 * US, 60 * US)) == [("small-grid", 0, 15 * US, 0.375)]
    assert rows(*events, window=Window(40 * US, 100 * US)) == []


@pytest.mark.parametrize(("count", "each_ns"), [(None, None), (1, 30 * US), (4, 7500)])
def test_in_a_window_of_iterations_the_mean_of_each_is_told(count, each_ns):
    window = Window(0, 100 * US, count=count, each="step")
    events = [launch(0, 40), launch(40, 100, 32)]
    assert rows(*events, window=window, columns=["at_stake_ns", "per_iteration_ns"]) == [(30 * US, each_ns)]


def test_nothing_to_say_is_an_empty_table_and_no_record_of_the_devices_is_an_error():
    assert rows(launch(0, 100, 32)) == rows() == []
    with pytest.raises(CannotTellError, match="cannot tell findings, because the report records no events of kind"):
        findings(report([nvtx("step", 0, 10)], kinds=("range",)))


def test_every_rule_of_a_module_is_asked():
    """A function of findings that is made no rule would find nothing, in silence."""
    names = [found.name for found in pkgutil.iter_modules(rules.__path__) if not found.name.startswith("_")]
    modules = [import_module(f"{rules.__name__}.{name}") for name in names]
    assert modules
    for module in modules:
        own = [one for one in vars(module).values() if inspect.isfunction(one) and one.__module__ == module.__name__]
        assert [one for one in own if list(one.__annotations__.values()) == ["Report", "Findings"]] == []
        assert any(isinstance(one, rules.Rule) for one in vars(module).values()), module.__name__


@pytest.mark.parametrize(
    ("own", "theirs", "found"),
    [
        ("steady", "other steady", True),
        (None, "other steady", False),
        ("steady", None, False),
        ("else", "steady", False),
    ],
)
def test_counters_of_another_run_are_of_the_same_part(monkeypatch, own, theirs, found):
    """Of the steady one; where either run has none, they say nothing of a window."""
    other = SimpleNamespace(table=lambda _: pl.DataFrame({"value": [1]}), narrow=lambda **where: where)
    whole = SimpleNamespace(sampled=lambda: other)
    parts = {id(whole): own and SimpleNamespace(window=own), id(other): theirs and SimpleNamespace(window=theirs)}
    monkeypatch.setattr("kanalyze.analyses.findings.findings.known_steady_part", lambda of: parts[id(of)])
    scope = SimpleNamespace(process=None, device=0, window="steady")
    of = SimpleNamespace(scope=scope, table=lambda _: pl.DataFrame(), whole=whole)
    assert _sampled_run(of) == ({"window": theirs, "device": 0} if found else None)
