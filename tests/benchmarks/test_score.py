"""The scorer of benchmarks/diagnosis: programs, texts and pages in small, held against what is true of them."""

import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "diagnosis"
sys.path.insert(0, str(FOLDER))

import score  # noqa: E402 - the scripts lie side by side and are no package
import truth  # noqa: E402 - as above

PYTHON = """CAUSE = "cpu-tensors"
ALSO = ("blocking-read",)


def attention(x):
    mask = torch.full(x.shape, 1.0)
    return mask.to(x.device)  # fault


def step(i):
    loss = attention(i)
    print(loss.item())  # also
"""

CUDA = """// CAUSE: host-grid-loop
// ALSO: allocation-in-loop, uncoalesced
__global__ void rows(float *x) {
    x[0] = 1;
}

int main() {
    for (;;) rows<<<1, 1>>>(x); // fault
}
"""

TIMES = {"fault": [10.0, 9.9, 10.1], "fixed": [4.0, 3.9, 4.1]}


def program(tmp_path, name="masks.py", text=PYTHON):
    (tmp_path / name).write_text(text)
    return truth.program(tmp_path / name)


def finding(rule, replayed=None, at_stake=0, **more):
    bounds = {"replayed_ns": replayed, "replayed_low_ns": replayed, "replayed_high_ns": replayed}
    return {"rule": rule, "at_stake_ns": at_stake, "headline": "", "action": "", "where": None} | bounds | more


def page(*findings, count=10, mean_ns=10_000_000):
    return {"iterations": {"steady_count": count, "mean_ns": mean_ns}, "findings": list(findings)}


def test_a_program_has_its_causes_its_lines_and_the_functions_around_them(tmp_path):
    one = program(tmp_path)
    assert (one.cause, one.also, one.lines) == ("cpu-tensors", ("blocking-read",), (7,))
    assert one.functions == (("attention", 5, 7),)
    other = program(tmp_path, "rows.cu", CUDA)
    assert (other.cause, other.also, other.lines) == ("host-grid-loop", ("allocation-in-loop", "uncoalesced"), (8,))
    assert other.functions == ()  # each program has a main


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("makes a mask at program.py:7", "line"),
        ("program.py(9): attention", "line"),
        ("program.py:2-5", "line"),
        ("program.py:2-4", ""),
        ("program.py:11", ""),
        ("step (program.py)", ""),
        ("attention (program.py)", "function"),
        ("program.py:1", ""),
        ("other.py:7", ""),
        ("attention takes 3 ms", ""),
    ],
)
def test_a_place_is_right_within_two_lines_or_in_the_same_function(tmp_path, text, right):
    assert program(tmp_path).place_right(text) == right


@pytest.mark.parametrize(
    ("name", "text", "blind"),
    [
        ("masks", "/a/x/masks.py:7, masks.py, masks", "program.py:7, program.py, masks"),
        ("cpu_masks", "cpu_masks runs /a/cpu_masks", "program runs program"),
        ("recompilation", '"rule": "recompilation"', '"rule": "recompilation"'),
        ("masks", "bitmasks.py, masks-2.py, masks_of", "bitmasks.py, masks-2.py, masks_of"),
    ],
)
def test_names_that_give_the_fault_away_are_hidden(tmp_path, name, text, blind):
    assert program(tmp_path, f"{name}.py").blind(text) == blind


def test_the_causes_of_a_text_come_in_its_order_with_their_gains():
    text = """  12  Anomaly detection is on
    saves 1,250.0 µs; program.py:3
    a CUDA graph for the rest
    There were no problems detected: pageable memory
    1  2  3  4  cudaMemcpy pageable
    """
    claims = score.text_claims(text, truth.causes())
    assert [claim.cause for claim in claims] == ["anomaly-detection", "graph-candidate"]
    assert claims[0].gain == (1.25,) * 3
    assert claims[1].gain is None
    assert "program.py:3" in claims[0].where


def test_every_cause_is_named_by_its_own_name_and_no_name_names_another():
    words = truth.causes()
    for name in words:
        found = [claim.cause for claim in score.text_claims(f"explain {name}", words)]
        assert found[:1] == [name], found


@pytest.mark.parametrize(("parts", "step_ms", "gain"), [(1, 10.0, 6.0), (8, 80.0, 48.0), (0.5, 5.0, 3.0)])
def test_gains_are_of_a_step_of_which_an_iteration_may_be_a_part(parts, step_ms, gain):
    told = page(finding("cpu-tensors", replayed=60_000_000))
    claims = score.in_steps(told, score.page_claims(told), step_ms)
    assert claims[0].gain == pytest.approx((gain,) * 3), parts


def test_a_score_has_rank_place_and_ratio(tmp_path):
    told = page(
        finding("graph-candidate", replayed=70_000_000),
        finding("graph-candidate", replayed=1),
        finding("cpu-tensors", replayed=54_000_000, where="program.py:6"),
        finding("blocking-read", at_stake=1_000_000),
    )
    got = score.scored(program(tmp_path), score.in_steps(told, score.page_claims(told), 10.0), TIMES)
    assert (got.first, got.rank, got.also_rank, got.place) == ("graph-candidate", 2, 3, "line")
    assert (got.measured_ms, got.ratio) == (6.0, pytest.approx(0.9))
    sums = score.totals([got])
    assert (sums["first"], sums["among_three"], sums["gain"], sums["interval"]) == ((0, 1), (1, 1), (1, 1), (0, 1))
    assert "| masks | cpu-tensors | graph-candidate | 2 | line | 5.4 (5.4 to 5.4) | 6 | 0.90 |" in score.table([got])


def test_of_two_faults_the_gain_is_that_of_mending_the_main_one(tmp_path):
    got = score.scored(program(tmp_path), [], TIMES | {"main": [5.0, 4.9, 5.1]})
    assert (got.measured_ms, got.rank, got.ratio) == (5.0, None, None)


def test_a_healthy_program_has_its_largest_claim_as_a_share_of_a_step(tmp_path):
    one = program(tmp_path, text='CAUSE = ""\nALSO = ()\n')
    told = page(finding("tail", at_stake=3_000_000), finding("fusion", replayed=1_000_000))
    got = score.scored(one, score.page_claims(told), TIMES)
    assert (one.cause, got.largest_claim) == ("", pytest.approx(0.03))
    sums = score.totals([got])
    assert (sums["healthy"], sums["silent"], sums["first"]) == (pytest.approx(0.03), (0, 1), (0, 0))
    assert "| largest claim on a healthy program | < 2 % | 3.0 % |" in score.summary({"kanalyze": sums})


def test_each_cause_has_a_sentence():
    for sentence, _ in truth.causes().values():
        assert re.fullmatch(r"[A-Za-z][^\n]{10,100}\.", sentence)
