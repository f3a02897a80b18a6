"""What a pair of `remedies` is, and those that train a model."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from _models import GPT, Shape, resnet

if TYPE_CHECKING:
    from collections.abc import Callable

    #: One step of a program; what it returns is compared.
    Step = Callable[[], torch.Tensor]

ROUNDING = {"bf16": 2.0**-6, "float32": 2.0**-12}  # of results: far above what the types round, far below their size


@dataclass(frozen=True)
class Work:
    """What a pair makes its step for."""

    device: torch.device
    big: bool
    mended: bool

    def size(self, big: int, small: int) -> int:
        """The one of two."""
        return big if self.big else small

    def random(self, *shape: int) -> torch.Tensor:
        """The same numbers on every device."""
        return torch.randn(*shape).to(self.device)


@dataclass(frozen=True)
class Pair:
    """What is wrong in `fault`, what `remedy` does, and how far their results may be apart, by their size."""

    fault: str
    remedy: str
    make: Callable[[Work], Step]
    budget: float


PAIRS: dict[str, Pair] = {}


def pair(fault: str, remedy: str, types: str = "float32") -> Callable[[Callable[[Work], Step]], Callable[[Work], Step]]:
    """Names a pair by its function."""

    def add(make: Callable[[Work], Step]) -> Callable[[Work], Step]:
        PAIRS[make.__name__] = Pair(fault, remedy, make, ROUNDING[types])
        return make

    return add


def adam(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    """AdamW as `fused`, `foreach` or `single`."""
    return torch.optim.AdamW(model.parameters(), fused=kind == "fused", foreach=kind == "foreach")


def precision(device: torch.device, types: str) -> contextlib.AbstractContextManager[object]:
    """Products in `bf16`, `tf32` or `float32`."""
    torch.set_float32_matmul_precision("high" if types == "tf32" else "highest")
    return torch.autocast(device.type, torch.bfloat16) if types == "bf16" else contextlib.nullcontext()


@dataclass(frozen=True)
class Training:
    """How a GPT is trained: all that is wrong in one of the pairs, here as it should be."""

    padded: bool = True
    low_weights: bool = False
    manual_attention: bool = False
    optimizer: str = "fused"
    types: str = "bf16"
    layers: int = 12


def train_gpt(work: Work, how: Training) -> tuple[Step, torch.optim.Optimizer]:
    """A step of GPT-2's training, without the clearing of gradients; and its optimizer."""
    vocabulary, context = work.size(50257, 127), work.size(1024, 16)
    rows = -(-vocabulary // 64) * 64 if how.padded else vocabulary
    size = (rows, work.size(how.layers, 1), work.size(768, 32), work.size(12, 2), context)
    weights = torch.bfloat16 if how.low_weights else torch.float32
    model = GPT(Shape(*size, manual_attention=how.manual_attention)).to(work.device, weights)
    optimizer = adam(model, how.optimizer)
    tokens = torch.randint(vocabulary, (work.size(12, 2), context + 1)).to(work.device)

    def step() -> torch.Tensor:
        with precision(work.device, how.types):
            scores = model(tokens[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, optimizer


def training(step: Step, optimizer: torch.optim.Optimizer, *, to_none: bool = True) -> Step:
    """The step with cleared gradients."""

    def cleared() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=to_none)
        return step()

    return cleared


@pair("a vocabulary of 50257", "padded to 50304", "bf16")
def vocabulary(work: Work) -> Step:
    """Rows of 50257 numbers in bf16 do not begin at multiples of 16 bytes, so slower products are taken."""
    return training(*train_gpt(work, Training(padded=work.mended)))


@pair("AdamW(foreach=True), the default", "AdamW(fused=True)", "bf16")
def optimizer(work: Work) -> Step:
    """Each operation of the optimizer is a pass over all weights."""
    return training(*train_gpt(work, Training(optimizer="fused" if work.mended else "foreach")))


@pair("AdamW(foreach=False)", "AdamW(fused=True)", "bf16")
def single_tensor(work: Work) -> Step:
    """Each operation of the optimizer is a kernel for each weight."""
    return training(*train_gpt(work, Training(optimizer="fused" if work.mended else "single")))


@pair("products in float32", 'torch.set_float32_matmul_precision("high")', "bf16")
def tf32(work: Work) -> Step:
    """No tensor core computes in float32."""
    return training(*train_gpt(work, Training(types="tf32" if work.mended else "float32")))


@pair("products in float32", "torch.autocast in bfloat16", "bf16")
def tensor_cores(work: Work) -> Step:
    """As tf32, with half the bytes."""
    return training(*train_gpt(work, Training(types="bf16" if work.mended else "float32")))


@pair("torch.autocast over weights in float32", "model.to(torch.bfloat16)", "bf16")
def casts_training(work: Work) -> Step:
    """Weights are cast on the way forward, gradients on the way back; an optimizer may keep float32 of its own."""
    how = Training(low_weights=True, types="float32") if work.mended else Training()
    return training(*train_gpt(work, how))


@pair("matrix product, softmax, matrix product", "scaled_dot_product_attention", "bf16")
def attention(work: Work) -> Step:
    """Scores of each token for each other go to memory and back, several times."""
    return training(*train_gpt(work, Training(manual_attention=not work.mended)))


@pair("zero_grad(set_to_none=False)", "zero_grad()", "bf16")
def zero_grad(work: Work) -> Step:
    """Zeros are written, and gradients added to them."""
    return training(*train_gpt(work, Training()), to_none=work.mended)


@pair("loss.item() in each step", "in every tenth", "bf16")
def item(work: Work) -> Step:
    """The host waits for each step before it launches the next."""
    step, count = training(*train_gpt(work, Training(layers=4))), iter(range(1 << 30))

    def asking() -> torch.Tensor:
        loss = step()
        if next(count) % (10 if work.mended else 1) == 0:
            loss.item()
        return loss

    return asking


def train_resnet(work: Work, types: str) -> Step:
    """ResNet-50 on random images, whose layout the pair chooses."""
    layout = torch.channels_last if work.mended else torch.contiguous_format
    model = resnet((3, 4, 6, 3) if work.big else (1, 1)).to(work.device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    images = work.random(work.size(128, 4), 3, work.size(224, 32), work.size(224, 32)).to(memory_format=layout)
    classes = torch.randint(1000, images.shape[:1]).to(work.device)

    def step() -> torch.Tensor:
        with precision(work.device, types):
            loss = functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return training(step, optimizer)


@pair("NCHW, in tf32", "memory_format=torch.channels_last", "bf16")
def layout(work: Work) -> Step:
    """Tensor cores want channels last; else each convolution is between two conversions, or takes another kernel."""
    return train_resnet(work, "tf32")


@pair("NCHW, in bf16", "memory_format=torch.channels_last", "bf16")
def layout_bf16(work: Work) -> Step:
    """As layout."""
    return train_resnet(work, "bf16")
