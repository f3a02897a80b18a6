"""What tools record, and what to do for a report that lacks what is asked for."""

import pytest

from kanalyze.tools import TOOLS, again, recorders, tool_of

TRACE_ON, THEM_ON = "Record it again with that trace on: ", "Record it again with them on: "
BY_TORCH = "Record it with torch.profiler, and give its trace: "
BY_NSYS = "torch.profiler does not record that; nsys does: "
BOTH = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


@pytest.mark.parametrize(
    ("kinds", "tool", "remedy"),
    [
        (["kernel"], "nsys", f"{TRACE_ON}`nsys profile --trace=cuda,nvtx …`."),
        (["memory"], "nsys", f"{TRACE_ON}`nsys profile --cuda-memory-usage=true …`."),
        (["range", "op"], "nsys", f"{TRACE_ON}`nsys profile --trace=cuda,nvtx …`."),
        (["op"], "nsys", f"{BY_TORCH}`torch.profiler.profile({BOTH})`."),
        (["python"], "nsys", f"{BY_TORCH}`torch.profiler.profile({BOTH}, with_stack=True)`."),
        (["kernel", "memcpy"], "torch.profiler", f"{THEM_ON}`torch.profiler.profile({BOTH})`."),
        (["op"], "torch.profiler", f"{THEM_ON}`torch.profiler.profile({BOTH})`."),
        (["memory"], "torch.profiler", f"{THEM_ON}`torch.profiler.profile({BOTH}, profile_memory=True)`."),
        (["python"], "torch.profiler", f"{THEM_ON}`torch.profiler.profile({BOTH}, with_stack=True)`."),
        (["osrt"], "torch.profiler", f"{BY_NSYS}`nsys profile --trace=cuda,nvtx,osrt …`."),
    ],
)
def test_the_remedy(kinds, tool, remedy):
    assert again(kinds, tool) == remedy


@pytest.mark.parametrize(
    ("what", "tools"), [("", ("nsys", "torch")), ("kernel", ("nsys", "torch")), ("op", ("torch",)), ("osrt", ("nsys",))]
)
def test_who_records_it(what, tools):
    assert recorders(what) == tools


def test_a_name_in_no_list_has_no_property():
    assert tool_of("torch") is tool_of("torch.profiler") is TOOLS[1]
    assert not any(tool_of("another")[2:])
