"""A small serving engine: continuous batching, chunked prefill and CUDA graphs for decoding, with a log of the truth.

A GPT with random weights answers requests that arrive at set times. Each step reads a chunk of the prompts that wait
(prefill), one token for each request that is being answered (decode), or both (mixed). Decode steps are replayed from
CUDA graphs of a few batch sizes, of which the next larger one is taken and padded; all others are launched kernel by
kernel. Each step has the label that vLLM, SGLang, TensorRT-LLM or ATOM gives it, or none; `--log` writes what each
step and each request was: kind, tokens, padding, tokens in the cache, times of the host and between CUDA events.

Look for:
- decode steps: nearly the same time for any batch, since each reads all weights, and more with the tokens in the cache;
- prefill steps: time by their tokens; mixed ones are those in which all other requests wait for a prompt;
- padding: a batch of 9 costs what one of 16 costs;
- gaps between steps: with `--schedule-us` and `--detokenize-us` the scheduler and the detokenizer sleep that long;
- labels: `--labels sglang` and the like, `--detailed` for those that say how many tokens are in the cache.

Run: python kernels/serving.py --labels vllm --log steps.jsonl
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from _batches import LABELS, Batch, Request, make_requests
from _common import Check, arguments, find_device, phase, positive, report, several, wait
from _gpt import Model, Shape

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

LARGE, SMALL = Shape(32_000, 4, 2048, 16, 2048, 64), Shape(256, 2, 64, 4, 128, 16)


def parameters(shape: Shape) -> int:
    """Weights that each step reads: twelve squares of the width in each layer, and the words of the scores."""
    return shape.layers * 12 * shape.width**2 + shape.vocabulary * shape.width


def flops(shape: Shape, tokens: int, attended: int, scored: int) -> int:
    """Of a step, in its matrix products: attended are pairs of a token and one it looks at; scored have logits."""
    layers = shape.layers * (2 * 12 * shape.width**2 * tokens + 4 * shape.width * attended)
    return layers + 2 * shape.vocabulary * shape.width * scored


def bytes_moved(shape: Shape, kv: int, itemsize: int = 2) -> int:
    """Of a decode step, at least: all weights, and keys and values of all tokens in the cache."""
    return itemsize * (parameters(shape) + 2 * shape.layers * shape.width * kv)


def reference(model: Model, request: Request, dtype: torch.dtype) -> torch.Tensor:
    """The scores of the answered tokens, from the whole sequence at once by softmax as it is written."""

    def attention(_layer: int, *parts: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.transpose(0, 1) for each in parts)
        later = torch.ones(len(parts[0]), len(parts[0]), dtype=torch.bool, device=query.device).triu(1)
        scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(0, 1)

    copy = object.__new__(Model)
    copy.shape, copy.words, copy.places = model.shape, model.words.to(dtype), model.places.to(dtype)
    copy.layers = [[each.to(dtype) for each in layer] for layer in model.layers]
    tokens = torch.tensor(request.tokens, device=model.device)
    hidden = copy.hidden(tokens[:-1], torch.arange(len(tokens) - 1, device=model.device), attention)
    scores = functional.linear(hidden[request.prompt - 1 :], copy.words)
    return scores.gather(1, tokens[request.prompt :, None])[:, 0].double()


class Engine:
    """Takes requests as they arrive, makes batches of them and runs these."""

    def __init__(self, model: Model, args: Namespace) -> None:
        """Captures the decode steps; without a GPU they are padded all the same, and run as they are."""
        self.model, self.args, self.asleep = model, args, random.Random(args.seed)  # noqa: S311 - sleeps are no secret
        self.free = list(range(model.shape.slots))
        self.running: list[Request] = []
        self.steps: list[dict[str, object]] = []
        self.events: list[list[torch.cuda.Event]] = []
        self.pool = None
        self.graphs = {size: self._capture(size) for size in sorted(args.captures, reverse=True)}

    def _capture(self, size: int) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
        """Where a decode step of this batch takes what it reads, and the function that runs it."""
        inputs = torch.zeros(3, size, dtype=torch.long, device=self.model.device)
        inputs[2] = self.model.shape.slots
        run = partial(self.model.picked, inputs, (), slice(None))
        if self.model.device.type == "cpu":
            return inputs, run
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(2):
                run()
        wait(self.model.device)
        graph = torch.cuda.CUDAGraph()
        with phase(f"capture_{size}_FULL"), torch.cuda.graph(graph, pool=self.pool):
            result = run()
        self.pool = self.pool or graph.pool()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return inputs, replay

    def part(self, name: str) -> AbstractContextManager[object]:
        """A range for a part of a step or of what is between steps, with `--scopes`."""
        inside = self.args.labels == "vllm" and name not in {"schedule", "detokenize"}
        return phase(f"gpu_model_runner: {name}" if inside else name) if self.args.scopes else nullcontext()

    def sleep(self, microseconds: int) -> None:
        """For as long as that on average, from a half to one and a half times."""
        if microseconds:
            time.sleep(microseconds * (0.5 + self.asleep.random()) / 1e6)

    def schedule(self, waiting: list[Request], now: float) -> Batch:
        """Admits what arrived, as long as there is room; prompts come first, up to the tokens of a chunk."""
        self.sleep(self.args.schedule_us)
        while waiting and waiting[0].arrival <= now and self.free:
            waiting[0].slot = self.free.pop(0)
            self.running.append(waiting.pop(0))
        decodes = [one for one in self.running if one.read >= one.prompt]
        room, prefills = max(1, self.args.chunk - (0 if self.args.separate else len(decodes))), []
        for one in self.running:
            if one.read < one.prompt and room:
                prefills.append((one, min(room, one.prompt - one.read)))
                room -= prefills[-1][1]
        return Batch(prefills, [] if prefills and self.args.separate else decodes)

    def forward(self, batch: Batch, padded: int) -> list[list[float]]:
        """The next token of each request of the batch whose prompt is read, and its score."""
        rows = [(one, at) for one, n in batch.prefills for at in range(one.read, one.read + n)]
        rows += [(one, one.read) for one in batch.decodes]
        with self.part("preprocess"):
            inputs = torch.tensor([(one.tokens[at], at, one.slot) for one, at in rows]).T.contiguous()
            if batch.kind == "decode" and padded in self.graphs:
                held, run = self.graphs[padded]
                rest = torch.tensor([[0], [0], [self.model.shape.slots]]).expand(3, padded - len(rows))
                held.copy_(torch.cat((inputs, rest), 1))
            else:
                ends = [number for number, (one, at) in enumerate(rows) if at + 1 >= one.prompt]
                chunks = [(one.slot, one.read, one.read + n) for one, n in batch.prefills]
                last = torch.tensor(ends, dtype=torch.long).to(self.model.device)
                run = partial(self.model.picked, inputs.to(self.model.device), chunks, last)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if torch.cuda.is_available() else []
        with self.part("forward"):
            for event in events[:1]:
                event.record()
            result = run()
            for event in events[1:]:
                event.record()
        self.events.append(events)
        with self.part("bookkeep"):
            return result.tolist()

    def step(self, batch: Batch, schedule: float) -> None:
        """Runs a batch under its label, and hands each request what it gets; its entry in the log."""
        size, sums = len(batch.decodes), [batch.sums(decodes=each) for each in (False, True)]
        padded = min((each for each in self.graphs if each >= size), default=size) if batch.kind == "decode" else size
        make = LABELS.get(self.args.labels)
        text = make(batch, len(self.steps), padded, detailed=self.args.detailed) if make else ""
        with phase(text) if text else nullcontext():
            start = time.time()
            scores, tokens = self.forward(batch, padded)
            end = time.time()
        graph = bool(self.events[-1]) and batch.kind == "decode" and padded in self.graphs
        numbers = [one.number for one in (*(one for one, _ in batch.prefills), *batch.decodes)]
        entry = {"step": len(self.steps), "kind": batch.kind, "label": text, "start": start, "end": end}
        entry |= {"prefills": len(batch.prefills), "decodes": size, "tokens": sums[0][0] + size, "padded": padded}
        entry |= {"kv": sums[0][1] + sums[1][1], "graph": graph, "requests": numbers, "schedule": schedule}
        self.steps.append(entry)
        with self.part("detokenize"):
            self.hand_out(batch, tokens, scores, end)
            self.sleep(self.args.detokenize_us)
        entry["detokenize"] = time.time() - end

    def hand_out(self, batch: Batch, tokens: list[float], scores: list[float], now: float) -> None:
        """A token to each request whose prompt is read; one that has all its tokens leaves."""
        for one, n in (*batch.prefills, *((one, 1) for one in batch.decodes)):
            one.read += n
        done = [one for one in (*(one for one, _ in batch.prefills), *batch.decodes) if one.read >= one.prompt]
        for one, token, score in zip(done, tokens, scores, strict=False):  # padding comes last
            one.tokens.append(int(token))
            one.scores.append(score)
            one.first = one.first or now
            if len(one.scores) == one.wanted:
                one.end = now
                self.running.remove(one)
                self.free.append(one.slot)

    def serve(self, requests: list[Request]) -> None:
        """Until all are answered; a wave of requests arrives when the one before it is done."""
        waiting: list[Request] = []
        coming = list(requests)
        while coming or waiting or self.running:
            if not waiting and not self.running:
                now, wave = time.time(), coming[0].wave
                waiting = [one for one in coming if one.wave == wave]
                coming = coming[len(waiting) :]
                for one in waiting:
                    one.arrival = now + one.offset
            begin = time.time()
            with self.part("schedule"):
                batch = self.schedule(waiting, begin)
            if batch.prefills or batch.decodes:
                self.step(batch, time.time() - begin)
            else:
                time.sleep(max(0.0, waiting[0].arrival - time.time()))

    def log(self, requests: Sequence[Request]) -> list[dict[str, object]]:
        """A line for each step and each request."""
        wait(self.model.device)
        for entry, events in zip(self.steps, self.events, strict=True):
            entry["gpu_ms"] = events[0].elapsed_time(events[1]) if events else None
        names = ("arrival", "first", "end", "prompt", "wanted")
        return self.steps + [{"request": one.number} | {n: getattr(one, n) for n in names} for one in requests]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__)
    parser.add_argument("--labels", choices=(*LABELS, "none"), default="vllm", help="of which engine (%(default)s)")
    parser.add_argument("--detailed", action="store_true", help="labels with all that the engine can be asked to say")
    parser.add_argument("--scopes", action="store_true", help="ranges for the parts of a step, too")
    parser.add_argument("--requests", type=positive, default=40, help="in all (%(default)s)")
    parser.add_argument("--rate", type=positive, default=300, help="of them in a second (%(default)s)")
    parser.add_argument("--waves", type=several, help="requests that arrive at once, each when those before are done")
    parser.add_argument("--prompts", type=several, help="shortest and longest prompt (64,1024; 4,40 on the CPU)")
    parser.add_argument("--outputs", type=several, help="fewest and most tokens of an answer (40,120; 4,12 on the CPU)")
    parser.add_argument("--chunk", type=positive, help="tokens of prompts in a step (512; 16 on the CPU)")
    parser.add_argument("--captures", type=several, help="batch sizes of graphs (1,2,4,8,16,32,64; 1,2,4,8 on the CPU)")
    parser.add_argument("--separate", action="store_true", help="no step reads prompts and decodes")
    parser.add_argument("--schedule-us", type=int, default=0, help="that the scheduler sleeps (%(default)s)")
    parser.add_argument("--detokenize-us", type=int, default=0, help="that the detokenizer sleeps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, lengths and sleeps (%(default)s)")
    parser.add_argument("--log", help="file for a line of JSON for each step and each request")
    args = parser.parse_args(argv)
    device = find_device()
    big = device.type == "cuda"
    args.prompts, args.outputs = (
        args.prompts or ([64, 1024] if big else [4, 40]),
        args.outputs or ([40, 120] if big else [4, 12]),
    )
    args.chunk, args.captures = (
        args.chunk or (512 if big else 16),
        args.captures or [2**n for n in range(7 if big else 4)],
    )

    torch.manual_seed(args.seed)
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)  # it would plan for each new length
    shape, check = LARGE if big else SMALL, Check()
    with torch.inference_mode():
        with phase("warm-up"):
            model = Model(shape, device)
            engine = Engine(model, args)
            size = min(args.chunk, shape.context - 1)
            for begin in (0, 1):
                inputs = torch.zeros(3, size, dtype=torch.long, device=device)
                model.picked(inputs, [(0, begin, begin + size)], slice(-1, None)).tolist()
        requests = make_requests(args, shape.vocabulary, shape.context)
        with phase("serve"):
            engine.serve(requests)
        lines = engine.log(requests)
        if args.log:
            Path(args.log).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        for kind in ("prefill", "mixed", "decode"):
            times = [one["end"] - one["start"] for one in engine.steps if one["kind"] == kind]
            if times:
                report(f"{kind}, {len(times)} steps, one", sum(times) / len(times) * 1e3)
        with phase("check"):
            for one in (requests[0], requests[-1]):
                want, low = (reference(model, one, dtype) for dtype in (torch.float64, model.words.dtype))
                budget = (
                    16 * float((low - want).abs().max()) + 2.0**-20
                )  # sixteen times what its type costs the formulas
                check.compare(
                    f"request {one.number}", torch.tensor(one.scores, dtype=torch.float64, device=device), want, budget
                )
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
