"""Laws of steps: those that made the times, times of an H100 that no profiler slowed, and what no step tells."""

from functools import partial

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.findings import rules
from kanalyze.analyses.findings.rules.laws import slow_engine_steps, steps_by_law
from kanalyze.analyses.page.batch_page import at_batch
from kanalyze.analyses.serving.step_laws import fitted, in_words, law_points, laws, time_at
from kanalyze.analyses.work._configuration import Size
from kanalyze.errors import CannotTellError
from support.build import call, kernel, launched, nvtx, report
from support.command import REPORTS
from support.strategies import slow_given


def decode(requests, padded, kv):
    if not padded:
        return f"prefill[bs=1 tok={requests} sqsq=1 sqsk=1 sk={kv}]"
    size = f"{requests}/{padded}" if padded > requests else str(requests)
    return f"decode[bs={size} tok={requests} d={requests} sqsq={requests} sqsk={kv} sk={kv}]"


def engine_of(rows, host=100_000, captures=(), told=decode, beside_ns=0, **of):
    """A report of steps: requests, size of the graph (0 for none: prompts of so many tokens), tokens in the cache, ns.

    The host takes `host` ns before each; graphs of `captures` were captured before. Steps with a graph launch a kernel
    of `beside_ns` without it.
    """
    events, at = [nvtx(f"capture_{size}_decode", 1000 * size, 1000 * size + 500) for size in captures], 1_000_000
    for number, (requests, padded, kv, ns) in enumerate(rows):
        side = {"graph_exec_id": padded, "graph_node_id": padded << 32} if padded else {}
        ran = kernel(at + 8_000, at + 8_000 + ns, correlation=number, name="layers", side=side)
        name = "cudaGraphLaunch" if padded else "cudaLaunchKernel"
        end, alone = at + 8_000 + ns, beside_ns if padded else 0
        if alone:
            last = kernel(end, end + alone, correlation=1000 + number, name="sample")
            events += launched(at + 6_100, at + 6_900, last)
        events += [
            *launched(at + 2_000, at + 6_000, ran, name=name),
            nvtx(told(requests, padded, kv), at, end + alone + 1_000),
            call("cudaStreamSynchronize", at + 7_000, end + alone + 500),
        ]
        at = end + alone + host
    return report(events, **of)


SIZES = (1, 2, 4, 8, 16, 32, 64)
STEPS = pl.read_csv(REPORTS / "serving" / "h100_decode_steps.csv")
H100 = engine_of(STEPS.rows(), captures=SIZES)

#: Requests and tokens in the cache of some steps.
BATCHES = [(1, 700), (1, 900), (4, 1200), (4, 3000), (9, 5000), (9, 9000), (16, 9500), (16, 20_000), (30, 24_000)] * 4


def size_of(requests):
    return next(size for size in SIZES if size >= requests)


def to(size):
    return Size(None, size)


def gpu(report):
    (row,) = laws(report).filter(part="gpu", kind="decode").to_dicts()
    return row


@slow_given(
    st.integers(50_000, 900_000), st.integers(500, 9_000), st.integers(2, 60), st.lists(st.integers(0, 8), max_size=2)
)
def test_a_law_is_found_in_times_that_it_made_and_slow_steps_do_not_change_it(fixed, each, cached, slow):
    times = [fixed + each * size_of(n) + cached * kv for n, kv in BATCHES]
    took = [ns * (1 + 3 * (at in slow)) for at, ns in enumerate(times)]
    rows = [(n, size_of(n), kv, ns) for (n, kv), ns in zip(BATCHES, took, strict=True)]
    row = gpu(engine_of(rows))
    assert row["fixed_ns"] == pytest.approx(fixed, rel=0.02, abs=2_000)
    assert row["per_token_ns"] == pytest.approx(each, rel=0.05, abs=20)
    assert row["per_kv_token_ns"] == pytest.approx(cached, rel=0.02)
    assert (row["slow"], row["count"], row["tokens_are"]) == (len({*slow}), len(BATCHES), "padded")
    assert row["slow_ns"] == pytest.approx(sum(3 * times[at] for at in {*slow}), rel=0.02, abs=10)


@pytest.mark.slow
@pytest.mark.parametrize("kv", [lambda tokens: tokens, lambda _: 5000, lambda tokens: tokens**2 % 4096])
def test_eager_steps_go_by_their_tokens_and_what_is_not_the_gpu_s_is_the_host_s(kv):
    report = engine_of([(tokens, 0, kv(tokens), 300_000 + 700 * tokens) for tokens in range(100, 4000, 170)])
    parts = {row["part"]: row for row in laws(report).to_dicts()}
    assert parts["gpu"]["per_token_ns"] == pytest.approx(700, rel=1e-3)
    assert parts["gpu"]["fixed_ns"] == pytest.approx(300_000, rel=1e-3)
    assert parts["gpu"]["per_kv_token_ns"] in (None, pytest.approx(0, abs=0.1))
    steps = kanalyze.engine_steps(report).drop_nulls("gap_ns")
    assert parts["host"]["count"] == steps.height
    idle = (steps["gap_ns"] + steps["dur_ns"] - steps["busy_ns"]).median()
    assert parts["host"]["fixed_ns"] == pytest.approx(idle, rel=0.01)


@pytest.mark.slow
def test_what_steps_do_not_tell_is_null_and_few_steps_have_no_law():
    row = gpu(engine_of([(8, 8, 4000, 500_000 + 1000 * (at % 3)) for at in range(12)]))
    assert (row["per_token_ns"], row["per_kv_token_ns"], row["why"]) == (None, None, None)
    assert row["fixed_ns"] == pytest.approx(501_000, rel=1e-3)
    few = kanalyze.step_laws(engine_of([(8, 8, 4000, 500_000)] * 5))
    assert few["why"].to_list() == ["5 of 8 steps that are needed", "4 of 8 steps that are needed"]
    assert few["fixed_ns"].null_count() == few.height
    assert in_words(laws(engine_of([(8, 8, 4000, 500_000)] * 5))) == ""
    assert kanalyze.step_laws(engine_of([])).is_empty()


def test_time_that_goes_with_the_tokens_alone_has_no_negative_fixed_part():
    rows = [(tokens, 0, tokens, 2 * tokens**2) for tokens in range(500, 4000, 250)]
    (row,) = laws(engine_of(rows)).filter(part="gpu").to_dicts()
    assert row["fixed_ns"] == 0.0


@pytest.mark.parametrize(("tokens", "ns"), [(1, 10), (2, 12), (4, 16), (10, 22), (16, 28), (20, 30), (0.5, 9.75)])
def test_between_two_sizes_a_step_takes_what_is_between_and_beyond_them_what_the_line_says(tokens, ns):
    steps = pl.DataFrame({"n": [4, 1, 16, 4, 9], "size_ns": [16.0, 10.0, 28.0, 16.0, None], "bent": False})
    steps = steps.with_columns(fixed_ns=3.0, per_token_ns=0.5)
    assert time_at(steps, tokens) == ns
    one_bent = steps.with_columns(bent=pl.col("n") == 16)  # which may be chance
    assert time_at(one_bent, tokens) == ns
    assert time_at(steps.with_columns(n=pl.lit(None, pl.Int64)), tokens) == 3 + 0.5 * tokens


@pytest.mark.parametrize("bend", [64, 0])
def test_a_law_that_bends_goes_by_recorded_sizes_and_beyond_them_by_the_last(bend):
    def law(n):
        return 300_000 + 6_000 * max(n - bend, 0)

    sizes = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256] * 20
    rows = [(n, 0, 0, law(n) * (96 + at * 37 % 9) // 100) for at, n in enumerate(sizes)]
    ran = engine_of(rows, told="step[DECODE bs={}]".format)
    for batch in (1, 12, 64, 224, 256, 400):
        at = at_batch(ran, to(batch))
        assert at.critical[0].then_ns == pytest.approx(law(batch), rel=0.05)
        assert at.low_ns <= at.then_ns <= at.high_ns
    assert at_batch(ran, to(4000)).low_ns > at_batch(ran, to(256)).low_ns * 0.99  # more is never quicker


@pytest.mark.slow
def test_an_h100_at_batches_that_were_not_recorded_takes_what_the_law_says_within_5_percent():
    """The truth are medians between CUDA events without a profiler, of other prompts; 1, 4, 16 and 64 were recorded."""
    assert gpu(H100)["within_share"] < 0.03
    errors = {}
    for requests, kv, ns in pl.read_csv(REPORTS / "serving" / "h100_unprofiled.csv").iter_rows():
        found = at_batch(H100, to(requests), to(round(kv / requests)))
        then = sum(one.then_ns for one in found.critical if one.cause != "host")
        errors.setdefault(requests, []).append(then / ns - 1)
    assert {*STEPS["requests"]} == {1, 4, 16, 64}
    assert len(errors) == 14
    every = [abs(one) for each in errors.values() for one in each]
    assert sum(one <= 0.05 for one in every) >= 0.95 * len(every)
    assert all(abs(sum(each) / len(each)) <= 0.05 for each in errors.values())


def test_a_batch_that_is_told_to_be_is_held_against_and_not_the_mean():
    now, then, both = at_batch(H100, to(4)), at_batch(H100, to(16)), at_batch(H100, Size(4, 16))
    assert both.changes == ("--batch 4=16",)
    assert (both.now_ns, both.then_ns) == (now.then_ns, then.then_ns)
    assert "Now, with 4: " in both.remark
    longer = at_batch(H100, to(16), Size(400, 800), measured_ns=900_000)
    assert longer.now_ns - longer.then_ns < now.now_ns - now.then_ns


@pytest.mark.slow
def test_another_batch_is_padded_to_a_graph_that_was_captured_and_says_what_it_does_not_know():
    found = at_batch(H100, to(24), to(400), measured_ns=700_000)
    assert found.now_ns == pytest.approx(700_000, abs=2)
    assert found.then_ns == sum(one.then_ns for one in found.critical)
    assert found.then_ns - found.low_ns == pytest.approx(0.03 * found.then_ns, rel=0.01)  # the law is nearer than that
    assert found.high_ns - found.then_ns == pytest.approx(found.then_ns - found.low_ns, abs=2)
    rough = [(n, size_of(n), kv, (400_000 + 900 * n) * (9 + 2 * (at % 2)) // 10) for at, (n, kv) in enumerate(BATCHES)]
    wide = at_batch(engine_of(rough), to(16))
    assert wide.then_ns - wide.low_ns > 0.07 * sum(one.then_ns for one in wide.critical if one.cause != "host")
    assert "24 requests with 400 tokens in the cache of each, in a graph of 32: " in found.remark
    assert "Recorded were 1 to 64." in at_batch(H100, to(100)).remark
    widths = [
        (one.high_ns - one.low_ns) / one.then_ns for one in (at_batch(H100, to(batch)) for batch in (64, 128, 100_000))
    ]
    assert widths == sorted(widths)
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.3)
    assert at_batch(H100, to(100_000)).low_ns == pytest.approx(at_batch(H100, to(64)).low_ns, rel=0.01)
    blind = engine_of([(n, size_of(n), 0, 400_000 + 1000 * n) for n in (1, 2, 4, 8, 16) * 2])
    assert "What tokens in the cache take is not known" in at_batch(blind, to(3)).remark
    with pytest.raises(CannotTellError, match="it has 3 decode steps alone"):
        at_batch(engine_of([(1, 1, 100, 5000)] * 3), to(2))
    with pytest.raises(CannotTellError) as refused:
        kanalyze.whatif(H100, batch=12, gpu="H200")
    assert "The law of steps tells --batch alone" in refused.value.remedy


def test_a_batch_beyond_the_largest_graph_runs_without_one_where_such_steps_were_recorded():
    rows = [(n, size_of(n), 0, 300_000 + 5_000 * size_of(n)) for n in (8, 16, 32) * 6]
    eager = [(n, 0, 0, 900_000 + 5_000 * n) for n in (40, 48, 56) * 3]
    both = engine_of(rows + eager, told=lambda n, *_: f"decode[bs={n}]")
    found = {batch: at_batch(both, to(batch)) for batch in (20, 45)}
    for batch, ns in {20: 460_000, 45: 1_125_000}.items():
        assert found[batch].critical[0].then_ns == pytest.approx(ns, rel=0.01)
    assert "45 requests, without a graph (none is larger than 32): " in found[45].remark
    mean = pl.Series(one[3] for one in rows + eager).mean()
    assert found[20].critical[0].now_ns == found[45].critical[0].now_ns == pytest.approx(mean, rel=0.03)
    # of graphs for a part of each step
    parts = engine_of(rows + eager, told=lambda n, *_: f"decode[bs={n}]", beside_ns=50_000)
    assert at_batch(parts, to(16)).critical[0].then_ns == pytest.approx(430_000, rel=0.02)
    assert "No graph is larger than 64, and steps without one have no law" in at_batch(H100, to(100)).remark


def test_a_law_in_words_and_as_points():
    assert in_words(laws(H100)) == (
        "A decode step by graph takes the GPU 413.3 µs and 1.326 µs for each place of its graph and 13.05 µs for 1,000 "
        "tokens in the cache; nine of ten of 232 are within 1.5 %."
    )
    points = law_points(H100)
    assert points.height == STEPS.height
    assert points["ns"].to_list() == STEPS["gpu_ns"].to_list()
    assert law_points(engine_of([(1, 1, 100, 5000)] * 3)).columns == points.columns


def test_steps_far_above_their_law_are_a_finding_and_others_are_none():
    rows = [(n, size_of(n), kv, 400_000 + 900 * size_of(n) + 13 * kv) for n, kv in BATCHES]
    assert slow_engine_steps(engine_of(rows)) == []
    rows[5] = (*rows[5][:3], 9_000_000)
    (one,) = slow_engine_steps(engine_of(rows))
    assert one.rule == "slow-steps"
    assert one.at_stake_ns == pytest.approx(9_000_000 - 400_000 - 900 * 16 - 13 * 9000, rel=1e-3)
    assert one.text.startswith("1 decode step took 8.4")
    assert "most in step 6, decode[bs=9/16" in one.text
    assert "in the cache" not in one.text
    longer = [(8, 8, 0, 900_000 if at == 20 else 400_000 + at) for at in range(24)]
    (one,) = slow_engine_steps(engine_of(longer, told="execute_context_0(0)_generation_{0}({0})".format))
    assert one.text.endswith("Tokens in the cache, of which no label tells, may be why.")


def test_steps_without_labels_are_told_by_their_number(monkeypatch):
    """As of an engine that is known by what runs."""
    rows = [(n, size_of(n), kv, 9_000_000 if n == 9 else 400_000 + 900 * size_of(n) + 13 * kv) for n, kv in BATCHES]
    steps = steps_by_law(engine_of(rows)).with_columns(label=pl.lit(None, dtype=pl.String))
    monkeypatch.setattr(rules.laws, "steps_by_law", lambda _: steps)
    (one,) = slow_engine_steps(engine_of(rows))
    assert "most in step 5: 9.000 ms, by law" in one.text


def test_of_drafts_that_are_verified_the_law_tells_requests():
    events, at = [], 0
    for number, requests in enumerate([1, 2, 3, 5, 8] * 4):
        ran = kernel(at + 20_000, at + 320_000 + 50_000 * requests, correlation=number)
        events += [nvtx(f"step[TARGET_VERIFY bs={requests}]", at, at + 10_000), *launched(at + 5_000, at + 6_000, ran)]
        at += 1_000_000
    row = gpu(report(events))
    assert (row["tokens_are"], row["per_token_ns"]) == ("requests", pytest.approx(50_000))
    assert in_words(laws(report(events))).startswith(
        "A decode step takes the GPU 300.0 µs and 50.00 µs for each request;"
    )


@given(st.data())
def test_times_that_go_with_nothing_have_a_law_that_is_never_below_none(data):
    count = data.draw(st.integers(8, 20))
    draw = partial(st.lists, min_size=count, max_size=count)
    n, kv = data.draw(draw(st.integers(0, 3) | st.integers(0, 2**40))), data.draw(draw(st.integers(0, 2**40)))
    steps = pl.DataFrame({"ns": data.draw(draw(st.integers(1, 10**9))), "n": n, "kv": kv})
    for tokens in ("tokens", "padded"):
        law, told = fitted(steps.with_columns(tokens_are=pl.lit(tokens)))
        assert min(value or 0 for value in law.values()) >= 0
        assert (told >= 0).all()


def test_of_huge_differences_of_tokens_and_times_nothing_is_told():
    tokens = [288018209702, 75826567867, 753913562892, 774747298285, 215784597446, 5, 7, 9]
    times = [955306369, 802568623, 360198316, 453689027, 856800826, 9, 10**9, 7]
    steps = pl.DataFrame({"ns": times, "n": [5] * 8, "kv": tokens, "tokens_are": ["tokens"] * 8})
    assert fitted(steps)[0]["per_token_ns"] is None
