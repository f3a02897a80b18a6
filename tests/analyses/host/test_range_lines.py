"""Which range a thread was in, whose its Python functions are, and names of host time: by hand."""

import re
from pathlib import Path

import polars as pl
import pytest

from kanalyze.analyses.host._range_lines import roles
from kanalyze.analyses.idle.culprits import culprits
from support.build import call, host, kernel, nvtx, report, timeline
from support.real_reports import real_report


def role_of(name):
    return roles(pl.Series([name], dtype=pl.Categorical)).select("role", pl.col("shown").cast(pl.String)).row(0)


#: Names of functions by whose they are, and as they are shown where what differs between runs is left out.
ROLES = """
program
    train.py(31): step; mine/data/loader.py(5): __getitem__; transformers/trainer.py(5): train
    /home/me/work/train.py(5): main; C:/Users/me/train.py(5): main; train.py(5): wrapper
    <ipython-input-3-ab>(5): <module>; <stdin>(1): <module>; profile.py(3): main
    /opt/lib/python3.10/site-packages/mine/x.py(5): f = mine/x.py(5): f

library
    torch/_tensor.py(576): backward; contextlib.py(132): __enter__; json/decoder.py(1): decode
    <frozen os>(12): fspath; <string>(1): __init__; <eval_with_key>.16(3): forward
    /var/torchinductor_me/ys/cys3.py(23): call; /usr/lib/python3.10/threading.py(1): run
    <built-in function sleep>; <built-in method append of MyList object>
    <built-in method item of Tensor object at 0x7f6f8d0ff8e0> = <built-in method item of Tensor object>
    /opt/lib/python3.10/site-packages/torch/x.py(5): f = torch/x.py(5): f

passing
    <built-in function isinstance>; <built-in method append of list object>
    torch/nn/modules/module.py(1783): _call_impl; torch/utils/_contextlib.py(120): decorate_context
    <built-in method get of dict object at 0x7f6f> = <built-in method get of dict object>

module
    nn.Module: Linear_0; Python GC
"""


@pytest.mark.parametrize("block", ROLES.strip().split("\n\n"), ids=lambda block: block.partition("\n")[0])
def test_whose_functions_are_and_how_they_are_shown(block):
    role, *names = re.split(r"; |\n\s+", block)
    for name, _, shown in (name.partition(" = ") for name in names):
        assert role_of(name) == (role, shown or name)
    assert role_of(None) == ("library", None)


REPORTS = Path(__file__).parents[2] / "reports" / "torch"


def op(name, start, end, **keys):
    return host("op", name, start, end, **keys)


def waiting(*events):
    """A device that is idle from 10 to 100, while thread 1 does what `events` say, and launches at the end."""
    work = [call("cudaLaunchKernel", 0, 5, correlation=1), kernel(5, 10, correlation=1)]
    return report([*events, *work, call("cudaLaunchKernel", 100, 105, correlation=2), kernel(105, 110, correlation=2)])


def host_time(of):
    """Culprit, range and nanoseconds of the host."""
    return culprits(of).filter(pl.col("bucket") == "host").select("culprit", "range", "ns").rows()


#: By block: what it shows; events of the waiting thread; and after = time by culprit, and the range after @.
HOST_TIMES = """
the innermost operator names the time
    5-95 [forward]; 20-60 op:aten::to; 30-40 op:aten::copy_
    = 45 forward @forward; 30 aten::to @forward; 10 aten::copy_ @forward; 5 between forward and cudaLaunchKernel

it is told with the function of the program around it
    0-120 python:train.py(1): main; 20-90 python:train.py(31): step ^0; 30-80 python:torch/functional.py(2): relu ^1
    40-70 op:aten::relu
    = 30 aten::relu in train.py(31): step; 20 torch/functional.py(2): relu in train.py(31): step
      20 train.py(1): main; 20 train.py(31): step

what passes a call on is not named
    0-120 python:train.py(31): step; 10-60 python:torch/nn/modules/module.py(9): _call_impl ^0
    15-60 python:nn.Module: Net_0 ^1; 20-55 python:mine/net.py(3): forward ^2
    60-70 python:<built-in function len> ^0; 70-100 python:torch/optim/optimizer.py(5): wrapper ^0
    75-100 python:torch/optim/sgd.py(8): step ^5
    = 35 mine/net.py(3): forward; 25 torch/optim/sgd.py(8): step in train.py(31): step; 20 train.py(31): step
      10 nn.Module: Net_0 in train.py(31): step

without the programs own functions the innermost one counts
    0-120 python:torch/utils/data/_utils/pin_memory.py(1): _pin
    20-90 python:<built-in method acquire of _thread.lock object at 0x7f00> ^0
    = 70 <built-in method acquire of _thread.lock object>; 20 torch/utils/data/_utils/pin_memory.py(1): _pin

a step of the profiler names nothing and is one range for all
    0-60 [ProfilerStep#7]; 60-120 [ProfilerStep#8]; 0-30 op:aten::mm; 90-99 op:aten::add
    = 60 between aten::mm and aten::add @ProfilerStep*; 20 aten::mm @ProfilerStep*; 9 aten::add @ProfilerStep*
      1 between aten::add and cudaLaunchKernel @ProfilerStep*

a caller that calls itself is no trouble
    0-120 python:<built-in function len> ^0; 10-110 python:torch/a.py(3): f ^0
    = 90 torch/a.py(3): f
"""


@pytest.mark.parametrize("block", HOST_TIMES.strip().split("\n\n"), ids=lambda block: block.partition("\n")[0])
def test_names_of_host_time(block):
    events, _, expected = block.partition("\n")[2].partition("\n    = ")
    found = host_time(waiting(*timeline(events)))
    told = [f"{ns} {culprit}{f' @{around}' if around else ''}" for culprit, around, ns in found]
    assert told == re.split(r"; |;?\n\s+", expected)


def test_of_things_that_last_as_long_an_annotation_is_at_the_side_then_the_first_operator():
    times = [(60, 70), (90, 99), (75, 85)]  # they are to be sorted
    together = [op(f"aten::op{number}", *times[number % 3]) for number in range(300)]
    found = host_time(waiting(op("aten::to", 10, 50), *together))
    assert ("between aten::to and aten::op0", None, 10) in found
    found = host_time(waiting(op("aten::to", 10, 50), *together, nvtx("forward", 60, 70)))
    assert ("between aten::to and forward", None, 10) in found


def test_a_pause_to_collect_garbage_is_found_in_the_function_that_it_stopped():
    longest = culprits(real_report(REPORTS / "gc_pauses.json.gz")).filter(pl.col("ns") == pl.col("ns").max())
    (culprit,) = longest.get_column("culprit")
    assert culprit.startswith("Python GC in ")
