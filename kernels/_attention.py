"""Attention of one new token for each sequence, over keys and values of lengths that only the device knows.

The keys of a sequence are read in parts, by as many programs whatever its length, so that a CUDA graph can replay it; a
second kernel joins the parts, each with the weight of its own sum (Dao et al., Flash-Decoding, 2023).
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import triton
import triton.language as tl

PARTS, BLOCK = 8, 32


@triton.jit(do_not_specialize_on_alignment=("slots",))
def part_kernel(
    out, tops, sums, query, keys, values, slots, lengths, context, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The softmax of a part of one head's keys, not yet divided, with its highest score and its sum."""
    pair, part = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + pair // HEADS)
    first = (tl.load(slots + pair // HEADS) * context * HEADS + pair % HEADS) * WIDTH
    columns, rows = tl.arange(0, WIDTH), tl.arange(0, BLOCK)
    scaled = tl.load(query + pair * WIDTH + columns).to(tl.float32) * scale
    share = tl.cdiv(length, PARTS * BLOCK) * BLOCK
    top, total = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
    value = tl.zeros([WIDTH], tl.float32)
    start, end = part * share, tl.minimum((part + 1) * share, length)
    while start < end:
        inside = start + rows < length
        at = first + (start + rows)[:, None] * (HEADS * WIDTH) + columns[None, :]
        key = tl.load(keys + at, mask=inside[:, None], other=0.0).to(tl.float32)
        loaded = tl.load(values + at, mask=inside[:, None], other=0.0).to(tl.float32)
        score = tl.where(inside, tl.sum(key * scaled[None, :], 1), float("-inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        weight, rest = tl.exp(score - higher), tl.exp(top - higher)
        value = value * rest + tl.sum(loaded * weight[:, None], 0)
        total, top = total * rest + tl.sum(weight, 0), higher
        start += BLOCK
    place = pair * PARTS + part
    tl.store(tops + place, top)
    tl.store(sums + place, total)
    tl.store(out + place * WIDTH + columns, value)


@triton.jit
def join_kernel(out, parts, tops, sums, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """The parts of one head as one; a part beyond the end has no weight."""
    pair = tl.program_id(0)
    places, columns = pair * PARTS + tl.arange(0, PARTS), tl.arange(0, WIDTH)
    top = tl.load(tops + places)
    weight = tl.exp(top - tl.max(top, 0))
    value = tl.sum(tl.load(parts + places[:, None] * WIDTH + columns[None, :]) * weight[:, None], 0)
    tl.store(out + pair * WIDTH + columns, value / tl.sum(tl.load(sums + places) * weight, 0))


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Of queries (sequence, head, width), in caches (slot, place, head, width) up to each sequence's length."""
    rows, heads, width = query.shape
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    parts = torch.empty(rows, heads, PARTS, width, device=query.device)
    tops, sums = torch.empty(2, rows, heads, PARTS, device=query.device)
    part_kernel[(rows * heads, PARTS)](
        parts, tops, sums, query, keys, values, slots, lengths, keys.shape[1], width**-0.5, heads, width, PARTS, BLOCK
    )
    join_kernel[(rows * heads,)](out, parts, tops, sums, width, PARTS)
    return out
