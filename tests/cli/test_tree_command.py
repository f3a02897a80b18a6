"""`kanalyze tree` as a program runs it."""

from pathlib import Path

import pytest

from support.command import run

SAMPLES = Path(__file__).parents[2] / "sample_reports"
TRAINING = SAMPLES / "mlp_train" / "torch.json.gz"


def test_the_kernels_of_a_training_step_by_what_led_to_them():
    ran = run("tree", TRAINING)
    assert (ran.status, ran.error) == (0, "")
    assert ran.lines[0] == "CALL TREE"
    assert max(map(len, ran.lines)) <= 80
    called = [line[36:] for line in ran.lines]
    backward = next(place for place, line in enumerate(called) if line.endswith("autograd: AddmmBackward0"))
    assert [line.lstrip("│├└ ")[:15] for line in called[backward : backward + 4]] == [
        "autograd: Addmm",
        "AddmmBackward0",
        "aten::mm",
        "sm80_xmma_gemm…",
    ]


@pytest.mark.parametrize("share", ["1", "much", "-1%"])
def test_a_share_is_percent(share):
    ran = run("tree", TRAINING, f"--min-share={share}")
    assert ran.status == 2
    assert "is not a share, such as 1%" in ran.error
