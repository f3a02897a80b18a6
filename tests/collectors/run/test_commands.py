"""The commands of a run as data: what is built for which wish, without a tool in sight."""

import shlex
from pathlib import Path

import pytest

from kanalyze.collectors.base.errors import BadOptionError
from kanalyze.collectors.base.options import Options, checked
from kanalyze.collectors.base.process import Step
from kanalyze.collectors.base.programs import Program
from kanalyze.collectors.base.workload import Workload
from kanalyze.collectors.run.plan import RUNNER, Plan, script
from kanalyze.collectors.tools import ncu, nsys, nvcc
from kanalyze.collectors.tools.found import Tools
from kanalyze.collectors.tools.launches import Selection
from kanalyze.collectors.tools.machine import Gpus
from kanalyze.errors import KanalyzeError, UnknownNameError

TRACE = [
    *("--trace=cuda,nvtx", "--cuda-graph-trace=node", "--cuda-um-cpu-page-faults=true"),
    *("--cuda-um-gpu-page-faults=true", "--sample=none", "--cpuctxsw=none"),
]
NOWHERE = Tools(Gpus(Program("nvidia-smi")), Program("nvcc"), Program("nsys"), Program("ncu"), Path("/usr/bin/python3"))
SCRIPT = Workload("train", "python", Path("/w/train.py"), ("--lr", "0.1"), (), ("/w/train.py",))
CUDA = Workload("add", "cuda", Path("/w/add.cu"), ("a b", "it's", "$HOME"))


# nvcc


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ([], ["-arch=native"]),
        (["sm_90"], ["-arch=sm_90"]),
        (["9.0"], ["-arch=sm_90"]),
        (["90a"], ["-arch=sm_90a"]),
        (["90", "sm_90", "compute_90"], ["-arch=sm_90"]),
        (
            ["sm_80", "9.0"],
            [f"-gencode=arch=compute_{code}" for code in ("80,code=sm_80", "90,code=sm_90", "90,code=compute_90")],
        ),
    ],
)
def test_architectures_become_flags_of_nvcc(arch, flags):
    assert list(nvcc.arch_flags(arch)) == flags


def test_a_source_is_compiled_with_its_lines_and_the_user_s_flags():
    command = nvcc.command("nvcc", Path("/w/-x.cu"), Path("/b/-x"), ["90"], ["-O3", "-DA=a b"], Path("/b/depends"))
    assert list(command) == [
        *("nvcc", "-lineinfo", "-arch=sm_90", "-O3", "-DA=a b"),
        *("-MD", "-MF", "/b/depends", "-o", "/b/-x", "/w/-x.cu"),
    ]


def test_the_files_of_a_dependency_file():
    text = "/b/x : /w/a\\ b.cu \\\n    /usr/include/stdio.h /w/c$$d.h \\\n /w/last.h\n"
    assert nvcc.dependencies(text) == ["/w/a b.cu", "/usr/include/stdio.h", "/w/c$d.h", "/w/last.h"]


def test_errors_of_nvcc_host_compiler_and_linker_are_told_from_the_rest():
    said = [
        "a.cu(3): warning #177-D: variable was declared but never referenced",
        "a.cu(4): error: expected a ;",
        "1 error detected in the compilation",
        "a.cu:9:10: fatal error: no.h: No such file or directory",
        "a.cu(7): error #20: identifier is undefined",
        "tmpxft.cpp:(.text+0x1): undefined reference to `f()'",
        "nvcc fatal   : Unsupported gpu architecture 'compute_10'",
    ]
    assert nvcc.errors(said) == [said[1], said[3], said[4], said[5], said[6]]


# nsys


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (Options(), []),
        (
            Options(range_name="a@b"),
            [
                *("--capture-range=nvtx", r"--nvtx-capture=a\@b"),
                *("--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0", "--capture-range-end=stop"),
            ],
        ),
        (Options(cuda_profiler_api=True), ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]),
        (Options(delay_s=2, duration_s=0.5), ["--delay=2", "--duration=1"]),
    ],
)
def test_nsys_records_all_of_a_run_or_a_part(options, flags):
    command = nsys.profile("nsys", Path("/c/nsys"), options, ("/b/add", "a b"))
    assert list(command) == ["nsys", "profile", *TRACE, *flags, "--output=/c/nsys", "/b/add", "a b"]


def test_further_flags_of_nsys_replace_ours():
    options = Options(nsys_flags=("--trace=osrt", "--stats=true", "-s", "cpu"))
    command = nsys.profile("nsys", Path("/c/nsys"), options, ("/b/add",))
    ours = [flag for flag in TRACE if not flag.startswith(("--trace", "--sample"))]
    theirs = ["--trace=osrt", "--stats=true", "-s", "cpu"]
    assert list(command) == ["nsys", "profile", *ours, "--output=/c/nsys", *theirs, "/b/add"]


# ncu


def test_ncu_profiles_what_was_selected_and_further_flags_replace_ours():
    selection = Selection((), ("--kernel-name-base", "mangled", "--kernel-id", "::_Z1a:2"))
    options = Options(ncu_flags=("--set", "basic", "--kernel-id=::b:1"))
    assert list(ncu.profile("ncu", Path("/c/ncu"), options, selection, ("/b/add",))) == [
        *("ncu", "--import-source", "yes", "--target-processes", "all", "--clock-control", "base"),
        *("--kernel-name-base", "mangled", "--export", "/c/ncu", "--set", "basic", "--kernel-id=::b:1", "/b/add"),
    ]
    selection = Selection(("_Z1a",), ("--kernel-id", "::_Z1a:2"))
    command = ncu.profile("ncu", Path("/c/ncu"), Options(ncu_flags=("--cache-control=none",)), selection, ("/b/add",))
    assert list(command) == [
        *("ncu", "--set", "full", "--import-source", "yes", "--target-processes", "all", "--clock-control", "base"),
        *("--kernel-id", "::_Z1a:2", "--export", "/c/ncu", "--cache-control=none", "/b/add"),
    ]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (Options(range_name="a/b"), ["--nvtx", "--nvtx-include", "a\\/b/", "--nvtx-include", "a\\/b"]),
        (Options(cuda_profiler_api=True), ["--profile-from-start", "off"]),
        (Options(clock_control="none"), []),
    ],
)
def test_ncu_keeps_to_the_part_that_nsys_recorded(options, flags):
    command = ncu.profile("ncu", Path("/c/ncu"), options, Selection((), ()), ("/b/add",))
    start = command.index("--clock-control")
    assert command[start + 1] == options.clock_control
    assert list(command[start + 2 : command.index("--export")]) == flags


# torch


def test_a_script_runs_under_the_runner_with_its_arguments_as_they_are():
    plan = Plan(SCRIPT, Options(recipe="schedule", recipe_flags=("--wait=2",)), NOWHERE, Path("/c"))
    assert list(plan.runs("torch", 1)[0].argv) == [
        *("/usr/bin/python3", str(RUNNER), "--out", "/c", "--recipe", "schedule", "--wait=2"),
        *("--", "/w/train.py", "--lr", "0.1"),
    ]


def test_a_launcher_starts_the_runner_in_place_of_the_script():
    launcher = ("/v/bin/torchrun", "--nproc-per-node=2")
    work = Workload("m", "python", None, ("x",), launcher, ("-m", "package.train"))
    plan = Plan(work, Options(), NOWHERE, Path("/c"))
    assert list(plan.runs("torch", 1)[0].argv) == [
        *(*launcher, str(RUNNER), "--out", "/c", "--recipe", "plain", "--", "-m", "package.train", "x")
    ]
    assert plan.command == (*launcher, "-m", "package.train", "x")


def test_the_recipe_of_ranges_runs_under_nsys():
    plan = Plan(SCRIPT, Options(recipe="nvtx"), NOWHERE, Path("/c"))
    workload = plan.runs("nsys", 1)[0].argv[len(TRACE) + 3 :]
    assert workload == (
        *("/usr/bin/python3", str(RUNNER), "--out", "/c", "--recipe", "nvtx", "--caches", "user"),
        *("--", "/w/train.py", "--lr", "0.1"),
    )


# The plan


def test_a_step_for_the_shell_says_environment_arguments_and_where_the_result_goes():
    step = Step("s", ("a b", "it's", "$HOME"), Path("/l"), {"X": "1 2"}, stdout=Path("/o f"))
    assert step.shell == "X='1 2' 'a b' 'it'\"'\"'s' '$HOME' > '/o f'"


def test_a_dry_run_of_a_cuda_source_is_every_command_ready_to_paste():
    options = Options(repeat=2, kernels=3, bare=False, passes=("nsys", "ncu"), nvcc_flags=("-arch=sm_90",))
    plan = Plan(CUDA, options, NOWHERE, Path("cap"), Path("/b/add"))
    lines = script(plan)
    program = "/b/add 'a b' 'it'\"'\"'s' '$HOME'"
    trace = " ".join(TRACE)
    choose = "-m kanalyze.collectors.tools.choose cap/logs/launches.csv --kernels 3 --launches 1"
    assert [line for line in lines if choose not in line] == [
        "mkdir -p cap/logs",
        "# compile",
        "mkdir -p /b",
        "nvcc -lineinfo -arch=sm_90 -o /b/add /w/add.cu",
        "# nsys, 1 of 2",
        f"nsys profile {trace} --output=cap/nsys {program}",
        "nsys export --type=sqlite --include-blobs=true --output=cap/nsys.sqlite cap/nsys.nsys-rep",
        "# nsys, 2 of 2",
        f"nsys profile {trace} --output=cap/nsys-2 {program}",
        "nsys export --type=sqlite --include-blobs=true --output=cap/nsys-2.sqlite cap/nsys-2.nsys-rep",
        "# ncu",
        "nsys stats --report=cuda_gpu_trace:mangled --format=csv --output=- cap/nsys.sqlite > cap/logs/launches.csv",
        *(
            f"ncu --import cap/ncu.ncu-rep --csv --page {page} --print-units base > cap/ncu.{page}.csv"
            for page in ("details", "raw", "source")
        ),
    ]
    (profile,) = [line for line in lines if choose in line]
    before, _, rest = profile.partition('"$(')
    assert before == (
        "ncu --set full --import-source yes --target-processes all --clock-control base "
        "--kernel-name-base mangled --kernel-id "
    )
    assert rest.partition(')"')[2] == f" --export cap/ncu {program}"


def test_without_nsys_ncu_takes_the_first_launches_and_never_those_of_nccl():
    plan = Plan(SCRIPT, Options(kernels=2, launches=3, passes=("ncu",)), NOWHERE, Path("cap"))
    words = shlex.split(next(line for line in script(plan) if "--set" in line))
    at = words.index("--kernel-name")
    assert words[at : at + 4] == ["--kernel-name", "regex:^(?!.*(nccl|nvshmem|mscclpp))", "--launch-count", "6"]


# Options


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        (Options(passes=("nsys", "nvprof")), UnknownNameError, "no pass 'nvprof'"),
        (Options(recipe="plane"), UnknownNameError, "no recipe 'plane'"),
        (Options(arch=("hopper",)), BadOptionError, "--arch 'hopper': not a GPU architecture such as sm_90."),
        (Options(repeat=0), BadOptionError, "--repeat '0': not a whole number from 1."),
        (Options(kernels=-1), BadOptionError, "--kernels '-1': not a whole number from 1."),
        (Options(passes=("samples",)), UnknownNameError, "no pass 'samples'"),
        (Options(samples_for_s=0), BadOptionError, "--samples-for '0': not a time above 0."),
        (Options(timeout_s=0), BadOptionError, "--timeout '0': not a time above 0."),
        (Options(ncu_budget_s=float("nan")), BadOptionError, "--ncu-budget 'nan': not a time above 0."),
        (Options(delay_s=-1), BadOptionError, "--delay '-1': not a time from 0."),
        (Options(range_name=""), BadOptionError, "--range '': not the name of a range."),
        (Options(range_name="a", cuda_profiler_api=True), BadOptionError, "--range and --cuda-profiler-api exclude"),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, told):
    with pytest.raises(error) as caught:
        checked(options)
    assert isinstance(caught.value, KanalyzeError)
    assert str(caught.value).startswith(told)


# Samples

HOST = [
    *("--trace=cuda,nvtx,osrt", "--cuda-graph-trace=node", "--sample=process-tree", "--cpuctxsw=process-tree"),
    "--backtrace=fp",
]
PYTHON = ["--python-sampling=true", "--python-sampling-frequency=1000"]


@pytest.mark.parametrize(
    ("workload", "wanted", "flags"),
    [
        (SCRIPT, {"samples": True}, [*HOST, *PYTHON]),
        (CUDA, {"samples": True}, HOST),
        (CUDA, {"samples": True, "metrics": True}, [*HOST, "--gpu-metrics-devices=cuda-visible"]),
        (CUDA, {"metrics": True}, [*TRACE[:2], *TRACE[4:], "--gpu-metrics-devices=cuda-visible"]),
    ],
)
def test_a_pass_of_its_own_records_samples_for_a_limited_time(workload, wanted, flags):
    plan = Plan(workload, checked(Options(**wanted, samples_for_s=7.5)), NOWHERE, Path("cap"))
    profile, export = plan.samples()[1]
    assert list(profile.argv) == ["nsys", "profile", *flags, "--duration=8", "--output=cap/samples", *plan.command]
    assert export.argv[-2:] == ("--output=cap/samples.sqlite", "cap/samples.nsys-rep")


def test_what_an_nsys_does_not_know_is_left_out_or_has_its_older_name():
    known = "  --trace=  --cuda-graph-trace=  --sample=  --cpuctxsw=  --backtrace=  --gpu-metrics-device= "
    what = nsys.Sampled(cpu=True, host=True, metrics=True, python=True, known=known)
    assert what.flags == [*HOST, "--gpu-metrics-device=all"]
    assert what.lacking == ["--python-sampling", "--python-sampling-frequency"]
    # without permission to sample the CPU the rest is recorded
    assert nsys.Sampled(cpu=False, host=True, metrics=False, python=True).flags == [
        *("--trace=cuda,nvtx,osrt", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none"),
        *PYTHON,
    ]


@pytest.mark.parametrize(("duration", "limit"), [(None, 60), (5.0, 5), (100.0, 60)])
def test_the_part_of_a_run_is_that_of_nsys_and_no_longer_than_samples_may_take(duration, limit):
    options = checked(Options(samples=True, delay_s=3, duration_s=duration))
    plan = Plan(CUDA, options, NOWHERE, Path("cap"))
    assert {"--delay=3", f"--duration={limit}"} <= set(plan.samples()[1][0].argv)
