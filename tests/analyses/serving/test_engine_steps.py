"""Steps of serving engines: the grammar of their labels, steps and gaps on the GPU, sums that close with the ledger."""

import json

import polars as pl
import pytest
from hypothesis import given, strategies as st

import kanalyze
from kanalyze.analyses.host.engine_marks import engine_marks
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.serving.engine_steps import engine_steps, sized
from kanalyze.analyses.serving.served import served
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.errors import UnknownNameError
from support.build import graph, kernel, launched, nvtx, report, timeline
from support.command import REPORTS, html_of, printed, run
from support.strategies import FEWER

pytestmark = pytest.mark.slow

#: Labels, each after engine, kind, requests, tokens, padded, tokens of KV, and requests and tokens of prompts.
TOLD = """
SGLang decode 64 64 - - 0 0: step[DECODE bs=64]
SGLang prefill 15 15360 - - 15 15360: step[EXTEND bs=15 toks=15360]
SGLang mixed 2 - - - - -: step[MIXED bs=2]
SGLang mixed 2 6 - 20 1 5: step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]
SGLang mixed 1 3 - 3 1 3: step[MIXED bs=1 c=1 g=0 c_sq=3 c_sk=3 c_sqsq=9 c_sqsk=9 g_sq=0 g_sk=0 g_sqsq=0 g_sqsk=0]
SGLang decode 64 128 - 131072 0 0: step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]
SGLang decode 4 - - - 0 0: step[TARGET_VERIFY bs=4]
SGLang decode - - - - 0 0: step[DECODE bs=99999999999999999999999]
vLLM prefill - - - - 1 -: execute_context_1(9223372036854775807)_generation_9223372036854775807(1)
SGLang draft 3 - - - - -: step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]
SGLang idle 0 - - - - -: step[IDLE bs=0]
vLLM mixed 5 6147 - - 2 6144: execute_context_2(6144)_generation_3(3)
vLLM decode 64 64 - - 0 0: execute_context_0(0)_generation_64(64)
vLLM prefill 1 888 - - 1 888: execute_context_1(888_788544)_generation_0(0)
vLLM idle 0 0 - - 0 0: execute_context_0(0)_generation_0(0)
TensorRT-LLM decode 32 32 - - 0 0: [Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs
TensorRT-LLM mixed 5 703 - - 2 700: [Executor] _forward_step 7: 2 ctx reqs, 3 gen reqs, 700 ctx tokens
TensorRT-LLM prefill 1 - - - 1 -: [Executor] _forward_step: 1 ctx reqs, 0 gen reqs
ATOM decode 117 117 128 - 0 0: decode[bs=117/128 tok=117 d=117]
ATOM decode 32 128 32 65536 0 0: decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]
ATOM mixed 128 384 128 - 2 258: decode[bs=128 tok=384 p=2 d=126]
ATOM prefill 2 14721 - - 2 14721: prefill[bs=2 tok=14721 ctx=[7803, 6918]]
ATOM decode 3 3 - - 0 0: eager_decode[bs=3 tok=3 ctx=[5, 6, 7]]
vLLM other - - - - - -: v2_gpu_model_runner: forward
xDiT diffusion 1 - - - - -: execute_diffusion_1_256x256
"""


def told(line):
    """A label, and what it tells, of which - is nothing."""
    said, _, label = line.partition(": ")
    engine, kind, *numbers = said.split()
    return label, (engine, kind, *(None if number == "-" else int(number) for number in numbers))


LABELS = dict(map(told, TOLD.strip().splitlines())) | {
    "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)": (
        *("vLLM", "mixed", 46, 8192, None, 42919, 9, 8155),
    )
}
FIELDS = ("engine", "kind", "requests", "tokens", "padded", "kv_tokens", "context_requests", "context_tokens")


def labelled(*labels, patterns=()):
    events = []
    for number, label in enumerate(labels):
        at = 100 * number
        events += [nvtx(label, at, at + 50), *launched(at, at + 5, kernel(at + 10, at + 60, correlation=number))]
    return report(events).narrow(steps=patterns)


def test_labels_say_engine_kind_and_batch():
    marks = engine_marks(labelled(*LABELS))
    assert dict(zip(marks["label"], marks.select(FIELDS).rows(), strict=True)) == LABELS


def test_forward_passes_in_a_range_of_the_draft_model_are_its():
    ranges = timeline("""
        0-100 [draft]; 10-50 [step[DECODE bs=2]]; 60-90 [step[DECODE bs=2]]; 110-150 [step[TARGET_VERIFY bs=2]]
        160-200 [draft_extend]; 170-190 [step[EXTEND bs=2 toks=6]]
    """)
    marks = engine_marks(report(ranges))
    assert marks["kind"].to_list() == ["draft", "draft", "decode", "draft"]


@pytest.mark.parametrize("label", ["step", "step[4]", "decode", "prefill[0]", "execute_context_", "decode[bs=x]"])
def test_other_ranges_are_no_steps(label):
    assert engine_steps(labelled(label)).is_empty()
    assert engine_steps(labelled(label), by="kind").is_empty()


def test_of_steps_that_a_window_cuts_no_time_is_told_and_of_a_window_between_them_what_is_outside():
    names = "kind count tokens ns per_step_ns per_token_ns"
    of = labelled("step[DECODE bs=4]", "step[DECODE bs=2]", "step[DECODE bs=8]")  # on the GPU 10 to 60, 110 to 160, …
    sums = engine_steps(of, by="kind", window="30ns..165ns").select(names.split())
    assert sums.rows()[0] == ("decode", 2, 6, 130, 100, 50)
    sums = engine_steps(of, by="kind", window="30ns..40ns").select(names.split())
    assert sums.rows() == [("decode", 1, 4, 10, None, None)]
    assert served(of.narrow(window="30ns..40ns")).sentence == "1 step of SGLang: 1 decode."
    assert engine_steps(of, window="70ns..90ns").is_empty()
    for by in ("kind", "batch"):
        sums = engine_steps(of, by=by, window="70ns..90ns")
        assert sums.select("kind", "count", "ns", "share", "queued_ns", "host_ns").rows() == [
            ("outside", 0, 20, 1, 0, 20)
        ]


def test_a_step_on_two_gpus_is_one_step_of_the_page():
    events = [nvtx("step[DECODE bs=4]", 0, 50), nvtx("step[DECODE bs=2]", 100, 150)]
    for at, number in ((5, 1), (105, 3)):
        events += launched(at, at + 1, kernel(at + 5, at + 65, correlation=number, device=0))
        events += launched(at + 2, at + 3, kernel(at + 10, at + 75, correlation=number + 1, device=1))
    assert served(report(events)).sentence.startswith(
        "2 steps of SGLang: GPU 0 2 decode (80 ns, 26.7 ns a token); GPU 1 2 decode (82.5 ns, 27.5 ns"
    )


def test_a_pattern_of_the_users_own():
    of = labelled(
        "my decode bs=7 (kv 90)",
        "run mixed with 12",
        "my decode bs=8",
        patterns=["my decode bs={batch} (kv {kv})", "run {kind} with {tokens}"],
    )
    shown = engine_marks(of).select(FIELDS[:6]).rows()
    assert shown == [("the program", "decode", 7, 7, None, 90), ("the program", "mixed", None, 12, None, None)]
    inner = report([nvtx("step[DECODE bs=2]", 0, 100), nvtx("forward", 10, 90)]).narrow(steps=["forward"])
    assert engine_marks(inner).select("start", "kind", "requests").rows() == [(0, "decode", 2)]
    with pytest.raises(UnknownNameError, match=r"no range 'his \{batch\}'"):
        engine_marks(labelled("step", patterns=["his {batch}"]))
    with pytest.raises(UnknownNameError, match="no field of --steps 'size'"):
        engine_marks(labelled("step", patterns=["step {size}"]))


def test_of_labels_inside_each_other_the_outermost_is_the_step():
    """As SGLang's in the traces of TraceLens: one label says the mode, the other one how much it reads."""
    inner = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk32785sqsq2sqsk32785)"
    for labels in (("step[DECODE bs=2]", inner), (inner, "step[DECODE bs=2]")):
        marks = engine_marks(report([nvtx(labels[0], 0, 100), nvtx(labels[1], 10, 90), nvtx(labels[1], 120, 130)]))
        both, alone = marks.select("start", "end", "label", *FIELDS[:6]).rows()
        assert both == (0, 100, "step[DECODE bs=2]", "SGLang", "decode", 2, 2, None, 32785)
        assert alone[:2] == (120, 130)


def test_steps_on_the_gpu_and_the_gaps_between_them():
    events = [
        nvtx("step[EXTEND bs=1 toks=9]", 0, 20),
        *launched(5, 8, kernel(10, 50, correlation=1)),
        nvtx("sampler", 25, 30),
        *launched(26, 28, kernel(55, 60, name="argmax", correlation=2)),
        nvtx("step[DECODE bs=1]", 40, 90),
        *launched(80, 85, graph(100, 150, correlation=3), name="cudaGraphLaunch"),
        nvtx("step[IDLE bs=0]", 92, 95),
        nvtx("step[DECODE bs=2]", 100, 120),
        *launched(101, 102, graph(140, 190, correlation=4), name="cudaGraphLaunch"),
        *launched(103, 104, kernel(190, 200, correlation=5)),
    ]
    steps = engine_steps(report(events))
    names = "index kind mode start_ns host_ns gpu_start_ns dur_ns busy_ns gap_ns gap_busy_ns gap_cause gap_culprit"
    assert steps.select(names.split()).rows() == [
        (1, "prefill", "eager", 0, 20, 10, 40, 40, None, None, None, None),
        (2, "decode", "graph", 40, 50, 100, 50, 50, 50, 5, "host", "decode step"),
        (4, "decode", "graph", 100, 20, 150, 50, 50, 0, 0, None, None),
        (3, "idle", None, 92, 3, None, 0, 0, None, None, None, None),
    ]
    assert steps["tokens_per_s"].to_list() == [9 / 40e-9, 1 / 100e-9, 2 / 50e-9, None]
    sums = engine_steps(report(events), by="kind")
    names = "kind count mean_requests tokens ns dur_ns gap_ns gap_busy_ns replayed per_step_ns"
    assert sums.select(names.split()).rows() == [
        ("prefill", 1, 1, 9, 40, 40, 0, 0, 0, 40),
        ("decode", 2, 1.5, 3, 150, 100, 50, 5, 2, 75),
        ("outside", 0, None, None, 5, 0, 0, 0, 0, None),
    ]
    later = engine_steps(report(events), by="batch", window="60ns..160ns")
    expected = [("decode", 0, 1, 1, 90, 50), ("decode", 1, 2, 1, 10, 10)]
    assert later.select("kind", "size_above", "size", "count", "ns", "kernel_ns").rows() == expected
    assert engine_steps(report(events), window="60ns..140ns")["index"].to_list() == [2, 3]
    assert engine_steps(report(events), device=0)["index"].to_list() == [1, 2, 4]


@pytest.mark.parametrize(
    ("steps", "captured", "padded"),
    [
        # requests (0 of a prompt of 9 tokens), the graph, and blocks of a norm: as many as a prompt has tokens
        ([(0, None, 9), (5, 1, 8), (7, 1, 8), (9, 2, 12)], (), [None, 8, 8, 12]),
        ([(0, None, 36), (5, 1, 32)], (), [None, None]),  # of heads
        ([(0, None, 9), (5, 1, 4)], (), [None, None]),  # a part of the rows, as of several GPUs
        ([(5, 1, 8)], (), [None]),
        ([(5, 1, 0), (7, 1, 0), (9, 2, 0)], (4, 8, 16), [8, 8, 16]),
        ([(5, 1, 0), (7, 1, 0), (9, 1, 0)], (4, 8, 16), [None, None, None]),
        ([(5, 1, 0), (7, 2, 0), (17, 3, 0)], (4, 8, 16), [None, None, None]),
    ],
)
def test_padding_by_norms_and_captured_sizes(steps, captured, padded):
    events = [nvtx(f"capture_{size}_decode", number, number + 1) for number, size in enumerate(captured)]
    for number, (requests, exec_id, rows) in enumerate(steps):
        at, name = 100 * (number + 1), "cudaGraphLaunch" if exec_id else "cudaLaunchKernel"
        side = {"graph_exec_id": exec_id, "grid_x": rows}
        ran = kernel(at + 10, at + 60, name="void vllm::rms_norm_kernel<float>", correlation=at, side=side)
        label = f"step[DECODE bs={requests}]" if requests else "step[EXTEND bs=1 toks=9]"
        events += [nvtx(label, at, at + 50), *launched(at, at + 5, ran, name=name)]
    assert engine_steps(report(events))["padded"].to_list() == padded


LABEL = st.sampled_from(("step[DECODE bs=2]", "step[EXTEND bs=1 toks=5]", "work"))
RUN = st.tuples(LABEL, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 12), st.integers(0, 1))


def made(runs):
    """Events of ranges one after the other, in each a launch of a kernel that begins later, of these lengths."""
    events, at = [], 0
    for number, (label, pause, before, latency, length, device) in enumerate(runs):
        at += pause
        run = kernel(at + before + latency + 1, at + before + latency + 1 + length, correlation=number, device=device)
        events += [nvtx(label, at, at + before + 2), *launched(at + before, at + before + 1, run)]
        at += before + 2
    return events


def slow(events):
    """Steps of each device by instants: for each index its instants, and those of the gap before it."""
    ranges = [event for event in events if event.kind == "range"]
    launches = {event.correlation: event.start for event in events if event.kind == "api"}
    steps = [one for one in ranges if one.name != "work"]
    found = {}
    for device in (0, 1):
        spans = []
        for index, step in enumerate(steps, 1):
            ran = [of for of in events if of.kind == "kernel" and of.device == device]
            spans += [(of.start, of.end, index) for of in ran if step.start <= launches[of.correlation] < step.end]
        reached = None
        for start, end, index in sorted(spans, key=lambda one: (one[0], one[2])):
            begun = start if reached is None else max(start, reached)
            found[device, index] = (len(range(begun, end)), None if reached is None else begun - reached)
            reached = end if reached is None else max(reached, end)
    return found


@FEWER
@given(st.lists(RUN, min_size=1, max_size=8))
def test_steps_are_those_of_the_slow_model_and_close_with_the_ledger(runs):
    events = made(runs)
    of = report(events)
    steps = engine_steps(of)
    told = {(row["device"], row["index"]): (row["dur_ns"], row["gap_ns"]) for row in steps.to_dicts()}
    assert told == slow(events)
    for by in ("kind", "batch"):
        sums = engine_steps(of, by=by)
        if sums.is_empty():
            continue
        assert sums["count"].sum() == steps.height
        whole = ledger(of).group_by("device", "bucket").agg(pl.col("ns").sum())
        for device, rows in sums.partition_by("device", as_dict=True).items():
            buckets = dict(whole.filter(device=device[0]).select(pl.col("bucket").cast(pl.String), "ns").iter_rows())
            assert {name: rows[f"{name}_ns"].sum() for name in BUCKETS if rows[f"{name}_ns"].sum()} == buckets
            assert rows.select((pl.sum_horizontal(f"{name}_ns" for name in BUCKETS) == pl.col("ns")).all()).item()
            assert rows["dur_ns"].sum() == steps.filter(device=device[0])["dur_ns"].sum()
            assert rows["gap_ns"].sum() == steps.filter(device=device[0])["gap_ns"].sum()


def test_sizes_are_the_powers_of_two_that_hold_the_batch():
    frame = pl.DataFrame({"kind": "decode", "requests": [1, 2, 3, 4, 5, 64, 65, 0, None], "tokens": 1000})
    sizes = [(1, 0), (2, 1), (4, 2), (4, 2), (8, 4), (64, 32), (128, 64), (1, 0), (None, None)]
    assert sized(frame).select("size", "size_above").rows() == sizes
    assert sized(frame.with_columns(kind=pl.lit("mixed")))["size"].unique().to_list() == [1024]


NVTX = REPORTS / "nvtx.sqlite"


def test_labels_of_ones_own_on_every_command(tmp_path):
    known = json.loads(printed("show", "ranges", NVTX, "--format", "json"))
    number = next(row["count"] for row in known if row["range"] == ":step")
    rows = json.loads(printed("show", "engine_steps", NVTX, "--steps", "step", "--by", "kind", "--format", "json"))
    assert [(row["kind"], row["count"]) for row in rows] == [("other", number), ("outside", 0)]
    first = json.loads(printed("summarize", NVTX, "--steps", "step", "--format", "json"))
    assert first["iterations"]["name"] == "other step"
    assert first["engine_steps"][0]["count"] == number
    assert "steps of the program: " in html_of(tmp_path, NVTX, "--steps", "step")
    assert "ther step" in printed("compare", NVTX, NVTX, "--steps", "step")
    nothing = run("show", "compare_steps", NVTX, NVTX, "--steps", "step")
    assert "no kind and size of a serving engine's steps is in all runs" in nothing.said
    assert run("show", "engine_steps", NVTX, "--steps", "no such").status == 2


def test_a_part_with_labels_of_ones_own_is_one_of_the_same_report():
    report = kanalyze.read(NVTX).narrow(steps=["step"])
    part = report.narrow(window="other step#2")
    assert part.whole.scope.labels == ("step",)
    assert engine_steps(part)["index"].to_list() == [2]
    assert engine_steps(kanalyze.read(NVTX)).is_empty()
