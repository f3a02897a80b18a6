"""Two models that the programs with remedies train: a GPT as in GPT-2, and ResNet-50."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Of a GPT; the numbers are those of GPT-2 small."""

    vocabulary: int = 50257
    layers: int = 12
    width: int = 768
    heads: int = 12
    context: int = 1024
    manual_attention: bool = False


class Cache:
    """Keys and values of one layer, of tokens that were read before."""

    def __init__(self, keys: torch.Tensor, *, grows: bool) -> None:
        """Room for a whole context; `keys` says of what shape and type. One that grows gives what is filled only."""
        self._both = (keys, torch.zeros_like(keys))
        self._grows = grows

    def add(self, at: torch.Tensor, new: tuple[torch.Tensor, torch.Tensor], length: int) -> list[torch.Tensor]:
        """All keys and values up to `length`, or of the whole context, after the new ones came to the places `at`."""
        for old, part in zip(self._both, new, strict=True):
            old.index_copy_(2, at, part)
        return [old[:, :, :length] if self._grows else old for old in self._both]

    def mask(self, at: torch.Tensor) -> torch.Tensor | None:
        """What each new token may look at: none where the length says it."""
        return None if self._grows else torch.arange(self._both[0].shape[2], device=at.device) <= at[:, None]


class Attention(nn.Module):
    """Heads that look at what came before, by one operator or by product, softmax and product."""

    def __init__(self, shape: Shape) -> None:
        """One layer for queries, keys and values."""
        super().__init__()
        self.heads, self.manual = shape.heads, shape.manual_attention
        self.inputs, self.outputs = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)

    def forward(self, x: torch.Tensor, cache: Cache | None, at: torch.Tensor, length: int) -> torch.Tensor:
        """Of all tokens of `x`, or of one new token with a cache."""
        parts = self.inputs(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if cache is not None:
            keys, values = cache.add(at, (key, value), length)
            y = functional.scaled_dot_product_attention(query, keys, values, cache.mask(at))
        elif self.manual:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            y = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(value.dtype) @ value
        else:
            y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outputs(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then two linear layers, each added to what comes in."""

    def __init__(self, shape: Shape) -> None:
        """One of the layers of `shape`."""
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(shape.width) for _ in range(2))
        self.attention = Attention(shape)
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor, cache: Cache | None, at: torch.Tensor, length: int) -> torch.Tensor:
        """As of Attention."""
        x = x + self.attention(self.norms[0](x), cache, at, length)
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """Scores of the next token; its last layer shares the weights of its first, as in GPT-2."""

    def __init__(self, shape: Shape) -> None:
        """Random weights."""
        super().__init__()
        self.shape = shape
        self.words, self.places = (nn.Embedding(n, shape.width) for n in (shape.vocabulary, shape.context))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        nn.init.normal_(self.words.weight, std=0.02)

    def caches(self, *, grows: bool) -> list[Cache]:
        """Empty ones for one sequence."""
        shape, like = self.shape, self.words.weight
        size = (1, shape.heads, shape.context, shape.width // shape.heads)
        return [Cache(torch.zeros(size, dtype=like.dtype, device=like.device), grows=grows) for _ in self.blocks]

    def forward(
        self, tokens: torch.Tensor, caches: list[Cache] | None = None, at: torch.Tensor | None = None, length: int = 0
    ) -> torch.Tensor:
        """Of whole sequences; or, with caches, of one token at the place `at`, which makes `length` in all."""
        at = torch.arange(tokens.shape[1], device=tokens.device) if at is None else at
        x = self.words(tokens) + self.places(at)
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, cache, at, length)
        return functional.linear(self.norm(x), self.words.weight)


def convolution(inner: int, outer: int, size: int, stride: int = 1) -> list[nn.Module]:
    """With normalisation."""
    return [nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer)]


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, inner: int, planes: int, stride: int) -> None:
        """From `inner` channels to four times `planes`."""
        super().__init__()
        relu, outer = nn.ReLU(inplace=True), 4 * planes
        middle = [relu, *convolution(planes, planes, 3, stride), relu]
        self.body = nn.Sequential(*convolution(inner, planes, 1), *middle, *convolution(planes, outer, 1))
        self.short = nn.Sequential(*([] if inner == outer else convolution(inner, outer, 1, stride)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways."""
        return functional.relu(self.body(x) + self.short(x), inplace=True)


def resnet(depths: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000) -> nn.Sequential:
    """ResNet-50, by its default depths."""
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for stage, depth in enumerate(depths):
        for index in range(depth):
            layers.append(Bottleneck(inner, 64 << stage, 2 if stage and not index else 1))
            inner = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))
