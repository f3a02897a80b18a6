"""Findings about optimizers that run kernel by kernel, and about gradients filled with zeros."""

from dataclasses import replace

import pytest

from kanalyze.analyses.findings.rules.unfused import optimizer_groups, unfused_optimizer, zero_grad_fills
from kanalyze.window import Window
from support.build import again, call, host, kernel, memset, nvtx, report
from support.kernel_names import ADD, FILL, GEMM, ONE
from support.measures import assert_told

LIST = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::X, {}>(int)"
)
MUL = LIST.format("at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>")
LERP = LIST.format("at::native::(anonymous namespace)::TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor")
DIVIDE = LIST.format("at::native::(anonymous namespace)::PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides<f>")
NORM = LIST.format("at::native::LpNormFunctor<float, (at::native::NormType)2, float, 1, 1, 0>, float*, int")
ZERO = LIST.format("at::native::ZeroFunctor<float, 1, 1, 0>")
FUSED = LIST.format("at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1>")
ADDCDIV = ONE.format("addcdiv_cuda_kernel(at::TensorIteratorBase&, c10::Scalar const&)::{lambda(float, float)#1}")
ADDCMUL = ONE.format("addcmul_cuda_kernel(at::TensorIteratorBase&, c10::Scalar const&)::{lambda(float, float)#1}")
AVERAGE = ONE.format("lerp_scalar_kernel(at::TensorIteratorBase&)::{lambda(float, float)#1}")
SINGLY = [ADDCMUL, ADD, ADDCDIV] * 4


def launched(*names, at=0, host=10, run=100, thread=1):
    """Launches one after the other, `host` ns each, and their kernels, which begin when the first call returns."""
    events = []
    for number, name in enumerate(names):
        call_at, start = at + host * number, at + 8 + run * number
        events.append(call("cudaLaunchKernel", call_at, call_at + 8, correlation=at + number, thread=thread))
        events.append(kernel(start, start + run, name=name, correlation=at + number))
    return events


def step(name, *events, at=0):
    """Events in a range of torch's optimizers from `at` on."""
    method = "zero_grad" if name == "zero_grad" else "step"
    return [nvtx(f"Optimizer.{method}#{'SGD' if name == 'zero_grad' else name}.{method}", at, at + 50), *events]


def filled(sizes, times):
    """Fills of tensors in a row, again and again, between other kernels."""
    row = [kernel(10 * n, 10 * n + 5, name=FILL, grid=(size, 1, 1)) for n, size in enumerate(sizes, 1)]
    rows = again(range(0, 1000 * times, 1000), *row, kernel(900, 950, name=GEMM))
    return report([kernel(0, 10, name=GEMM), *rows])


STEPS = again((0, 1000), *step("AdamW", *launched(MUL, LERP, DIVIDE)))
SGD = again((0, 300), *step("SGD", *launched(MUL, LERP)))
ON_LISTS = (
    "AdamW works on lists of tensors (foreach), operation by operation: 3 kernels in each of 1 step, 300 ns; the host",
    *("AdamW runs 3 kernels a step", "AdamW(…, fused=True)", "[Optimizer.step#AdamW.step]"),
)
ZEROS = step("zero_grad", *launched(FILL, ADD, FILL), *launched(GEMM, at=1000))
LAST_STEP = report(STEPS).narrow(window=Window(1000, 1308, count=1, each="step"))


@pytest.mark.parametrize(
    ("rule", "of", "stakes", "words"),
    [
        # all kernels but the shortest, and 8 in which the GPU idles while the host is in it, from 0 to 50
        (unfused_optimizer, report(step("AdamW", *launched(MUL, LERP, DIVIDE))), [200 + 8], ON_LISTS),
        # of each step no more than the host is in it, and the GPU idles until the next: 50 of 100, and 8 until the end
        (unfused_optimizer, report(SGD), [2 * 100 + 50 + 8], ()),
        (unfused_optimizer, report(step("RMSprop", *launched(ADDCMUL, ADDCDIV))), [108], ("RMSprop(…, foreach=True)",)),
        (
            unfused_optimizer,
            report(step("SignMomentum", *launched(ADDCMUL, ADDCDIV))),
            [108],
            ("torch._foreach_ functions in its step",),
        ),  # its own class
        (unfused_optimizer, report(step("LBFGS", *launched(ADDCMUL, ADDCDIV))), [], ()),
        (unfused_optimizer, LAST_STEP, [200 + 8], ("3 kernels in each of 1 step, 300 ns a step",)),
        *(
            (unfused_optimizer, report(launched(GEMM, *names, GEMM)), [], ())
            for names in (  # fused ones, clipping and other elementwise work, and few updates
                *([FUSED], [FUSED, MUL, LERP, DIVIDE], [NORM, MUL], [MUL, LERP], [ADD, ADD], [ADDCDIV], SINGLY[:9]),
            )
        ),
        *(
            (unfused_optimizer, report(step("AdamW", *launched(*names), *launched(GEMM, at=1000))), [], ())
            for names in ([FUSED], [FUSED, MUL], [MUL], [MUL, MUL], ["triton_for_fused_0"], [])
        ),
        (unfused_optimizer, report(step("AdamW", *launched(MUL, LERP, DIVIDE, thread=2))), [], ()),  # another thread's
        (unfused_optimizer, report(step("RMSprop", *launched(MUL, DIVIDE))), [], ()),  # lists are all that it can have
        (zero_grad_fills, report(ZEROS), [200 + 50], ("zero_grad fills memory: 2 fills a step",)),
        (zero_grad_fills, report(step("zero_grad", *launched(ADD), *launched(FILL, at=1000))), [], ()),
        (zero_grad_fills, report(launched(ZERO, GEMM)), [108], ()),
        (zero_grad_fills, report([memset(0, 10), *launched(FILL, GEMM)]), [], ()),
        # many fills of tensors of several sizes in a row, again and again
        *((zero_grad_fills, filled(sizes, 2), [160], ()) for sizes in (range(1, 17), [8, 1] * 8)),
        *((zero_grad_fills, filled(*how), [], ()) for how in (([1] * 16, 2), (range(1, 17), 1))),
    ],
)
def test_optimizers_that_run_kernel_by_kernel(rule, of, stakes, words):
    assert_told(rule(of), stakes, *words)


@pytest.mark.parametrize(
    ("names", "many"),
    [
        ([ADD, MUL, LERP, DIVIDE], 3),
        ([ADD, *SINGLY, ADD], 12),
        # what works tensor by tensor beside lists is no part, such as the mean of the weights that a program keeps
        ([AVERAGE, MUL, LERP, DIVIDE, *[AVERAGE] * 9], 3),
        ([*[ADDCMUL, ADDCDIV] * 4, *[AVERAGE] * 9], 8),  # a step ends with its last update
        # each way to work is an optimizer's, or none
        ([*SINGLY, MUL, MUL], 12),
        ([MUL, MUL, *SINGLY], 12),
        ([*SINGLY, MUL, LERP, DIVIDE], 15),
        ([MUL, LERP, DIVIDE, *SINGLY], 15),
        ([MUL, DIVIDE, MUL, DIVIDE, MUL], 5),
        ([MUL, LERP, DIVIDE, ADDCDIV, AVERAGE], 3),
    ],
)
def test_without_ranges_updates_tell_a_step(names, many):
    """The host was in it from the end of the launch before it."""
    (found,) = unfused_optimizer(report(launched(GEMM, *names, GEMM)))
    way = "on lists of tensors (foreach)" if DIVIDE in names else "tensor by tensor"
    assert found.text.startswith(f"An optimizer of Adam's kind works {way}, operation by operation: {many} kernels")
    assert f"the host was in it for {10 * many} ns" in found.text
    assert f"{found.headline} {found.action}" == f"The optimizer runs {many} kernels a step fused=True in Adam or AdamW"


def test_an_optimizer_of_ones_own_is_known_by_the_trace_beside():
    """Lion, tensor by tensor, whose steps the trace alone has as ranges; on lists its kernels take as long."""
    ms, names = 1_000_000, [*"abcdefgh", *[AVERAGE, ADD] * 4]

    def steps(number, *, named):
        for at in range(number):
            begin = 20 * at * ms
            for place, name in enumerate(names):
                start, launch_id = begin + place * ms, len(names) * at + place
                yield call("cudaLaunchKernel", start, start + ms // 10, correlation=launch_id)
                yield kernel(start + ms // 10, start + ms // 5, correlation=launch_id, name=name)
                if named:
                    yield host("op", "aten::mul", start - ms // 10, start + ms // 8)
            if named:
                yield nvtx("Optimizer.step#Lion.step", begin + 7 * ms + ms // 2, begin + 16 * ms)

    trace = report(list(steps(6, named=True)), kinds=("op", "range"))
    made = replace(report(list(steps(6, named=False))), beside=lambda: trace)
    (found,) = unfused_optimizer(made)
    assert "Lion works tensor by tensor, operation by operation: 8 kernels in each of 6 steps" in found.text
    change = found.change(made)
    assert change.gone.len() == 6 * (8 - 2)  # one launch of each operator stays
    assert change.shorter.get_column("saved_ns").sum() == -6 * (8 - 2) * ms // 10


def test_what_adds_gradients_to_the_zeros_counts_in_the_first_backward_pass():
    """The second pass of a step adds to gradients, as it is meant to."""

    def launch(operator, name, at, node=None):
        around = [host("op", f"autograd::engine::evaluate_function: {node}", at, at + 4)] if node else []
        return [
            *around,
            host("op", operator, at, at + 3),
            call("cudaLaunchKernel", at + 1, at + 2, correlation=at),
            kernel(at + 5, at + 9, name=name, correlation=at),
        ]

    one = [*launch("aten::mm", GEMM, 10), *launch("aten::mm", GEMM, 20, "MmBackward0")]
    one += launch("aten::add_", MUL, 30, "torch::autograd::AccumulateGrad")
    (found,) = zero_grad_fills(report([*launch("aten::_foreach_zero_", ZERO, 0), *again((0, 30), *one)]))
    assert "Backward then adds to the zeros, by 1 kernel (4 ns)" in found.text
    assert found.change(report([])).gone.len() == 2


@pytest.mark.parametrize(
    ("groups", "ran", "tensors", "told"),
    [(20, 1, 0, 1), (20, 1, 1, 1), (1, 1, 0, 0), (20, 30_000, 0, 0), (20, 1, 9, 0)],
)
def test_an_optimizer_of_many_groups_launches_for_each(groups, ran, tensors, told):
    shapes = {"input_shapes": f"[[{', '.join(['[8, 9]'] * tensors)}], []]"}
    calls = [host("op", "aten::_fused_adamw_", 10 * at, 10 * at + 9, side=shapes) for at in range(groups)]
    work = [*launched(*[FUSED] * 20, run=ran), *calls]
    of = report([nvtx("Optimizer.step#AdamW.step", 0, 200), *work])
    found = list(optimizer_groups(of))
    assert [one.headline for one in found] == ["AdamW goes through 20 small groups a step"] * told
    assert [len(one.change(of).gone) for one in found] == [19] * told
