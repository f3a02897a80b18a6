"""What is made, loaded, compiled and tuned: contexts, modules, kernels again and again; operations of JAX."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from kanalyze import intervals
from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules import compiling, jax_programs
from kanalyze.analyses.findings.rules.compiling import cold_start, recompiled_kernels, recurring_loading, tuned_again
from kanalyze.analyses.findings.rules.jax_programs import called_in_turn, no_donation, not_jitted, recompilation
from kanalyze.analyses.idle._attribution import host_time
from kanalyze.window import Window
from support.build import MS, again, call, host, in_line, kernel, launched, memcpy, nvtx, overhead, report, timeline
from support.command import REPORTS
from support.measures import assert_told, measures
from support.real_reports import real_report
from support.steps import in_steps, launching

STEP = 100_000
ATTENTION = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_2_64x32x64_4x1x1_cga1x1x1_kernel0_0"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu, std::array<char*, 2ul> >(int)"


def step(number, *, loads=1, name=RELU, later=(ATTENTION,), thread=1):
    """A kernel at once; 40 µs of planning, `loads` of 1 µs each, other kernels at 60 µs, and 30 µs of other work."""
    at = STEP * number
    starts = range(at + 45_000, at + 45_000 + 2_000 * loads, 2_000)
    return [
        *launched(at, at + 2_000, kernel(at + 3_000, at + 10_000, name=name)),
        *(call("cuLibraryLoadData", start, start + 1_000, thread=thread) for start in starts),
        *(
            event
            for place, other in enumerate(later)
            for event in launched(at + 60_000 + place, at + 62_000, kernel(at + 63_000, at + 70_000, name=other))
        ),
    ]


def steps(*loads, more=(), grows=False, **options):
    """Steps with so many loads each; the kernels have one block each, or one more each step."""
    events = [event for number, many in enumerate(loads) for event in step(number, loads=many, **options)]
    events = [replace(event, grid=(1 + grows * event.start // STEP, 1, 1)) for event in events]
    return report([*more, *events]).narrow(window=Window(0, STEP * len(loads), count=len(loads), each="step"))


def test_the_time_around_what_is_loaded_in_each_step():
    """The GPU idles from 10 to 63 µs; the host has launched until 2, and launches from 60 on."""
    of = steps(*[1] * 10, more=[nvtx("attend", STEP * at, STEP * at + 99_000) for at in range(10)])
    (one,) = recurring_loading(of)
    assert (one.rule, one.device, one.at_stake_ns, one.at_most) == ("recurring-loading", 0, 10 * 50_000, False)
    assert one.text == (
        "Kernels are loaded in 10 of 10 steps, 1 time a step, as libraries do that plan anew for each shape, which "
        "load nothing for one that recurs: GPU 0 idles for 50.00 µs a step from the launch before to the one after, of "
        "which the calls that load take 1.000 µs a step. More may follow: the host could run ahead."
    )
    assert one.headline == "Kernels are planned and loaded anew in 10 of 10 steps"
    assert one.action == "pad to a few lengths; sdpa_kernel(SDPBackend.FLASH_ATTENTION)"
    assert one.where == "attend"
    assert measures(one, of) == (500_000, 0, 0, 10 * 58_000)


@pytest.mark.slow
def test_what_other_findings_leave_to_it():
    of = steps(*[1] * 10)
    (rest,) = (other for other in ranked(of) if other.rule == "host-computes")
    assert rest.at_stake_ns == 10 * 30_000
    assert "besides 49.00 µs of which other findings tell" in rest.text
    assert "module-loading" not in {one.rule for one in ranked(of)}


TEN = [1] * 10
KEEP, ONCE = "keep the plans", "plans once, before the loop: cufftPlanMany; cufftExec… in it"
SHAPES = "keep to a few shapes, and run each once before"
PLANNED = "void regular_fft<(unsigned int)240, EPT<(unsigned int)5>>(kernel_arguments_t<unsigned int>)"


@pytest.mark.parametrize(
    ("of", "action"),
    [
        (steps(*TEN, later=(RELU,)), "pad to a few lengths"),
        (steps(*TEN, name="add", later=("add",)), SHAPES),  # without PyTorch it is about shapes
        (steps(*[1, 0] * 5, name="add", later=("add",)), SHAPES),  # half of at least four steps
        (steps(1, 1, 1, 1, name="add", later=("add",)), SHAPES),
        (steps(*TEN, later=(PLANNED,)), "torch.backends.cuda.cufft_plan_cache.max_size: room for every plan"),
        (steps(*TEN, name="cupy_add", later=(PLANNED,)), f"cupy.fft.config.get_plan_cache().set_size(16): {KEEP}"),
        *((steps(*TEN, name="add", later=later), ONCE) for later in ((PLANNED,), ("convert", PLANNED))),
        (steps(*TEN, name="add", later=(*["convert"] * 5, PLANNED)), SHAPES),
        (steps(*TEN, name="add", later=(PLANNED,), grows=True), SHAPES),  # of as many as never before
        (steps(*[1, 0, 0] * 5), None),
        (steps(5, 5, *[0] * 8), None),  # many, but in two of ten
        (steps(1, 1, 1), None),
        (steps(*TEN).whole, None),
        (steps(*TEN).whole.narrow(window=Window(0, 10 * STEP)), None),
        (steps(*TEN, thread=2), None),  # which keeps nobody waiting
    ],
)
def test_half_of_at_least_four_steps(of, action):
    found = recurring_loading(of)
    assert [one.action for one in found] == [action] * bool(action)
    assert [one for one in found if ("dynamic=True" in one.remedy) != one.action.startswith("pad to")] == []


# Loading of modules: how many calls, how long; of a call that made a context first only what it took after that.

FIRST = launched(-3, 0, kernel(0, 5))
LAST = launched(1_000, 1_010, kernel(1_010, 1_020))
LIBRARY = call("cuLibraryLoadData", 20, 70)
THREE = timeline("10-40 cuModuleLoadData; 50-60 cuLibraryLoadData; 70-75 cuModuleLoadData")
ELSEWHERE = call("cuModuleLoadData", 10, 400, process=2)


def made(mark):
    return [LIBRARY, call("cuModuleLoadData", 100, 700), overhead("CUDA context created", mark, mark)]


@pytest.mark.parametrize(
    ("events", "stake", "text"),
    [
        (THREE, 45, "3 calls, the longest 30 ns (most in cuModuleLoadData, cuLibraryLoadData)."),
        # another process does not use the device
        ([*THREE[:1], ELSEWHERE], 30, "1 call, the longest 30 ns (most in cuModuleLoadData)."),
        (made(110), 590 + 50, "2 calls, the longest 590 ns (most in cuModuleLoadData, cuLibraryLoadData)."),
        (made(699), 1 + 50, "2 calls, the longest 50 ns (most in cuLibraryLoadData, cuModuleLoadData)."),
        (made(700), 50, "1 call, the longest 50 ns (most in cuLibraryLoadData)."),
    ],
)
def test_calls_that_load(events, stake, text):
    (one,) = [one for one in cold_start(report([*FIRST, *events, *LAST])) if one.rule == "module-loading"]
    assert (one.at_stake_ns, one.text) == (stake, f"Loading modules and libraries: {text}")


LONG = 1_000_000


def compiles(at):
    return [nvtx("_compile.compile_inner (dynamo_timed)", at, at + 800_000), *launch(at + 850_000)]


def launch(at, name="triton_poi_fused_add_0"):
    return launched(at, at + 5000, kernel(at + 6000, at + 10_000, name=name))


def transforms(at):
    """A convolution of twelve kernels, as one by transforms."""
    many = again(range(at, at + 240_000, 20_000), *launch(0, "cudnn_conv"))
    return [host("op", "aten::cudnn_convolution", at - 50, at + 250_000), *many]


def tries(at):
    """One that waits for what it times."""
    return [*transforms(at), call("cudaEventSynchronize", at + 240_000, at + 245_000)]


RECORDS = (("cudaStreamBeginCapture", 0, 100), ("cudaStreamEndCapture", 500, 600), ("cudaGraphInstantiate", 700, 900))


def records(at, *more):
    """A graph that is captured, instantiated and launched."""
    calls = (*RECORDS, *(more or (("cudaGraphLaunch", 910, 920),)))
    return [*(call(name, at + low * 1000, at + high * 1000) for name, low, high in calls), *launch(at + 950_000)]


@cache
def parts_of_steps(part, every):
    parts = [(launch, part)[number % every == 0](number * LONG + 100) for number in range(8)]
    torch = [host("op", "aten::mm", 0, 1), *launch(10, "void at::native::k()")]
    made = report([*torch, *(event for events in parts for event in events)])
    return compiling.recompilation(made.narrow(window=Window(0, 8 * LONG, count=8, each="step")))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (compiles, "The program compiles 1 time a step, not only at its start: GPU 0 idles"),
        (records, "The program records and instantiates CUDA graphs 1 time a step, not only at its start"),
        (tries, "The program runs a convolution with many algorithms 1 time a step"),
    ],
)
def test_compiled_all_along_and_not_once(part, said):
    (one,) = parts_of_steps(part, 1)
    assert (one.rule, one.text.startswith(said)) == ("recompilation", True)
    assert parts_of_steps(part, 8) == parts_of_steps(transforms, 1) == []
    assert parts_of_steps(lambda at: records(at, ("cudaGraphUpload", 910, 920)), 1) == []  # launched later


#: Of a layer: what JAX calls its operations.
OPERATIONS = ("jit_multiply", "jit_add", "jit_tanh", "jit__mean")


def module(at, name, *kernels):
    """A module that runs from `at` on for 20 µs, and launches kernels of 2 µs."""
    events = [nvtx(f"XlaModule:#hlo_module={name},program_id=7#", at, at + 20_000, domain="TSL")]
    for place, kind in enumerate(kernels):
        start, ran = at + 1_000 * place, at + 2_000 + 2_500 * place
        events += launched(start, start + 900, kernel(ran, ran + 2_000, name=kind), "cuLaunchKernelEx")
    return events


def one_by_one(names, apart=100_000, kernels=("loop_add_fusion",)):
    return [event for place, name in enumerate(names) for event in module(apart * place, name, *kernels)]


def test_operations_one_by_one_are_told_with_the_idle_time_between_them():
    of = report(one_by_one(OPERATIONS * 5))
    (finding,) = not_jitted(of)
    assert finding.headline == "19 operations run one by one, without jax.jit"
    assert finding.at_stake_ns == 19 * (100_000 - 2_000) - 16_000  # the first module ends 16 µs after its kernel
    assert finding.claims.height == 19
    change = finding.change(of)
    assert change.graph
    assert len(change.gone) == 19  # elementwise kernels become one


def compiled(*names):
    """Modules that are compiled for 1 ms each, and then run."""
    events = []
    for at, name in zip(range(0, 2_000_000 * len(names), 2_000_000), names, strict=True):
        events.append(nvtx(f"XlaCompile:#module={name}#", at, at + 1_000_000, domain="TSL"))
        events += module(at + 1_100_000, name, "loop_add_fusion")
    return events


def copied(bytes_moved, copy_ns, turns=1):
    """Steps of a module that copies an array within the GPU's memory and multiplies, perhaps in turns of a loop."""
    events, keys = [], {"direction": "Device-to-Device", "size_bytes": bytes_moved}
    for turn, at in enumerate(range(0, 1_000_000, 100_000 // turns)):
        end = at + 1_000 + copy_ns // turns
        if turn % turns == 0:
            events.append(nvtx("XlaModule:#hlo_module=jit_step,program_id=7#", at, at + 99_000, domain="TSL"))
        events.append(nvtx("TSL:Thunk:#hlo_op=copy.3#", at + 100, at + 900, domain="TSL"))
        events += launched(at + 200, at + 800, memcpy(at + 1_000, end, **keys), "cuMemcpyDtoDAsync_v2")
        events.append(kernel(end, end + 10_000, name="loop_dynamic_update_slice_fusion"))
    return events


OTHER = [kernel(at, at + 10, name="add(int)") for at in range(0, 10_000, 1_000)]


@pytest.mark.parametrize(
    ("rule", "events", "stakes", "words"),
    [
        # but for kernel and launch
        (recompilation, compiled(*["jit_step"] * 6), [5 * 1_997_100], ("XLA compiles jit_step anew 5 times",)),
        (recompilation, compiled("jit_a", "jit_b", "jit_c", "jit_d", "jit_a"), [], ()),
        (not_jitted, one_by_one(["jit_step"] * 20, kernels=("loop_add_fusion",) * 8), [], ()),  # a compiled step
        (not_jitted, one_by_one(["jit__threefry_split", "jit_step"] * 10), [], ()),  # a few operations beside it
        (not_jitted, one_by_one(OPERATIONS * 5, apart=5_000_000), [], ()),
        # to choose kernels
        (not_jitted, [nvtx("XlaCompile:#module=jit_a#", 0, 9**9, thread=2), *one_by_one(OPERATIONS * 5)], [], ()),
        (no_donation, copied(1 << 26, 50_000), [10 * 50_000], ()),
        (no_donation, copied(1 << 26, 50_000, turns=5), [], ()),  # of a loop in the module
        (no_donation, copied(1 << 10, 50_000), [], ()),
        (no_donation, copied(1 << 20, 100), [], ()),
        *((rule, OTHER, [], ()) for rule in (not_jitted, recompilation, no_donation, jax_programs.numbers_read)),
    ],
)
def test_programs_of_jax(rule, events, stakes, words):
    of = report(events)
    assert_told(rule(of), stakes, *words)
    assert all(len(one.change(of).gone) == (10 if rule is no_donation else 0) for one in rule(of))


@pytest.mark.parametrize(("turns", "blocks", "told"), [(40, 4, 1), (20, 4, 0), (40, 4000, 0)])
def test_turns_of_a_loop_of_jax_leave_the_gpu_empty(turns, blocks, told):
    events = [nvtx("XlaModule:#hlo_module=jit_f,program_id=1#", 0, 2 * 10**6, domain="TSL")]
    for begun in (0, 1_000_000):
        events.append(nvtx(f"Thunk:#hlo_op=while.{begun}#", begun, begun + 900_000, domain="TSL"))
        for turn, name in product(range(turns), ("loop_add_fusion", "input_reduce_fusion")):
            at = begun + 20_000 * turn + (10_000 if name == "loop_add_fusion" else 0)
            ran = kernel(at + 5000, at + 8000, name=name, grid=(blocks, 1, 1), block=(256, 1, 1))
            events += launched(at, at + 4000, ran)
            events.append(nvtx(f"Thunk:#name=jit(f)/while/body,hlo_op={name}#", at, at + 4500, domain="TSL"))
    of = report(events, limits={"sm_count": 100, "max_warps_per_sm": 64, "threads_per_warp": 32})
    found = list(jax_programs.loops_of_jax(of))
    assert [one.headline for one in found] == ["40 turns of a loop of jax.lax run one after the other"] * told
    assert [len(one.change(of).gone) for one in found] == [2 * (2 * turns - 2)] * told
    assert [one.at_stake_ns for one in found] == [2 * (20_000 * turns - 7_000)] * told


def in_turn(*names, times=8, last="jit_stack"):
    """Modules one after the other, again and again, then a last one and a step."""
    return [
        event
        for place, name in enumerate([*names * times, last, "jit_descend"])
        for event in module(100_000 * place, name, *["loop_add_fusion"] * (4 if name == "jit_score" else 1))
    ]


def test_a_function_that_is_called_for_one_part_after_the_other():
    of = report(in_turn("jit_dynamic_slice", "jit_squeeze", "jit_score"))
    (finding,) = called_in_turn(of)
    assert finding.rule == "repeated-work"
    assert finding.headline == "jit_score runs for one part after the other, 8 times"
    change = finding.change(of)
    assert (len(change.gone), change.host.height) == (4 + 7 * 6 - 6, 7)  # the first one's slice is before all calls
    assert not_jitted(of) == []


@pytest.mark.parametrize(
    ("events", "told"),
    [
        # a loop over an array takes its parts at once
        (in_turn("jit_descend", "jit__unstack", *["jit_score"] * 8, "jit_stack", times=1), 1),
        (in_turn("jit_dynamic_slice", "jit_score", times=6), 0),  # a few times
        (in_turn("jit_score", times=12), 0),  # no parts are taken
        (in_turn("jit_dynamic_slice", "jit_score", times=12, last="jit_log"), 0),  # nothing is put together
    ],
)
def test_what_is_called_for_parts_in_turn(events, told):
    said = "jit_score runs for one part after the other, 8 times"
    assert [one.headline for one in called_in_turn(report(events))] == [said] * told


CALLS = in_turn("jit_log", "jit_score", times=16)


def moved(direction, size_bytes):
    """A copy in each second call."""
    copy = memcpy(62_000, 63_000, direction=direction, size_bytes=size_bytes)
    return [*CALLS, *again(range(0, 3_200_000, 200_000), *launched(60_000, 61_000, copy, "cuMemcpyAsync"))]


@pytest.mark.parametrize(
    ("events", "loops", "told"),
    [
        (CALLS, 2, 1),
        (CALLS, 3, 0),  # five calls an iteration
        (CALLS, 0, 0),  # which may be the iterations
        (in_turn("jit_score", "jit_log", "jit_exp", times=16), 2, 0),  # of many modules
        (moved("Device-to-Host", 4), 2, 0),  # a value of each second one is read
        (moved("Host-to-Device", 4096), 2, 0),  # an array is sent
        (moved("Host-to-Device", 4), 2, 1),  # a number is an argument
        (in_turn("jit_dynamic_slice", "jit_score", times=16), 2, 0),  # for parts
    ],
)
def test_a_compiled_function_that_a_loop_calls(events, loops, told):
    """Two are called 16 times in two iterations, from the end of the call before; of 31 one of 15 stays."""
    of = in_steps(events, loops, 5_000_000)
    findings = list(jax_programs.called_again(of))
    assert [one.headline for one in findings] == ["jit_score is called by a loop, 8 times a step"] * told
    assert [one.change(of).host.height for one in findings] == [28] * told


@pytest.mark.parametrize(
    ("size", "step_ns", "rule"),
    [(4, 4_000_000, "blocking-read"), (4096, 100_000, "blocking-read"), (4096, 4_000_000, "cpu-operators")],
)
def test_arrays_that_the_host_reads_are_worked_on_there_where_it_takes_long(size, step_ns, rule):
    read = memcpy(32_000, 34_000, direction="Device-to-Host", size_bytes=size)
    step = [*module(0, "jit_step", "loop_add_fusion"), *launched(30_000, 31_000, read, "cuMemcpyDtoHAsync")]
    (finding,) = jax_programs.numbers_read(report(again(range(0, 6 * step_ns, step_ns), *step)))
    assert finding.rule == rule


def test_numbers_that_the_host_reads_one_by_one():
    """The GPU idles from each copy's launch until the next one; the copy after the last launch ends no wait."""
    read = memcpy(32_000, 34_000, direction="Device-to-Host", size_bytes=4)
    step = [*module(0, "jit_step", "loop_add_fusion"), *launched(30_000, 31_000, read, "cuMemcpyDtoHAsync")]
    of = report(again(range(0, 600_000, 100_000), *step))
    (finding,) = jax_programs.numbers_read(of)
    assert (finding.rule, finding.headline) == ("blocking-read", "5 values read by the host (float(x), .item())")
    assert finding.at_stake_ns == 5 * (70_000 - 2_000)
    assert len(finding.change(of).gone) == 5


def staged(thread=9, memory="Pinned", bytes_moved=40_000_000, copies=1, line=None):
    """Modules of 5 ms, in which a thread copies arrays from 4.5 ms on, each for 0.2 ms.

    In each the thread that launches is in a line of the program from a time on, for another one.
    """
    step = module(0, "jit_update", "loop_add_fusion")
    for at in range(4_500_000, 4_500_000 + copies * 200_000, 200_000):
        copy = memcpy(at, at + 200_000, size_bytes=bytes_moved, side={"source_memory": memory})
        step += launched(4_400_000, 4_410_000, copy, "cuMemcpyHtoDAsync_v2", thread=thread)
    starts = range(0, 55_000_000, 5_000_000)
    lines = [in_line(at + line[0], at + sum(line), 3, "f(weights)") for at in starts] if line else []
    return in_steps(again(starts, *step), 10, 5_000_000, source_lines=lines)


def test_arrays_of_the_host_that_jax_puts_into_pinned_memory_first():
    """To fill 40 MB takes 4 ms, from 0.4 ms on, when the GPU has nothing to do."""
    (finding,) = jax_programs.staged_arrays(staged())
    assert (finding.rule, finding.at_stake_ns) == ("pageable-copy", 10 * (4_100_000 + 200_000))
    assert "1 large copy a step to the GPU, 400.0 MB in all" in finding.text
    assert len(finding.change(staged()).gone) == 10


@pytest.mark.parametrize(
    ("copies", "line", "idle_ns"),
    [
        (1, (2_000_000, 3_100_000), 2_500_000),  # before the line the program does work of its own
        (1, (300_000, 4_800_000), 3_100_000),
        (2, None, 3_100_000),  # threads fill at once: twice as fast
        (2, (250_000, 4_900_000), 4_250_000),  # all that the line does
        (2, (250_000, 4_500_000), 3_100_000),  # a line that launches nothing does work of its own
    ],
)
def test_the_time_that_jax_fills_pinned_memory(copies, line, idle_ns):
    """To fill 30 MB takes a thread 3 ms; that which launches waits for all of it in a line that launches."""
    (finding,) = jax_programs.staged_arrays(staged(bytes_moved=30_000_000, copies=copies, line=line))
    assert finding.at_stake_ns == 10 * (idle_ns + copies * 200_000)


@pytest.mark.parametrize("how", [{"thread": 1}, {"memory": "Pageable"}, {"bytes_moved": 4_000}], ids=str)
def test_copies_of_jax_that_are_not_such(how):
    """On the thread that launches; of memory that CUDA itself puts aside, which `pageable_copy` tells; small ones."""
    assert jax_programs.staged_arrays(staged(**how)) == []


OF_TORCH = kernel(0, 10, name="void at::native::fill(int)")


def compiling_steps(*names, before=OF_TORCH, after=(), between=None):
    """A step of 1 ms for each kernel, which is loaded after 0.5 ms of the program's own code.

    A kernel `between` is the first that is launched after what is loaded.
    """
    events = [before]
    for place, name in enumerate(names):
        at = 1_000_000 * place + 501_000
        events.append(call("cuModuleLoadData", at, at + 10_000))
        own = kernel(at + 110_000, at + 200_000, name=name)
        events += launched(at + 100_000, at + 105_000, own, "cuLaunchKernelEx")
        if between:
            first = kernel(at + 30_000, at + 40_000, name=between)
            events += launched(at + 20_000, at + 25_000, first, "cuLaunchKernel")
    return report([*events, *after])


def tuned(passes, *, runs=30, again=True, waits=()):
    """Passes of 10 ms in each of which, or in the first alone, kernels are timed as an autotuner does."""
    events = []

    def launches(at, name, **shape):
        return launched(at, at + 5_000, kernel(at + 6_000, at + 50_000, name=name, **shape))

    for begin in range(0, 10_000_000 * passes, 10_000_000):
        events.append(nvtx("step", begin, begin + 10_000_000))
        for at in range(begin, begin + 200_000 * runs * (again or not begin), 200_000):
            for step, (name, grid) in enumerate([("void at::native::FillFunctor<int>(int)", 65_536), ("gate", 512)]):
                begun = at + 60_000 * step
                events += launches(begun, name, grid=(grid, 1, 1), block=(128, 1, 1))
                events += [call("cudaEventRecord", begun + 6_000, begun + 7_000)] * (1 + step)
        events += [call("cudaDeviceSynchronize", begin + at, begin + at + 100_000) for at in waits]
        events += launches(begin + 9_000_000, "gate", grid=(512, 1, 1))
    return report(events).narrow(window=Window(0, 10_000_000 * passes, "steady", count=passes, each="step"))


OF_CUPY = kernel(0, 10, name="cupy_copy__float32_float32")
CALM = [kernel(40_000_000 + 10_000 * place, 40_005_000 + 10_000 * place, name="dropout") for place in range(9)]
CONSTANT = ("Compiled anew 11 times: {0}", "an ordinary argument in place of tl.constexpr; do_not_specialize")
KEYS = ("Autotuned again in 6 of 6 steps: {0}", "@triton.autotune(…, key=[…]) of few values: sizes in buckets")
IN_FEW_STEPS = compiling_steps(*["dropout"] * 12).narrow(window=Window(0, 12_000_000, "steady", count=48, each="step"))


@pytest.mark.parametrize(
    ("rule", "of", "stakes", "words"),
    [
        (recompiled_kernels, compiling_steps(*["dropout"] * 12), [11 * 905_000], CONSTANT),
        (recompiled_kernels, compiling_steps(*["scale"] * 12, before=OF_CUPY), [11 * 905_000], ("compile once",)),
        # a library's plan, before whose kernels nothing of the program runs
        (recompiled_kernels, compiling_steps(*["scale"] * 12, before=OF_CUPY, between=PLANNED), [], ()),
        (recompiled_kernels, compiling_steps("a", "b", "c", "d", "e", "f"), [], ()),
        (recompiled_kernels, compiling_steps(*["a", "b"] * 2), [], ()),  # a few shapes
        (recompiled_kernels, compiling_steps(*["void cutlass::Kernel2<int>(int)"] * 12), [], ()),
        (recompiled_kernels, compiling_steps(*["step(float *)"] * 12, before=kernel(0, 10, name="init(X)")), [], ()),
        (recompiled_kernels, compiling_steps(*["dropout"] * 8, after=CALM), [], ()),  # at the start alone
        # in few of the iterations, all along
        (recompiled_kernels, IN_FEW_STEPS, [11 * 905_000], ("an ordinary argument in place of tl.constexpr",)),
        (tuned_again, tuned(6), [6 * (29 * 200_000 + 110_000)], KEYS),
        # with the waits right before and after it, but not those beyond another launch, or without any between
        (tuned_again, tuned(6, waits=[6_000_000, 9_200_000, 9_700_000]), [5 * 300_000 + 6 * 6_100_000], KEYS),
        (tuned_again, tuned(6, runs=60, again=False), [], ()),  # chosen once
    ],
)
def test_kernels_that_are_compiled_or_tuned_again(rule, of, stakes, words):
    found = [one._replace(text="") for one in rule(of)]
    assert [one.at_stake_ns for one in found] == stakes
    assert [word for word in words if word not in f"{found[0].headline} {found[0].action}"] == []


EVENTS = timeline("0-10 cudaGetDeviceCount; 600-601 !CUDA context created; 602-610 cudaFree; 601-700 [set {up}]")
EVENTS += [*launching(700, 800), *launching(900, 1000)]


def told(of, rule):
    return [found for found in ranked(of) if found.rule == rule]


def test_the_making_of_a_context_is_not_the_programs_own_code():
    (one,) = told(report(EVENTS), "host-computes")
    assert one.at_stake_ns == 1 + 80 + 90
    assert one.text.format(*one.names) == (
        "GPU 0 idle while the program runs its own code, in no CUDA call: 17.1 % of the window, besides 590 ns of "
        "which other findings tell. Most between launches: 90 ns; in set {up}: 81 ns. The "
        "longest stretch is 90 ns, from 800 ns on. More may follow: the host could run ahead."
    )


ALONE = report([call("cudaGetDevice", 0, 1), overhead("CUDA context created", 689, 691), *launching(701, 800)])
OF_CALLS = "1 CUDA context was made outside of all recorded calls (at 600 ns, between cudaGetDeviceCount and cudaFree)."
PAGES = " Part of it may be 241 page faults of the CPU on managed memory. "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "rule", "stakes", "words"),
    [
        (report(EVENTS), "unrecorded-context", [590], (OF_CALLS, "Up to 590 ns of what counts as host is this.")),
        (ALONE, "host-computes", [], ()),  # nothing is left of the program's own code
        (ALONE, "unrecorded-context", [688], ()),
        (report(EVENTS).narrow(window=Window(620, 1000)), "unrecorded-context", [], ()),
        (real_report(REPORTS / "thrash.sqlite"), "host-computes", None, (PAGES,)),
    ],
)
def test_the_context_is_said_with_the_calls_around_it(of, rule, stakes, words):
    found = told(of, rule)
    assert_told(found, [one.at_stake_ns for one in found] if stakes is None else stakes, *words)


@pytest.mark.parametrize(
    ("seen", "since"),
    [
        ([], 10),
        ([nvtx("before", 0, 40 * MS)], 40 * MS),
        ([nvtx("around", 30 * MS, 900 * MS)], 30 * MS),
        ([nvtx("after", 200 * MS, 900 * MS)], 10),
        ([nvtx("of another thread", 0, 40 * MS, thread=2)], 10),
        ([overhead("dlopen(libcudnn.so.9)", 50 * MS, 60 * MS)], 60 * MS),
        ([overhead("dlopen(libcuda.so.1)", 50 * MS, 60 * MS)], 10),  # which the driver opens itself
        ([overhead("CUPTI Resource Management", 50 * MS, 60 * MS)], 10),  # nor is this the program's doing
        ([host("op", "aten::empty", 20 * MS, 800 * MS)], 20 * MS),
    ],
)
def test_a_context_is_made_up_to_the_profilers_word_and_not_to_the_next_call(seen, since):
    """1.5 s without a call, of which the first 113 ms are a context's: the rest is the program's own code."""
    made = 113 * MS
    mark = overhead("CUDA profiling data flush on context created", made, made + MS)
    events = [call("cudaGetDevice", 0, 10), mark, *launching(1_500 * MS, 1_600 * MS), *seen]
    inside = sum(min(one.end, made) - one.start for one in seen if one.kind == "overhead" and since == 10)
    of = report(events)
    assert intervals.length(host_time(of)[0].unrecorded) == made - since - inside
    (one,) = told(of, "host-computes")
    assert one.at_stake_ns > 1_380 * MS


RESUMED = "Layer.torch_dynamo_resume_in_forward_at_38"


def broken(function, times=3, *, graphs=False):
    """Steps of 100 µs, in which a function runs, goes on as another one so many times, and has the GPU work twice."""
    launches = [launched(at, at + 1_000, kernel(at + 2_000, at + 7_000)) for at in (5_000, 75_000)]
    if graphs:
        launches.append([call("cudaGraphLaunch", 90_000, 91_000)])
    starts = range(0, 1_000_000, 100_000)
    lines = []
    for at in starts:
        lines += [in_line(at, at + 10_000, 33, function="Layer.forward"), in_line(at + 70_000, at + 90_000, 72)]
        for place in range(times):
            begun = at + 10_000 + 20_000 * place
            lines.append(in_line(begun + 10_000, begun + 20_000, 38, function=function))
            lines.append(in_line(begun, begun + 10_000, 33, function="Layer.forward"))
    return in_steps(again(starts, *(event for events in launches for event in events)), 10, 100_000, source_lines=lines)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_compiled_function_that_goes_on_in_python(graphs):
    """The GPU idles in it but for 5 of 70 µs; its lines are all of the host's time that is spared."""
    of = broken(RESUMED, graphs=graphs)
    (finding,) = compiling.graph_breaks(of)
    assert finding.headline == "A compiled function goes on in Python 3 times a step"
    assert (finding.where, finding.at_stake_ns) == ("a.py:38", 10 * 65_000)
    change = finding.change(of)
    assert (change.graph, intervals.length(intervals.union(change.host.select("start", "end")))) == (
        graphs,
        10 * 70_000,
    )


@pytest.mark.parametrize(("function", "times"), [("Layer.forward", 3), (RESUMED, 0)])
def test_functions_that_are_whole(function, times):
    assert compiling.graph_breaks(broken(function, times)) == []
