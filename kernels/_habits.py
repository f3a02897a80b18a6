"""The pairs of `remedies` about habits: data, waits, launches, memory."""

from __future__ import annotations

import ctypes
from functools import partial
from itertools import chain as joined, repeat
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from _models import GPT, Shape, resnet
from _pairs import pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from _pairs import Step, Work


def small_gpt(work: Work, layers: int, context: int, *, trained: bool = False) -> GPT:
    """For inference, in float32; its weights are still parameters of a training if it is `trained`."""
    shape = Shape(work.size(50304, 128), work.size(layers, 1), work.size(768, 32), work.size(12, 2), context)
    return GPT(shape).to(work.device).requires_grad_(requires_grad=trained)


@pair("weights in float32, cast in each forward pass", "model.to(torch.bfloat16)", "bf16")
def casts(work: Work) -> Step:
    """Autocast casts each weight each time that it is entered."""
    model = small_gpt(work, 12, work.size(256, 16), trained=True)
    model = model.to(torch.bfloat16) if work.mended else model
    tokens = torch.randint(128, (work.size(4, 2), model.shape.context)).to(work.device)

    def step() -> torch.Tensor:
        with torch.no_grad(), torch.autocast(work.device.type, torch.bfloat16, enabled=not work.mended):
            return model(tokens)[:, -1].float()

    return step


def next_token(model: GPT, *, grows: bool) -> tuple[Callable[[int], torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """A function that reads one token, which makes `length` in all; and that token and its place, first both 0."""
    caches, device = model.caches(grows=grows), model.words.weight.device
    token, at = torch.zeros(1, 1, dtype=torch.long, device=device), torch.zeros(1, dtype=torch.long, device=device)

    def read(length: int) -> torch.Tensor:
        scores = model(token, caches, at, length)[:, -1]
        token.copy_(scores.argmax(-1, keepdim=True))
        at.add_(1).remainder_(model.shape.context)
        return scores

    return read, (token, at)


def generating(read: Callable[[int], torch.Tensor], context: int) -> Step:
    """A step for each token, which the host asks for."""
    lengths = joined.from_iterable(repeat(range(1, context + 1)))

    def step() -> torch.Tensor:
        scores = read(next(lengths))
        scores.argmax().item()
        return scores

    return step


@pair("keys and values of a length that grows", "of the whole context, with a mask", "bf16")
def lengths(work: Work) -> Step:
    """For each new length cuDNN plans its attention anew, on the host."""
    model = small_gpt(work, 6, work.size(1024, 16)).to(torch.bfloat16)
    return generating(next_token(model, grows=not work.mended)[0], model.shape.context)


@pair("token by token, kernel by kernel", "torch.cuda.CUDAGraph", "bf16")
def launches(work: Work) -> Step:
    """Of one token each kernel is shorter than its launch."""
    model = small_gpt(work, 12, work.size(512, 16)).to(torch.bfloat16)
    read, first = next_token(model, grows=False)
    if not work.mended or work.device.type == "cpu":
        return generating(read, model.shape.context)
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            read(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores = read(0)
    for number in first:
        number.zero_()  # what was read so far was for the capture

    def replay(_: int) -> torch.Tensor:
        graph.replay()
        return scores

    return generating(replay, model.shape.context)


class Images(torch.utils.data.Dataset[torch.Tensor]):
    """Made from bytes on the CPU, which takes some milliseconds each, as reading a picture does."""

    def __init__(self, size: int) -> None:
        """Squares of `size`."""
        self.size = size

    def __len__(self) -> int:
        """More than is used."""
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        """One picture: noise, made larger."""
        noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(index))
        return functional.interpolate(noise, (self.size, self.size), mode="bilinear")[0]


def network(work: Work, channels: int) -> torch.nn.Module:
    """Some convolutions for the GPU to do."""
    return torch.nn.Sequential(*(torch.nn.Conv2d(n, channels, 3, 2) for n in (3, channels, channels))).to(work.device)


@pair("DataLoader(num_workers=0)", "num_workers=8, pin_memory=True", "bf16")
def loader(work: Work) -> Step:
    """The step waits for its data, which nothing prepared."""
    pinned = work.mended and work.device.type == "cuda"
    images, workers = Images(work.size(224, 64)), work.size(8, 2) if work.mended else 0
    data = torch.utils.data.DataLoader(images, work.size(64, 4), num_workers=workers, pin_memory=pinned)
    batches, model = iter(data), resnet((3, 4, 6, 3) if work.big else (1, 1)).to(work.device)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = model(next(batches).to(work.device, non_blocking=pinned)).square().mean()
        loss.backward()
        return loss.detach()

    return step


@pair("x.to(device) of pageable memory", "pin_memory() once, non_blocking=True", "bf16")
def upload(work: Work) -> Step:
    """CUDA copies pageable memory through a buffer of its own, and the host has to help."""
    images, model = torch.randn(work.size(64, 2), 3, work.size(224, 32), work.size(224, 32)), network(work, 64)
    pinned = work.mended and work.device.type == "cuda"
    images = images.pin_memory() if pinned else images
    return lambda: model(images.to(work.device, non_blocking=pinned)).mean().detach()


@pair("cudaMemcpy from and to pageable memory", "cudaMemcpyAsync from and to pinned memory, then one wait")
def memcpy(work: Work) -> Step:
    """A synchronous copy waits whatever the memory is, and takes several times as long from pageable memory."""
    there, back = (torch.randn(work.size(4096, 16), 1024) for _ in range(2))
    device, weight = torch.empty_like(there, device=work.device), work.random(1024, 1024) / 32
    on_gpu = work.device.type == "cuda"
    if work.mended and on_gpu:
        there, back = there.pin_memory(), back.pin_memory()
    copy = device_copy if on_gpu and not work.mended else partial(torch.Tensor.copy_, non_blocking=True)

    def step() -> torch.Tensor:
        copy(device, there)
        copy(back, device @ weight)
        if work.mended and on_gpu:
            torch.cuda.synchronize()
        return back.sum()

    return step


def device_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies by the function that a program in CUDA calls."""
    runtime = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}")
    ends = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (target, source))
    by_address = 4  # cudaMemcpyDefault: the pointers tell the direction
    status = runtime.cudaMemcpy(*ends, ctypes.c_size_t(source.nbytes), by_address)
    if status:
        message = f"cudaMemcpy: error {status}"
        raise RuntimeError(message)


@pair("x[x > 0].sum()", "torch.where(x > 0, x, 0).sum()")
def mask(work: Work) -> Step:
    """How many there are decides a shape, so the host waits for the number."""
    x, factor = work.random(work.size(4096, 16), 1024), work.random(1024)

    def step() -> torch.Tensor:
        y, total = x, torch.zeros((), device=work.device)
        for _ in range(10):
            y = y * 0.9 + factor
            total = total + (torch.where(y > 0, y, 0).sum() if work.mended else y[y > 0].sum())
        return total

    return step


@pair("torch.cuda.empty_cache() in each step", "without")
def allocation(work: Work) -> Step:
    """Memory that is given back is asked for again: cudaFree and cudaMalloc wait for the device."""
    x, weight = work.random(work.size(4096, 16), 1024), work.random(1024, 1024) / 32

    def step() -> torch.Tensor:
        y = x
        for _ in range(8):
            y = (y @ weight).tanh()
        if not work.mended:
            torch.cuda.empty_cache()
        return y.mean()

    return step


@pair("torch.ones(n, n).tril().to(device)", "torch.ones(n, n, device=device).tril()")
def constants(work: Work) -> Step:
    """What the GPU makes in microseconds, made on the CPU and moved."""
    scores = work.random(8, work.size(1024, 16), work.size(1024, 16))
    where, n = work.device if work.mended else torch.device("cpu"), scores.shape[-1]

    def step() -> torch.Tensor:
        seen = torch.ones(n, n, device=where).tril().to(work.device)
        return scores.masked_fill(seen == 0, -torch.inf).softmax(-1).square().mean()

    return step


@pair("for i in range(n): if x[i] > 0", "x.clamp_min(0).sum()")
def indexing(work: Work) -> Step:
    """Each element is a kernel, and each question about it a wait."""
    x = work.random(work.size(256, 16))

    def loop() -> torch.Tensor:
        total = torch.zeros((), device=work.device)
        for index in range(len(x)):
            if x[index] > 0:
                total += x[index]
        return total

    return (lambda: x.clamp_min(0).sum()) if work.mended else loop
