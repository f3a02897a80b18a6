"""What `serving` puts into a step, and the label that each engine gives it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from argparse import Namespace


@dataclass(eq=False)
class Request:
    """A prompt, and what was answered so far; times are seconds since the epoch."""

    number: int
    wave: int
    offset: float
    tokens: list[int]
    wanted: int
    prompt: int = 0
    slot: int = -1
    read: int = 0
    arrival: float = 0.0
    first: float = 0.0
    end: float = 0.0
    scores: list[float] = field(default_factory=list)


def make_requests(args: Namespace, vocabulary: int, context: int) -> list[Request]:
    """Waves of the sizes asked for, each with a longest prompt of its own; or one that comes at an even rate."""
    chosen, requests = random.Random(args.seed), []  # noqa: S311 - prompts are no secret
    for wave, size in enumerate(args.waves or [args.requests]):
        longest = chosen.randint(*args.prompts) if args.waves else args.prompts[1]
        for place in range(size):
            prompt, wanted = chosen.randint(args.prompts[0], longest), chosen.randint(*args.outputs)
            tokens = [chosen.randrange(vocabulary) for _ in range(min(prompt, context - wanted))]
            offset = 0.0 if args.waves else place / args.rate
            requests.append(Request(len(requests), wave, offset, tokens, wanted, len(tokens)))
    return requests


class Batch(NamedTuple):
    """Of a step: requests whose prompts are read, with how many tokens of each, and requests that decode."""

    prefills: list[tuple[Request, int]]
    decodes: list[Request]

    @property
    def kind(self) -> str:
        """As the log and most engines say it."""
        return "mixed" if self.prefills and self.decodes else "prefill" if self.prefills else "decode"

    def sums(self, *, decodes: bool) -> list[int]:
        """Of the queries, the keys, the squared queries and the products of both, as detailed labels give them."""
        parts = [(request, 1) for request in self.decodes] if decodes else self.prefills
        sums = ((n, request.read + n, n * n, n * (request.read + n)) for request, n in parts)
        return [sum(column) for column in zip((0, 0, 0, 0), *sums, strict=True)]


def vllm(batch: Batch, _step: int, _padded: int, *, detailed: bool) -> str:
    """Context is what vLLM calls a prompt that is being read."""
    parts = [
        ("context", len(batch.prefills), batch.sums(decodes=False)),
        ("generation", len(batch.decodes), batch.sums(decodes=True)),
    ]
    if not detailed:
        return "execute_" + "_".join(f"{name}_{count}({sums[0]})" for name, count, sums in parts)
    texts = ["{}_{}(sq{}sk{}sqsq{}sqsk{})".format(name, count, *sums) for name, count, sums in parts]
    return f"execute_{sum(sums[0] for _, _, sums in parts)}_" + "_".join(texts)


def sglang(batch: Batch, _step: int, _padded: int, *, detailed: bool) -> str:
    """Tokens stand where prompts are read; in detail both are told apart."""
    prompts, others = batch.sums(decodes=False), batch.sums(decodes=True)
    kind = {"decode": "DECODE", "prefill": "EXTEND", "mixed": "MIXED"}[batch.kind]
    tokens = f" toks={prompts[0] + others[0]}" if batch.prefills else ""
    sides = ((len(batch.prefills), len(batch.decodes)), *zip(prompts[:2], others[:2], strict=True))
    more = " c={} g={} c_sq={} g_sq={} c_sk={} g_sk={}".format(*(one for side in sides for one in side))
    return f"step[{kind} bs={len(batch.prefills) + len(batch.decodes)}{tokens}{more if detailed else ''}]"


def trtllm(batch: Batch, step: int, _padded: int, *, detailed: bool) -> str:
    """Later releases say the tokens of prompts, too."""
    tokens = f" {sum(n for _, n in batch.prefills)} ctx tokens," if detailed else ""
    return f"[Executor] _forward_step {step}: {len(batch.prefills)} ctx reqs,{tokens} {len(batch.decodes)} gen reqs"


def atom(batch: Batch, _step: int, padded: int, *, detailed: bool) -> str:
    """The batch that was asked for, and the one that was replayed."""
    requests = len(batch.prefills) + len(batch.decodes)
    sq, sk, sqsq, sqsk = map(sum, zip(batch.sums(decodes=False), batch.sums(decodes=True), strict=True))
    size = f"{requests}/{padded}" if batch.kind == "decode" and padded > requests else str(requests)
    kinds = f" p={len(batch.prefills)}" if batch.kind == "mixed" else ""
    kinds += f" d={len(batch.decodes)}" if batch.decodes else ""
    more = f" sqsq={sqsq} sqsk={sqsk} sk={sk}" if detailed else ""
    return f"{'prefill' if batch.prefills else 'decode'}[bs={size} tok={sq}{kinds}{more}]"


LABELS = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm, "atom": atom}
