"""Steps of serving engines by the labels of their own ranges: one table of patterns, and what each field of them means.

Where the engines make them: vLLM in v1/worker/gpu_worker.py (annotate_profile) and the scopes of its model runners;
SGLang in srt/utils/profile_utils.py (build_step_span_name); TensorRT-LLM in _torch/pyexecutor/py_executor.py
(_forward_step); ATOM in model_engine (run_model, run_labels); xDiT around each execution of a pipeline.
"""

import re
from typing import Final, NamedTuple

import polars as pl

from kanalyze import columns, errors
from kanalyze.analyses.device._operations import families, operations
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.shared.analysis import named_ranges, once_per_process
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.report import Report
from kanalyze.window import names

PREFILL, DECODE, MIXED, DRAFT, DIFFUSION = "prefill", "decode", "mixed", "draft", "diffusion"
OTHER, IDLE = "other", "idle"
KINDS: Final = (PREFILL, DECODE, MIXED, DRAFT, DIFFUSION, OTHER, IDLE)

#: The engine of labels by patterns of the user's own.
USER: Final = "the program"

#: Kinds by the word of a label: SGLang's forward modes, and the words of ATOM and of users' patterns.
_WORDS: Final = {
    **dict.fromkeys(("extend", "split_prefill", "dllm_extend", "prebuilt", "prefill", "context"), PREFILL),
    **dict.fromkeys(("decode", "target_verify", "verify", "eager_decode", "generate", "generation"), DECODE),
    **dict.fromkeys(("draft_extend", "draft_extend_v2", "draft_loop", "draft"), DRAFT),
    MIXED: MIXED,
    IDLE: IDLE,
    DIFFUSION: DIFFUSION,
}

#: What a label's fields are. Of prompts (c) and of requests that generate (g): requests, their tokens in this step, and
#: the tokens whose keys and values are read; or of all of them. `padded` is the batch of the graph that is replayed.
_COUNTS: Final = (
    "requests",
    "tokens",
    "kv",
    "padded",
    *(f"{s}_{n}" for s in "cg" for n in ("requests", "tokens", "kv")),
)


class Grammar(NamedTuple):
    """Labels of an engine: what all of them match, and for each field what is it in them."""

    engine: str
    label: str
    fields: dict[str, str]
    kind: str | None = None


#: The labels, those that say most of what a step is first: of several around one step its fields are the first known.
GRAMMARS: Final = (
    # step[DECODE bs=64], step[EXTEND bs=15 toks=15360 … c_sk=…], step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 … g_sk=12]
    Grammar("SGLang", r"^step\[[A-Z_0-9]+ (?:raw_)?bs=\d+.*\]$", {
        "word": r"^step\[([A-Z_0-9]+)", "requests": r"bs=(\d+)", "tokens": r" toks=(\d+)",
        "c_requests": r" c=(\d+)", "c_tokens": r" c_sq=(\d+)", "c_kv": r" c_sk=(\d+)",
        "g_requests": r" g=(\d+)", "g_tokens": r" g_sq=(\d+)", "g_kv": r" g_sk=(\d+)",
    }),
    # prefill[bs=2 tok=14721 ctx=[7803, 6918]], decode[bs=117/128 tok=117 p=2 d=115 spec=3 sqsq=… sqsk=… sk=…]
    Grammar("ATOM", r"^(?:prefill|decode|eager_decode)\[bs=\d+.*\]$", {
        "word": r"^(\w+)\[", "requests": r"\[bs=(\d+)", "padded": r"^decode\[bs=(?:\d+/)?(\d+)",
        "tokens": r" tok=(\d+)", "kv": r" sk=(\d+)", "c_requests": r" p=(\d+)", "g_requests": r" d=(\d+)",
    }),
    # [Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs
    Grammar("TensorRT-LLM", r"^\[Executor\] _forward_step\b.*\bgen reqs", {
        "c_requests": r"(\d+) ctx reqs", "c_tokens": r"(\d+) ctx tokens",
        "g_requests": r"(\d+) gen reqs", "g_tokens": r"(\d+) gen tokens",
    }),
    # execute_context_1(512)_generation_3(3), execute_515_context_1(sq512sk900sqsq…sqsk…)_generation_3(sq3sk…sqsq3sqsk…)
    Grammar("vLLM", r"^execute_(?:\d+_)?context_\d+\(.*\)_generation_\d+\(.*\)$", {
        "c_requests": r"context_(\d+)\(", "c_tokens": r"context_\d+\((?:sq)?(\d+)",
        "c_kv": r"context_\d+\(sq\d+sk(\d+)", "g_requests": r"generation_(\d+)\(",
        "g_tokens": r"generation_\d+\((?:sq)?(\d+)", "g_kv": r"generation_\d+\(sq\d+sk(\d+)",
    }),
    # with scopes alone, of either model runner, which say nothing of the batch
    Grammar("vLLM", r"^(?:v2_)?gpu_model_runner: forward$", {}),
    # execute_diffusion_1_256x256: a batch of pictures
    Grammar("xDiT", r"^execute_diffusion_\d+_\d+x\d+", {
        "word": r"^execute_(diffusion)", "requests": r"^execute_diffusion_(\d+)_",
    }),
)  # fmt: skip

#: Ranges of SGLang around the forward passes of a draft model, whose labels are as the target model's.
_DRAFTS: Final = ("draft", "draft_extend")

#: A mark of the capture of a graph: capture_128_decode, capture_256_mixed_prefill.
CAPTURE: Final = r"\bcapture_(\d+)_"

#: Words of a user's pattern in braces, and what each is; there are no others. The number of a step is no column.
_BRACES: Final = {
    "batch": "requests",
    "requests": "requests",
    "tokens": "tokens",
    "kv": "kv",
    "padded": "padded",
    "context": "c_requests",
    "generation": "g_requests",
    "step": "number",
    "kind": "word",
}

#: What a label says.
_LABEL: Final = (
    *("engine", "kind", "label", "requests", "tokens", "padded", "kv_tokens"),
    *("context_requests", "context_tokens"),
)


def grammar_of(pattern: str) -> Grammar:
    """The labels that a user's pattern stands for: ``decode bs={batch}``, ``{kind} of {tokens} tokens``.

    Raises:
        UnknownNameError: A word in braces is none of :data:`_BRACES`.
    """
    literals, names = re.split(r"\{\w*\}", pattern), re.findall(r"\{(\w*)\}", pattern)
    fields, label = dict[str, str](), re.escape(literals[0])
    for name, literal in zip(names, literals[1:], strict=True):
        errors.refuse_unknown("field of --steps", name, _BRACES)
        value = r"\w+" if _BRACES[name] == "word" else r"\d+"
        fields[_BRACES[name]] = f"^{label}({value})"
        label += value + re.escape(literal)
    kinds = [_WORDS[word] for word in re.findall("[a-z]+", pattern.lower()) if word in _WORDS]
    return Grammar(USER, f"^{label}$", fields, kinds[0] if kinds else None)


@once_per_process
def engine_labels(report: Report) -> pl.DataFrame:
    """The ranges that are labels of an engine's steps: range, rank (of the grammar), and what is in :data:`_LABEL`.

    Raises:
        UnknownNameError: No range is called as a pattern of the user's says.
    """
    ranges = named_ranges(report)
    grammars = [grammar_of(pattern) for pattern in report.scope.labels]
    labels = ranges.select("range", label="name").unique("range", maintain_order=True).drop_nulls("label")
    for pattern, grammar in zip(report.scope.labels, grammars, strict=True):
        if not labels.get_column("label").str.contains(grammar.label).any():
            raise errors.UnknownNameError.of("range", pattern, names(ranges))
    parsed = [_parsed(labels.lazy(), grammar, rank) for rank, grammar in enumerate((*grammars, *GRAMMARS))]
    return _completed(pl.concat(parsed).unique("range", keep="first", maintain_order=True)).collect(engine="in-memory")


def names_by_kind(report: Report) -> pl.DataFrame:
    """The one name of the labels of a kind, ``decode step``; of a scope within them its own: range, label and name."""
    other = pl.col("kind") == OTHER
    labels = engine_labels(report).filter(~other | pl.col("requests").is_not_null() | other.all())
    return labels.select("range", "label", name=pl.format("{} step", "kind"))


@once_per_process
def engine_marks(report: Report) -> pl.DataFrame:
    """The steps of serving engines by their labels, sorted by process and start.

    Columns: :data:`THREAD`, start, end, open (whether it was never closed), and :data:`_LABEL`. Of labels inside each
    other the outermost is the step; what it does not say of the batch, the others do. Where no label
    says what kind a step is, steps are those of :func:`learned_marks`, if there are any.
    """
    ranges = named_ranges(report).filter(pl.col("end") > pl.col("start"))
    marks = ranges.select(*THREAD, "start", "end", "open", "range").join(engine_labels(report), on="range")
    marks = marks.sort(*THREAD, "start", "end", descending=[False, False, False, True])
    reached = pl.col("end").cum_max().shift(1).over(THREAD)
    marks = marks.with_columns(step=(pl.col("start") >= reached).fill_null(value=True).cum_sum())
    spans = marks.group_by("step", *THREAD).agg(pl.col("start", "end", "open").first())
    ranked = marks.with_columns(kind=pl.col("kind").replace(OTHER, None)).sort("step", "rank")
    fields = ranked.group_by("step").agg(pl.col(name).drop_nulls().first() for name in _LABEL)
    steps = spans.join(fields.with_columns(pl.col("kind").fill_null(OTHER)), on="step")
    drafts = ranges.filter(pl.col("name").cast(pl.String).is_in(_DRAFTS)).select(*THREAD, at="start", until="end")
    around = columns.rows_at(drafts, columns.as_of(steps.select(*THREAD, at="start"), drafts.select(*THREAD, "at")))
    drafted = (pl.col("engine") == "SGLang") & columns.sure(around.get_column("until") > steps.get_column("start"))
    steps = steps.with_columns(kind=pl.when(drafted).then(pl.lit(DRAFT)).otherwise("kind"))
    if (steps.get_column("kind") == OTHER).all() and (learned := learned_marks(report)).height:
        engine = next(iter(steps.get_column("engine")), "an engine without labels")
        rows = learned.with_columns(engine=pl.lit(engine), open=pl.lit(value=False))
        steps = pl.concat([steps.clear(), rows], how="diagonal")
    return steps.drop("step").sort("process_id", "start")


def _parsed(labels: pl.LazyFrame, grammar: Grammar, rank: int) -> pl.LazyFrame:
    """The labels of an engine with their fields: range, label, engine, rank, kind, verifies and :data:`_COUNTS`."""
    matches = labels.filter(pl.col("label").str.contains(grammar.label))
    fields = {name: pl.col("label").str.extract(pattern) for name, pattern in grammar.fields.items()}
    numbers = {name: fields.get(name, pl.lit(None)).cast(pl.Int64, strict=False) for name in _COUNTS}
    # larger numbers are of no step
    counts = [pl.when(number < 2**40).then(number).alias(name) for name, number in numbers.items()]
    words = fields.get("word", pl.lit(None)).cast(pl.String).str.to_lowercase()
    kind = words.replace_strict(_WORDS, default=OTHER, return_dtype=pl.String)
    kind = pl.when(words.is_not_null()).then(kind).otherwise(pl.lit(grammar.kind, dtype=pl.String)).alias("kind")
    verifies = words.str.contains("verify").fill_null(value=False).alias("verifies")
    return matches.select("range", "label", *counts, kind, verifies, engine=pl.lit(grammar.engine), rank=pl.lit(rank))


def _completed(marks: pl.LazyFrame) -> pl.LazyFrame:
    """Adds what follows from the fields: kinds from the requests, sums over prompts and generation, one token each."""
    requests, tokens, kind = pl.col("requests"), pl.col("tokens"), pl.col("kind")
    decodes, prefills, prompts, others = kind == DECODE, kind == PREFILL, pl.col("c_requests"), pl.col("g_requests")
    marks = marks.with_columns(
        c_requests=pl.coalesce(prompts, pl.when(decodes).then(0).when(prefills).then(requests)),
        g_requests=pl.coalesce(others, pl.when(decodes).then(requests).when(prefills).then(0)),
    ).with_columns(
        c_tokens=pl.coalesce("c_tokens", pl.when(prompts == 0).then(0).when(prefills).then(tokens)),
        g_tokens=pl.coalesce("g_tokens", pl.when(~pl.col("verifies")).then(others)),
    )
    by_count = pl.when(prompts > 0).then(pl.lit(PREFILL)).when(others > 0).then(pl.lit(DECODE))
    either = pl.coalesce(kind, by_count.when(prompts.is_not_null()).then(pl.lit(IDLE)), pl.lit(OTHER))
    return marks.with_columns(
        kind=pl.when(prompts > 0, others > 0).then(pl.lit(MIXED)).otherwise(either),
        requests=pl.coalesce(requests, prompts + others),
        tokens=pl.coalesce(tokens, pl.col("c_tokens") + pl.col("g_tokens")),
        kv_tokens=pl.coalesce("kv", pl.col("c_kv") + pl.col("g_kv"), "c_kv", "g_kv"),
        context_requests=prompts,
        context_tokens=pl.coalesce("c_tokens", tokens - pl.col("g_tokens")),
    ).select("range", "rank", *_LABEL)


# Steps of serving engines that have no labels, by what is launched between reads of the tokens.
#
# A step ends where its thread reads from the device. It is a decode step where most of its work is a replay of CUDA
# graphs; one that is launched kernel by kernel is mixed where it runs the kernels that all decode steps have and other
# such steps lack, else prefill. So much is learned only of a program that serves: nothing of it is a backward pass,
# some steps compute attention kernel by kernel, and others replay graphs of several batches.

#: Copies from the device; kernels of training.
_READS: Final = r"(?i)DtoH|device-to-host"
_TRAINS: Final = r"(?i)backward|bwd|_grad|dgrad|wgrad|optimizer|adam"

#: Fewest steps of a thread that serves, kernels of a step, and different replays.
_FEWEST: Final = 16
_KERNELS: Final = 8
_SIZES: Final = 2

#: What part of a step's GPU time in graphs makes it a replay; and of steps that have a kernel, that all have it.
REPLAYED: Final = 0.5
_ALL: Final = 0.9

_MARKS: Final = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "kind": pl.String}


def learned_marks(report: Report) -> pl.DataFrame:
    """The steps of threads that serve: :data:`THREAD`, start, end and kind; none of other programs."""
    parts = [pl.DataFrame(schema=_MARKS)]
    calls, kernels = (report.kind(kind).get_column("name").unique() for kind in ("api", "kernel"))
    if not _call_kinds.graph_call(report, calls).any() or kernels.cast(pl.String).str.contains(_TRAINS).any():
        return parts[0]
    work = operations(report, "call_name", "call_start", "call_end", "thread_id").drop_nulls("call_start")
    replays = _call_kinds.graph_call(report, work.get_column("call_name"))
    ran = pl.col("end") - pl.col("start")
    work = work.with_columns(pl.col("name").cast(pl.String), ran=ran, replayed=ran * replays).sort("call_start")
    for ops in work.partition_by(THREAD, maintain_order=True):
        reads = ops.filter(pl.col("detail").cast(pl.String).str.contains(_READS))
        ends = reads.get_column("call_start").unique().sort()
        at = columns.nearest_place(ends, ops.get_column("call_start"), later=True, equal=True).alias("step")
        begun = ops.with_columns(at).filter(pl.col("step") > 0)  # what is before the first read may be more than a step
        parts += [_of_thread(begun).select(list(_MARKS))] if len(ends) >= _FEWEST else []
    return pl.concat(parts)


def _of_thread(work: pl.DataFrame) -> pl.DataFrame:
    """The steps of a thread's work (with step, ran, replayed): start, end and kind; none where it does not serve."""
    kernels = pl.col("kind").is_in(["kernel", "graph"])
    steps = work.group_by("step").agg(
        pl.col(THREAD).first(),
        start=pl.col("call_start").min(),
        end=pl.col("call_end").max(),
        replay=pl.col("replayed").sum() >= REPLAYED * pl.col("ran").sum().clip(1),
        name=pl.col("name").filter(kernels).unique(),
        nodes=pl.col("name").filter(kernels & (pl.col("replayed") == pl.col("ran"))).unique().sort(),
        number=kernels.sum(),
    )
    steps = steps.filter(pl.col("replay") | (pl.col("number") >= _KERNELS)).sort("start")
    names = steps.select("step", "replay", "name").explode("name")
    names = names.with_columns(families(names.get_column("name")))
    attends = names.filter(~pl.col("replay"), pl.col("family") == "attention").get_column("step").unique()
    replays = steps.filter("replay")
    if replays.get_column("nodes").n_unique() < _SIZES or attends.is_empty():
        return pl.DataFrame(schema=_MARKS)
    served = pl.col("replay") | pl.col("step").is_in(attends.implode())
    steps, names = steps.filter(served), names.filter(served)
    always, alone = pl.col("replay").sum() >= _ALL * replays.height, (~pl.col("replay")).sum() < len(attends)
    of_decode = names.group_by("name").agg(of_decode=always & alone).filter("of_decode").get_column("name")
    mixed = names.filter(pl.col("name").is_in(of_decode.implode())).get_column("step").unique()
    kind = pl.when("replay").then(pl.lit("decode")).when(pl.col("step").is_in(mixed.implode())).then(pl.lit("mixed"))
    return steps.with_columns(kind=kind.otherwise(pl.lit("prefill")))
