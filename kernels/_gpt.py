"""The model of `serving`: a GPT whose keys and values lie in a cache with a slot for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

if torch.cuda.is_available():
    from _attention import attend
else:

    def attend(
        query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """One token of each sequence over the whole of its cache, with a mask."""
        inside = torch.arange(keys.shape[1]) < lengths[:, None, None, None]
        both = (keys[slots].transpose(1, 2), values[slots].transpose(1, 2))
        return functional.scaled_dot_product_attention(query[:, :, None], *both, inside)[:, :, 0]


class Shape(NamedTuple):
    """Of the model, and how many requests its cache has room for."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    context: int
    slots: int


class Model:
    """A GPT whose keys and values lie in a cache of one slot for each request; the last slot is for padding."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        """Random weights, in bf16 on a GPU."""
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        width, self.shape, self.device = shape.width, shape, device

        def made(*size: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(size, device=device) * scale).to(dtype)

        sizes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
        self.words, self.places = made(shape.vocabulary, width, scale=4 * width**-0.5), made(shape.context, width)
        self.layers = [[made(*size, scale=size[1] ** -0.5) for size in sizes] for _ in range(shape.layers)]
        size = (shape.layers, 2, shape.slots + 1, shape.context, shape.heads, width // shape.heads)
        self.caches = torch.zeros(size, dtype=dtype, device=device)

    def hidden(
        self, tokens: torch.Tensor, places: torch.Tensor, attention: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """Of each token, after all layers; `attention` takes a layer's number and its queries, keys and values."""
        x, size = self.words[tokens] + self.places[places], (self.shape.width,)
        for number, (inputs, outputs, up, down) in enumerate(self.layers):
            parts = functional.linear(functional.layer_norm(x, size), inputs).unflatten(1, (3, self.shape.heads, -1))
            x = x + functional.linear(attention(number, *parts.unbind(1)).flatten(1), outputs)
            x = x + functional.linear(functional.gelu(functional.linear(functional.layer_norm(x, size), up)), down)
        return functional.layer_norm(x, size)

    def picked(
        self, inputs: torch.Tensor, chunks: Sequence[tuple[int, int, int]], last: torch.Tensor | slice
    ) -> torch.Tensor:
        """The next token after each `last` row, and its score; rows of `inputs` are tokens, places and slots.

        Chunks are (slot, begin, end) of the prompts' parts that come first; a token of one request each comes after.
        """
        tokens, places, slots = inputs
        begin = sum(end - begin for _, begin, end in chunks)

        def attention(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = self.caches[layer]
            keys[slots, places], values[slots, places] = key, value
            parts = [query[:0]]
            for slot, start, end in chunks:
                part = query[sum(map(len, parts)) :][: end - start]
                args = (each.transpose(0, 1)[None] for each in (part, keys[slot, :end], values[slot, :end]))
                mask = causal_lower_right(end - start, end) if start else None
                parts.append(
                    functional.scaled_dot_product_attention(*args, mask, is_causal=not start)[0].transpose(0, 1)
                )
            if begin < len(tokens):
                parts.append(attend(query[begin:], keys, values, slots[begin:], places[begin:] + 1))
            return torch.cat(parts) if chunks else parts[-1]

        scores = functional.linear(self.hidden(tokens, places, attention)[last], self.words).float()
        return torch.stack([each.double() for each in scores.max(-1)])
