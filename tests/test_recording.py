"""What to do for a report that lacks what is asked for, by the tool that recorded it."""

import pytest

from kanalyze.recording import again

BOTH = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


@pytest.mark.parametrize(
    ("kinds", "tool", "remedy"),
    [
        (["kernel"], "nsys", "Record it again with that trace on: `nsys profile --trace=cuda,nvtx …`."),
        (["memory"], "nsys", "Record it again with that trace on: `nsys profile --cuda-memory-usage=true …`."),
        (["range", "op"], "nsys", "Record it again with that trace on: `nsys profile --trace=cuda,nvtx …`."),
        (["op"], "nsys", f"Record it with torch.profiler, and give its trace: `torch.profiler.profile({BOTH})`."),
        (
            ["python"],
            "nsys",
            f"Record it with torch.profiler, and give its trace: `torch.profiler.profile({BOTH}, with_stack=True)`.",
        ),
        (["kernel", "memcpy"], "torch.profiler", f"Record it again with them on: `torch.profiler.profile({BOTH})`."),
        (["op"], "torch.profiler", f"Record it again with them on: `torch.profiler.profile({BOTH})`."),
        (
            ["memory"],
            "torch.profiler",
            f"Record it again with them on: `torch.profiler.profile({BOTH}, profile_memory=True)`.",
        ),
        (
            ["python"],
            "torch.profiler",
            f"Record it again with them on: `torch.profiler.profile({BOTH}, with_stack=True)`.",
        ),
        (
            ["osrt"],
            "torch.profiler",
            "torch.profiler does not record that; nsys does: `nsys profile --trace=cuda,nvtx,osrt …`.",
        ),
    ],
)
def test_the_remedy(kinds, tool, remedy):
    assert again(kinds, tool) == remedy
