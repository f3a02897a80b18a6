"""The table of findings: rows and order, sharing out of a device's time, and what remedies gain by replays and did."""

import ast
import inspect
import json
import pkgutil
from collections import defaultdict
from dataclasses import replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, strategies as st

from kanalyze import intervals
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import findings as of_findings, rules
from kanalyze.analyses.findings.findings import ORDER, _joined, _replayed, _sampled_run, findings, ranked, shared_out
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.replay._changes import Mending
from kanalyze.window import Window
from support.build import BLOCK, FOUR_SMS as LIMITS, LAUNCH, US, call, kernel, report
from support.command import ROOT, SAMPLES
from support.real_reports import EXPORTS, TRACES, real_report

COLUMNS = ("rule", "device", "at_stake_ns", "share")


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


TWO = [launch(0, 40), launch(40, 100, 32)]
OTHERS = [launch(0, 80), launch(0, 40, device=3), launch(0, 40, device=1)]
OTHERS += [launch(0, 80, 32, device=2), launch(20, 100, 32, device=2, process=2)]


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("events", "window", "told"),
    [
        # a share of the window that is looked at, and the mean of each iteration in it
        (TWO, None, [("small-grid", 0, 30 * US, 0.3, None)]),
        (TWO, Window(20 * US, 60 * US), [("small-grid", 0, 15 * US, 0.375, None)]),
        (TWO, Window(40 * US, 100 * US), []),
        (TWO, Window(0, 100 * US, count=1, each="step"), [("small-grid", 0, 30 * US, 0.3, 30 * US)]),
        (TWO, Window(0, 100 * US, count=4, each="step"), [("small-grid", 0, 30 * US, 0.3, 7500)]),
        # what sound programs have, too, gains at least a hundredth of the window
        ([launch(0, 5), launch(5, 300, 32)], None, [("small-grid", 0, 3750, 0.0125, None)]),
        ([launch(0, 5), launch(5, 301, 32)], None, []),
        # half of the 60 for which processes 1 and 2 are on GPU 2 at once; shorter kernels on others gain nothing
        (OTHERS, None, [("shared-gpu", 2, 30 * US, 0.3, None)]),
        ([launch(0, 80), launch(80, 120, 2)], None, [("small-grid", 0, 80 * US, 2 / 3, None)]),
    ],
)
def test_which_findings_are_worth_a_row(events, window, told):
    assert rows(*events, window=window, columns=[*COLUMNS, "per_iteration_ns"]) == told


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
    ("window", "theirs", "same"),
    [
        (Window(0, 9, "steady", count=3), "their steady part", True),
        (Window(0, 9, "steady", count=3), None, False),
        (Window(0, 9, "steady"), "their steady part", False),  # a range of that name
        (Window(0, 9, "step#2", count=1), "their steady part", False),
    ],
)
def test_counters_of_another_run_are_of_the_same_part(monkeypatch, window, theirs, same):
    """Of the steady one; of any other window they say nothing."""
    other = SimpleNamespace(table=lambda _: pl.DataFrame({"value": [1]}), narrow=lambda **where: where)
    steady = theirs and SimpleNamespace(window=theirs)
    monkeypatch.setattr("kanalyze.analyses.findings.findings.steady_part", lambda of: steady if of is other else None)
    scope = SimpleNamespace(process=None, device=0, window=window)
    of = SimpleNamespace(scope=scope, table=lambda _: pl.DataFrame(), whole=SimpleNamespace(sampled=lambda: other))
    assert _sampled_run(of) == ({"window": theirs, "device": 0} if same else None)


RULES = Path("analyzer/analyses/findings/rules")


def one(rule, *spans, device=0, ns=None, **other):
    claims = pl.DataFrame(spans, intervals.SPANS, orient="row") if spans else None
    length = sum(end - start for start, end in spans) if ns is None else ns
    return Finding(rule, device, length, f"{rule}.", "…", "…", claims=claims, **other)


class Everything(defaultdict):
    def __init__(self, ns=1):
        super().__init__(lambda: ns)


def told(found, least=1):
    return [(each.rule, each.at_stake_ns) for each in shared_out(found, Everything(least))]


def test_time_goes_to_the_most_specific_finding_and_the_others_keep_the_rest():
    found = [one("host-computes", (0, 100), (200, 300)), one("data-loading", (50, 250))]
    assert told(found) == [("data-loading", 200), ("host-computes", 100)]
    _, left = shared_out(found, Everything())
    assert left.claims.rows() == [(0, 50), (250, 300)]
    assert left.text == "host-computes. Other findings tell of 50.0 % of that."
    overlap = [one("small-grid", (0, 60), (30, 100), ns=40), one("no-tf32", (75, 200))]
    assert told(overlap) == [("no-tf32", 125), ("small-grid", 30)]
    others = [one("data-loading", (0, 10)), one("host-computes", (0, 10), device=1), one("clock-drop", ns=7)]
    assert told(others) == [("data-loading", 10), ("clock-drop", 7), ("host-computes", 10)]
    both = [one("small-grid", (0, 4)), one("small-grid", (0, 4), device=1)]
    assert [each.device for each in shared_out(both, {("small-grid", 0): 5, ("small-grid", 1): 4})] == [1]


def test_a_finding_that_says_how_is_told_anew_of_what_is_left():
    def retold(left):
        return one("host-computes", *left.rows())._replace(text="anew") if left.height > 1 else None

    found = [one("data-loading", (10, 20)), one("host-computes", (0, 30), retold=retold)]
    assert shared_out(found, Everything())[1].text == "anew"
    assert told([found[0], one("host-computes", (0, 20), retold=retold)]) == [("data-loading", 10)]


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda span: (span[0], sum(span))), max_size=5)
some = st.tuples(st.sampled_from(ORDER[::6]), st.integers(0, 1), spans)


@given(st.lists(some, max_size=6), st.integers(1, 6))
def test_each_piece_belongs_to_one_finding_and_none_that_is_worth_it_is_lost(found, least):
    """Against a model that goes through the instants one by one."""
    given_ = [one(rule, *own, device=device) for rule, device, own in found if own]
    kept = shared_out(given_, Everything(least))
    owners = defaultdict(list)
    for at, each in enumerate(kept):
        for start, end in each.claims.rows():
            for instant in range(start, end):
                owners[each.device, instant].append(at)
    assert all(len(own) == 1 for own in owners.values())
    taken = set()
    order = sorted(given_, key=lambda each: (ORDER.index(each.rule), -each.at_stake_ns))
    for each in order:
        own = {(each.device, instant) for span in each.claims.rows() for instant in range(*span)}
        if own - taken and each.at_stake_ns * len(own - taken) // len(own) >= least:
            taken |= own
    assert owners.keys() == taken


def test_the_explanations_are_of_rules_in_their_order():
    apart = {"exposed-transfer", "other-work", "overhead", "slow-group", "small-collectives"}
    apart |= {"straggler", "uneven-all-to-all"}  # of jobs and counters, which share no device's time out
    assert {*ORDER} <= {page.stem for page in Path("analyzer/explanations").glob("*.md")} - apart
    assert ORDER.index("small-grid") > ORDER.index("no-tf32")


@pytest.mark.parametrize("module", sorted(RULES.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_no_rule_imports_another(module):
    """What rules share are queries, in modules of their own; what one says of another's time, claims say."""
    nodes = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom)]
    imported = [node.module for node in nodes] + [f"{node.module}.{one.name}" for node in nodes for one in node.names]
    others = {f"kanalyze.analyses.findings.rules.{path.stem}" for path in RULES.glob("[!_]*.py")}
    assert others.isdisjoint(imported)


REPORTS = [path for path in [*EXPORTS, *TRACES] if path.name not in ("cpu_only.json.gz", "autograd_profiler.json.gz")]

#: Programs that were stored for rules of their own, one for each.
_PROGRAMS = """sample_reports/ddp_late/rank1.json.gz sample_reports/launch_bound_plain/nsys.sqlite
sample_reports/serving/vllm.sqlite sample_reports/streams/torch.json.gz tests/reports/experts/experts.sqlite
tests/reports/graphs/nested.sqlite tests/reports/waits/poll.sqlite
tests/reports/work/recomputed/manual_attention.json.gz"""
_REMEDIES = "attention_fp32 far_transposed_add float64_mlp fusion_norm tf32_mlp unaligned_hidden"
REPORTS += [ROOT / name for name in _PROGRAMS.split()]
REPORTS += [ROOT / f"tests/reports/work/remedies/{name}.json.gz" for name in _REMEDIES.split()]


def by_rule(path, window="steady"):
    return {row["rule"]: row for row in findings(real_report(path), window=window).to_dicts()}


@pytest.mark.slow
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: "-".join(path.relative_to(ROOT).parts[1:]))
def test_no_replay_gains_more_than_can_be_gained(path):
    for row in findings(real_report(path)).to_dicts():
        if row["replayed_ns"] is not None:
            assert row["replayed_ns"] >= 0
            assert not row["at_most"] or row["replayed_ns"] <= row["at_stake_ns"], row["rule"]


@pytest.mark.slow
def test_a_kernel_that_nothing_runs_beside_gains_what_it_is_shortened_by():
    """One block on 132 SMs: 131 of 132 parts of the kernel, and nothing else is behind it."""
    row = by_rule(SAMPLES / "add" / "nsys.sqlite", window=None)["small-grid"]
    assert row["replayed_ns"] == pytest.approx(row["at_stake_ns"], rel=0.01)


@pytest.mark.slow
def test_shorter_kernels_gain_nothing_where_the_host_is_the_limit():
    found = by_rule(SAMPLES / "mlp_train" / "nsys.sqlite")
    assert found["no-tf32"]["at_stake_ns"] > 0
    assert found["no-tf32"]["replayed_ns"] == 0
    assert found["graph-candidate"]["replayed_ns"] > found["graph-candidate"]["at_stake_ns"]


@pytest.mark.slow
def test_of_more_operations_and_calls_than_may_be_nothing_is_replayed(monkeypatch):
    monkeypatch.setattr(of_findings, "_MOST_REPLAYED", 1000)
    found = real_report(SAMPLES / "mlp_train" / "nsys.sqlite")
    told = of_findings.with_replays(found, ranked(found))
    assert {one.rule for one in ranked(found)} - {one.rule for one in told} <= {"small-grid", "low-occupancy", "tail"}
    assert all(one.replayed_ns is None for one in told)


def test_findings_of_one_cause_are_one_and_what_their_remedy_changes_adds_up():
    gone, less = pl.Series("row", [1], dtype=pl.UInt32), pl.DataFrame({"row": [2], "saved_ns": [30]})

    def one(rule, ns, text, name, mending):
        return Finding(rule, 0, ns, text, "…", "…", (name,), action=CHANNELS_LAST, mending=lambda _: mending)

    slow = one("small-grid", 40, "{0} is slow.", "b", Mending(shorter=less))
    needless = one("layout-conversions", 90, "{0} is needless.", "a", Mending(gone=gone))
    (found,) = _joined([slow, needless])
    assert (found.rule, found.at_stake_ns, found.names) == ("layout-conversions", 130, ("a", "b"))
    assert found.text.format(*found.names) == "a is needless. The same cause: b is slow."
    change = found.change(None)
    assert (change.gone.to_list(), change.shorter.rows()) == ([1], [(2, 30)])
    assert [one.at_stake_ns for one in _joined([slow._replace(action="other"), needless])] == [90, 40]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["mlp_train", "launch_bound_plain"])
def test_gains_add_up_to_no_more_than_all_remedies_gain_together(name):
    of = real_report(SAMPLES / name / "nsys.sqlite")
    of = of.narrow(window=steady_part(of).window)
    found = ranked(of)
    changes = [change for one in found if (change := one.change(of)) is not None]
    together, *_ = _replayed(of, 0, reduce(Mending.with_all_of, changes))
    assert sum(one.replayed_ns or 0 for one in of_findings.with_replays(of, found)) <= together[0]


def test_what_two_remedies_change_is_changed_once():
    gone, less = pl.Series("row", [1, 2], dtype=pl.UInt32), pl.DataFrame({"row": [2, 3, 3], "saved_ns": [9, 20, 10]})
    host = pl.DataFrame({"process_id": [1], "start": [0], "end": [5]})
    one = Mending(gone=gone, calls=pl.Series("row", [4], dtype=pl.UInt32), host=host)
    other = Mending(shorter=less, unwaited=pl.Series("row", [5], dtype=pl.UInt32), graph=True)
    both = one.with_all_of(other).with_all_of(Mending(shorter=pl.DataFrame({"row": [3], "saved_ns": [40]})))
    assert sorted(both.gone) == [1, 2]
    assert both.shorter.rows() == [(3, 40)]
    assert (both.calls.to_list(), both.unwaited.to_list(), both.graph) == ([4], [5], True)
    assert both.host.rows() == [(1, 0, 5)]


def test_a_finding_without_a_replay_gains_no_more_than_the_device_does_not_work_besides():
    """Kernels of 30, 50 and 20 ns in a window of 150."""
    of = report([kernel(0, 30), kernel(40, 90), kernel(130, 150)])
    claims = pl.DataFrame({"start": [40], "end": [90]})
    one = Finding("full-sort", 0, 50, "text", "remedy", "kernels", claims=claims)
    found = of_findings.with_replays(
        of, [one, one._replace(at_most=True), one._replace(vague=True), one._replace(claims=None)]
    )
    bounds = [each.replayed for each in found]
    assert bounds == [(None, 0, 150 - 30 - 20), (None, 0, 50), (None, None, None), (None, 0, 50)]


@pytest.mark.parametrize(
    ("saved", "bounds"),
    # what is left takes at most twice as long, as two runs differ: of 1,000 ns 900, and 300
    [(900, (900, 1000 - 30 - 200, 1000)), (300, (300, int((300 - 21) * 0.75), int((300 + 21) * 1.25)))],
)
def test_what_a_remedy_leaves_bounds_its_gain_too(saved, bounds):
    """A kernel of 1 µs, of which some is saved."""
    change = Mending(shorter=pl.DataFrame({"row": [0], "saved_ns": [saved]}))
    (one,) = of_findings.with_replays(
        report([kernel(0, 1000)]), [Finding("full-sort", 0, 1000, "", "", "", mending=change)]
    )
    assert one.replayed == pytest.approx(bounds, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "gain"), [(32, (60, 100)), (1, (300, 480))])
def test_kernels_that_fill_the_gpu_run_in_turn_on_any_streams(blocks, gain):
    """Five of 100 µs, each on a stream of its own, each but the last waited for: small ones could run side by side."""
    events = []
    for number in range(5):
        start, keys = 120 * number, {"correlation": number + 1}
        events += [call(LAUNCH, start * US, (start + 5) * US, **keys), launch(start + 10, start + 110, blocks, **keys)]
        events[-1] = replace(events[-1], stream=number + 7)
        if number < 4:
            events += [call("cudaDeviceSynchronize_v3020", (start + 6) * US, (start + 115) * US)]
    of = report(events, limits=LIMITS | {"max_warps_per_sm": 64, "threads_per_warp": 32})
    (one,) = (found for found in ranked(of) if found.rule == "unneeded-sync")
    (told, _), *_ = _replayed(of, 0, one.change(of))
    assert gain[0] * US <= told <= gain[1] * US


def test_what_is_paid_once_makes_no_replay_less_sure():
    of = real_report(SAMPLES / "add" / "nsys.sqlite")
    (one,) = (found for found in ranked(of) if found.rule == "small-grid")
    (gain, apart), *_ = _replayed(of, 0, one.change(of))
    once = bucket_sums(of).filter(bucket="loading").get_column("ns").sum()
    start, end = windows(of).select("start", "end").row(0)
    assert 0 < apart <= 0.03 * (end - start - once - gain) + 1


@pytest.mark.parametrize(("rule", "chains", "weight"), [("fusion", 0, 50), ("fusion", 1, 90), ("full-sort", 0, 90)])
def test_formulas_are_ranked_by_what_they_take(rule, chains, weight):
    """torch.compile fuses all of a program; chains of operators are general, and ranked by what is gained."""
    one = Finding(rule, 0, 50, "", "", "", replayed_ns=90, general=bool(chains))
    assert of_findings.weighed_ns(one, 1.0) / of_findings.weighed_ns(one._replace(at_stake_ns=90), 1.0) == weight / 90


REMEDIES = Path(__file__).parents[2] / "reports" / "work" / "remedies"
TIMES = json.loads((REMEDIES / "times.json").read_text())
STEPS = 4  # of each trace


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TIMES))
def test_a_remedy_gains_what_is_told_within_fifteen_hundredths(name):
    times = TIMES[name]
    found = of_findings.by_gain(real_report(REMEDIES / f"{name}.json.gz"))
    told_ms = sum(one.gain_ns for one in found if one.rule == times["rule"]) / STEPS / 1e6
    assert told_ms == pytest.approx(times["fault_ms"] - times["remedy_ms"], rel=0.15)
