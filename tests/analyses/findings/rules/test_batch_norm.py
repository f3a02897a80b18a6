"""The finding about biases of convolutions before a batch normalization."""

from pathlib import Path

import pytest

from kanalyze.analyses.findings.rules.needless_kernels import bias_before_batchnorm
from support.build import call, host, kernel, report
from support.real_reports import real_report

ROOT = Path(__file__).parents[4]

BIASED = '["float", "float", "float", "ScalarList"]'
PLAIN = '["float", "float", "", "ScalarList"]'


def network(*after, types=BIASED, backward=True):
    """A convolution whose bias takes 10 ns forward and 20 backward, and the operators `after` it."""
    events = [
        host("op", "aten::conv2d", 0, 100),
        host("op", "aten::add_", 50, 90),
        call("cudaLaunchKernel", 20, 22, correlation=1, parent=0),
        kernel(100, 200, name="conv", correlation=1, parent=0),
        call("cudaLaunchKernel", 60, 62, correlation=2, parent=1),
        kernel(200, 210, name="add", correlation=2, parent=1),
        *(host("op", name, 100 + 10 * at, 110 + 10 * at) for at, name in enumerate(after)),
    ]
    detail = [{"event_id": 0, "input_types": types, "sequence_number": 7}]
    if backward:
        events.append(host("op", "ConvolutionBackward0", 500, 600, thread=2))
        detail.append({"event_id": len(events) - 1, "sequence_number": 7, "forward_thread_id": 1, "forward_id": 0})
        events.append(host("op", "aten::sum", 510, 590, thread=2))
        summed = len(events) - 1
        events.append(call("cudaLaunchKernel", 520, 530, correlation=3, thread=2, parent=summed))
        events.append(kernel(700, 720, name="sum", correlation=3, parent=summed))
    return report(events, op_detail=detail)


@pytest.mark.parametrize("after", [["aten::batch_norm"], ["aten::add_", "aten::batch_norm", "aten::relu"]])
def test_kernels_that_add_the_bias_and_sum_its_gradient_are_at_stake(after):
    (found,) = bias_before_batchnorm(network(*after))
    assert (found.at_stake_ns, found.at_most) == (10 + 20, False)
    assert found.text.startswith("2 kernels add biases of convolutions, or sum their gradients")
    assert found.headline == "Biases before BatchNorm are 23.1 % of kernel time"
    assert bias_before_batchnorm(network(*after, backward=False))[0].at_stake_ns == 10


@pytest.mark.parametrize(
    ("after", "types"),
    [
        (["aten::batch_norm"], PLAIN),
        (["aten::batch_norm"], "["),
        (["aten::batch_norm"], "{}"),
        (["aten::relu", "aten::batch_norm"], BIASED),
        (["aten::relu"], BIASED),
        ([], BIASED),
    ],
)
def test_no_bias_or_no_normalization_right_after_is_right(after, types):
    assert bias_before_batchnorm(network(*after, types=types)) == []


def test_a_real_network_with_biases():
    """As op_kernels has them, of the three of its six convolutions that a normalization follows."""
    (found,) = bias_before_batchnorm(real_report(ROOT / "tests" / "reports" / "torch" / "memory.json.gz"))
    assert "6 kernels add biases of convolutions" in found.text


@pytest.mark.parametrize("name", ["mlp_train/torch.json.gz", "mlp_train/nsys.sqlite"])
def test_real_programs_without_convolutions(name):
    assert bias_before_batchnorm(real_report(ROOT / "sample_reports" / name)) == []
