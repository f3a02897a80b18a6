"""A small training loop whose steps have names, so that time can be told by phase; and the two habits that hold it up.

Each step copies a batch to the device, runs forward, backward and optimizer, and asks for the loss. `naive` copies from
pageable memory and calls `.item()` in each step; `tidy` copies from pinned memory without waiting and keeps the losses
on the device until the end. Both must give the same losses.

Look for:
- the range `step`, and `data`, `forward`, `backward`, `optimizer` and `loss` inside it: where the host is and, by
  projection, where the GPU is. Autograd usually launches the backward pass from a thread of its own, which ranges of
  this one do not reach; here it stays on this one, but for `--autograd-thread`;
- `loss` in `naive`: a copy of 4 bytes and a `cudaStreamSynchronize` that waits for all that was launched before, so
  that the host cannot run ahead into the next step, as it does in `tidy`;
- `data` in `naive`: copies from pageable memory, which the host waits for though the call is `cudaMemcpyAsync`;
- many kernels of a few microseconds, launched one by one: with a small model the GPU waits for the host.

Run: python kernels/mlp_train.py --variant naive
Variants: naive, tidy
"""

from __future__ import annotations

import copy
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from _common import Check, arguments, chosen, find_device, phase, positive, report, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Batch = tuple[torch.Tensor, torch.Tensor]

CLASSES = 10
LEARNING_RATE = 0.05
CHECKED_STEPS = 3


def flops(batch: int, width: int, layers: int) -> int:
    """Of one step, in its matrix products only.

    A layer's product takes 2 · batch · in · out; the backward pass takes as much for the weights and, but for the
    first layer, for the input. Biases, ReLU, loss and optimizer are left out: they are lower by a factor of `batch`.
    """
    shapes = [(width, width)] * layers + [(width, CLASSES)]
    first = 2 * batch * shapes[0][0] * shapes[0][1]
    return sum(3 * 2 * batch * inner * outer for inner, outer in shapes) - first


def bytes_moved(batch: int, width: int) -> int:
    """Of one step, between host and device: the batch in float32, its labels in int64, and a float32 loss back."""
    return 4 * batch * width + 8 * batch + 4


def parameters(width: int, layers: int) -> int:
    """Weights and biases; SGD reads weight and gradient and writes the weight: 12 bytes for each."""
    return layers * (width * width + width) + width * CLASSES + CLASSES


def make_model(width: int, layers: int) -> nn.Sequential:
    """Hidden layers of one width with ReLU between them, then one score for each class."""
    hidden = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


def make_batches(batch: int, width: int, steps: int) -> list[Batch]:
    """Random points in pageable memory; the label of each is the largest of its first coordinates."""
    points = [torch.randn(batch, width) for _ in range(steps)]
    return [(x, x[:, :CLASSES].argmax(dim=-1)) for x in points]


def reference(model: nn.Sequential, batches: Sequence[Batch], dtype: torch.dtype) -> torch.Tensor:
    """The losses of the first steps, from the formulas of the forward and the backward pass, without autograd."""
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    layers = [(layer.weight.to(dtype, copy=True), layer.bias.to(dtype, copy=True)) for layer in linear]
    losses = []
    for x, labels in batches[:CHECKED_STEPS]:
        inputs = [x.to(dtype)]
        for weight, bias in layers[:-1]:
            inputs.append((inputs[-1] @ weight.T + bias).clamp_min(0))
        scores = inputs[-1] @ layers[-1][0].T + layers[-1][1]
        log_share = scores - scores.logsumexp(-1, keepdim=True)
        truth = nn.functional.one_hot(labels, CLASSES).to(dtype)
        losses.append(-(truth * log_share).sum(-1).mean())
        slope = (log_share.exp() - truth) / len(x)  # of the loss, by the scores
        for (weight, bias), layer_input in zip(reversed(layers), reversed(inputs), strict=True):
            before = (slope @ weight) * (layer_input > 0)  # ReLU passes what it did not cut off
            weight.sub_(LEARNING_RATE * slope.T @ layer_input)
            bias.sub_(LEARNING_RATE * slope.sum(0))
            slope = before
    return torch.stack(losses)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, *, wait_for_copy: bool
) -> torch.Tensor:
    """One step, phase by phase; the loss stays on the device."""
    device = next(model.parameters()).device
    with phase("data"):
        x, labels = (tensor.to(device, non_blocking=not wait_for_copy) for tensor in batch)
    with phase("forward"):
        loss = nn.functional.cross_entropy(model(x), labels)
    with phase("backward"):
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
    with phase("optimizer"):
        optimizer.step()
    return loss.detach()


def train_naive(model: nn.Module, batches: Sequence[Batch]) -> torch.Tensor:
    """The loss of every step, asked for when the step is done."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for batch in batches:
        with phase("step"):
            loss = train_step(model, optimizer, batch, wait_for_copy=True)
            with phase("loss"):
                losses.append(loss.item())
    return torch.tensor(losses)


def train_tidy(model: nn.Module, batches: Sequence[Batch]) -> torch.Tensor:
    """The loss of every step, fetched once when all are done."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for batch in batches:
        with phase("step"):
            losses.append(train_step(model, optimizer, batch, wait_for_copy=False))
    with phase("loss"):
        return torch.stack(losses).cpu()


VARIANTS: dict[str, Callable[[nn.Module, Sequence[Batch]], torch.Tensor]] = {"naive": train_naive, "tidy": train_tidy}


def pinned(batches: Sequence[Batch], device: torch.device) -> Sequence[Batch]:
    """The batches in memory that the GPU reads by itself; there is none without a GPU."""
    return [(x.pin_memory(), y.pin_memory()) for x, y in batches] if device.type == "cuda" else batches


def timed(name: str, model: nn.Module, batches: Sequence[Batch]) -> tuple[torch.Tensor, float]:
    """The losses of a variant, and the milliseconds that a step took on average."""
    device = next(model.parameters()).device
    with phase("warm-up"):  # loads kernels and libraries; else the variant that comes first would pay for all
        VARIANTS[name](copy.deepcopy(model), batches[:1])
        wait(device)
    begin = time.perf_counter()
    with phase(name):
        losses = VARIANTS[name](model, batches)
        wait(device)
    return losses, (time.perf_counter() - begin) * 1e3 / len(batches)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, tuple(VARIANTS))
    parser.add_argument("--size", type=positive, help="width of the layers (1024; 64 on the CPU)")
    parser.add_argument("--layers", type=positive, default=3, help="hidden layers (%(default)s)")
    parser.add_argument("--batch", type=positive, default=256, help="points in a batch (%(default)s)")
    parser.add_argument("--steps", type=positive, default=20, help="of training (%(default)s)")
    parser.add_argument("--autograd-thread", action="store_true", help="leave the backward pass on autograd's thread")
    args = parser.parse_args(argv)
    device = find_device()
    width = args.size or (1024 if device.type == "cuda" else 64)

    torch.manual_seed(0)
    batches = make_batches(args.batch, width, args.steps)
    start = make_model(width, args.layers)
    with phase("reference"), torch.no_grad():  # first, so that no GPU waits for it
        want = reference(start, batches, torch.float64)
        low = reference(start, batches, torch.float32)
    budget = 16 * float((low - want).abs().max()) + 2.0**-20  # sixteen times what float32 costs the formulas
    check = Check()
    with torch.autograd.set_multithreading_enabled(args.autograd_thread):
        for name in chosen(args.variant, tuple(VARIANTS)):
            model = copy.deepcopy(start).to(device)
            losses, ms = timed(name, model, pinned(batches, device) if name == "tidy" else batches)
            report(f"{name}, a step", ms, operations=flops(args.batch, width, args.layers))
            check.compare(name, losses[:CHECKED_STEPS].double(), want, budget)
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
