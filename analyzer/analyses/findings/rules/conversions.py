"""Kernels that compute nothing: conversions of layouts between images' formats, and of types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.rules._kernel_findings import Told, kernels_that, on_kernels
from kanalyze.analyses.findings.rules._kernel_sums import is_compiled, kernel_sums
from kanalyze.analyses.findings.rules._places import launch_before, operator_of
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.findings.rules.attention import attention_chains
from kanalyze.decoder.decode import decode
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.findings.rules._kernel_sums import Chosen, DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Conversions with a smaller part of the kernel time are left out: some are in well-made programs, too.
_WORTH: Final = 0.01


def layout_conversions(report: Report) -> list[Finding]:
    """One finding per device on which cuDNN converts images to the layout of its kernels and back."""
    return [_layouts(report, *one) for one in kernels_that(report, lambda said, _: _is_layout(said), _WORTH)]


def _is_layout(said: KernelName) -> bool:
    return said.library == "cudnn" and said.operation == "layout" and bool(said.layout)


def _layouts(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    remedy = (
        "Keep model and images in channels_last: model.to(memory_format=torch.channels_last), and the same for images "
        "(of videos and volumes: channels_last_3d)."
        if in_pytorch(report)
        else "Give cuDNN tensors in NHWC, the layout of its fastest kernels."
    )
    told = Told(
        "layout-conversions",
        "conversion",
        "of images between NCHW and NHWC by cuDNN (most {0})",
        ". More may be gained without: convolutions, normalizations and what is between them run other kernels on "
        "images in NHWC.",
        remedy,
        "kernels --by operation",
        f"Images change their layout: {percent(chosen.share)} of kernel time",
        "model.to(memory_format=torch.channels_last)" if in_pytorch(report) else "tensors in NHWC",
        left=0.0,
    )
    return on_kernels(report, device, chosen, told)


#: Casts with a smaller part of the kernel time are left out: losses and norms in float32 need some.
_WORTH_CASTING: Final = 0.03

#: Fewer casts than these do not recur.
_FEWEST: Final = 32

#: Types of weights and what is computed with them.
_FLOATS: Final = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def recurring_casts(report: Report) -> list[Finding]:
    """One finding per device whose kernels convert values between types again and again.

    Those of attention that is not fused are left to the finding about that.
    """
    found = []
    for device in kernel_sums(report):
        chosen = device.chosen(_is_cast)
        if _recur(report, chosen) and device.device in (chains := attention_chains(report)):
            chosen = device.without(report, chosen, chains[device.device].get_column("row"))
        if _recur(report, chosen):
            found.append(_casts(report, device, chosen))
    return found


def _recur(report: Report, chosen: Chosen) -> bool:
    return chosen.share >= _WORTH_CASTING and chosen.launches >= max(_FEWEST, per_iteration(report).iterations or 1)


def _is_cast(said: KernelName) -> bool:
    """Whether a kernel of PyTorch copies to another type: one whose input's type only the call tells casts, too."""
    given, made = said.input_types, said.output_type
    return said.library == "aten" and said.operation == "copy" and made in _FLOATS and given != (made,)


def _types_of(chosen: Chosen) -> set[str]:
    """The types from and to which kernels cast, as far as their names say so."""
    said = [decode(name) for name in chosen.rows.get_column("name")]
    return {one.output_type or "" for one in said} | {one for each in said for one in each.input_types}


def _trains(said: KernelName) -> bool:
    """Whether a kernel is one of a training: of an optimizer, or on lists of gradients as it has."""
    return said.family == "optimizer"


def _is_half(chosen: Chosen) -> bool:
    """Whether the program computes with float16, as under autocast, and not with bfloat16."""
    return "f16" in (types := _types_of(chosen)) and "bf16" not in types


def _types(chosen: Chosen) -> str:
    """The types between which the kernels cast: ``between bfloat16 and float32``; of more or fewer it names none."""
    types = _types_of(chosen)
    names = sorted(_FLOATS.get(one, one) for one in types)
    return f"between {names[0]} and {names[1]}" if len(names) == len(("from", "to")) else "from type to type"


def _waited(report: Report, device: DeviceKernels, chosen: Chosen) -> int:
    """Idle time of the device right before casts that begin after it, in ns.

    Of each it counts from the end of the process's launch before, and is no more than in the median: what else the
    host did now and then, such as loading data, is not the cast's.
    """
    if "api" not in report.kinds:
        return 0
    work = exclusive_operations(report, "call_start").filter(chosen.operations(device.device))
    work = work.select("process_id", "start", at="call_start")
    before = launch_before(report, work)
    gaps = idle_spans(report)[device.device].select(since="start", start="end")
    known = work.with_columns(before=before).drop_nulls("before").join(gaps, on="start")
    idle = known.select(ns=pl.col("start") - pl.max_horizontal("since", "before")).filter(pl.col("ns") > 0).to_series()
    median = idle.sort().item(len(idle) // 2) if len(idle) else 0
    return int(idle.clip(upper_bound=median).sum())


#: Which casts autocast makes, and those of attention.
_AUTOCAST: Final = (
    "autocast casts weights of float32 in each forward pass and their gradients back, in any program that uses it: the "
    "larger the batch, the smaller their share."
)
_BESIDE: Final = " Casts of attention that is not fused come on top."


#: Another way, by whether torch.compile made some of the kernels.
_COMPILE: Final = "; torch.compile fuses casts into the kernels around them"
_RUNS_COMPILED: Final = "; these are outside of what torch.compile has fused"


def _casts(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    per, most = per_iteration(report), decode(chosen.longest)
    source, made = (_FLOATS.get(one, one) for one in ((*most.input_types, "")[0], most.output_type or ""))
    to = f"to {made}" + (f" from {source}" if source else "")
    waited, compiled = _waited(report, device, chosen), device.chosen(is_compiled).launches > 0
    half = _is_half(chosen) and not device.chosen(_trains).launches
    weights = "model.half(), or bfloat16 for training" if half else "model.to(torch.bfloat16), for training"
    otherwise = "cast them once" if compiled else "torch.compile(model)"
    around = operator_of(report, chosen.operations(device.device))
    told = Told(
        "recurring-casts",
        "cast",
        f"between types, most {to} ({{0}})",
        f"{f', most in {around}' if around else ''}; the GPU idled {per.time(waited)} until they were launched. "
        f"{_AUTOCAST}{_BESIDE if chosen.but is not None else ''}",
        f"Keep weights in the type that they are used in ({weights} with an optimizer that keeps float32 copies), or "
        f"cast once and reuse{_RUNS_COMPILED if compiled else _COMPILE}.",
        "kernels --by operation",
        per.plural(chosen.launches, "cast", _types(chosen)),
        f"keep weights in {'half precision' if half else 'bfloat16'}, or {otherwise}",
        chosen.ns + waited,
        left=0.0,
    )
    return on_kernels(report, device, chosen, told)


RULES: Final = (layout_conversions, recurring_casts)
