"""The commands of a run as data: what is built for which wish, without a tool in sight."""

import shlex
from pathlib import Path

import pytest

from kanalyze.collectors.options import BadOptionError, Options, checked
from kanalyze.collectors.process import Program, Step
from kanalyze.collectors.run.plan import RUNNER, Plan, script
from kanalyze.collectors.tools import ncu, nsys, nvcc
from kanalyze.collectors.tools.found import Tools
from kanalyze.collectors.tools.machine import Gpus
from kanalyze.collectors.tools.ncu import Selection
from kanalyze.collectors.workload import Workload
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


# Commands of the tools


def by_nsys(**options):
    return nsys.profile("nsys", Path("/c/nsys"), Options(**options), ("/b/add",))


def by_ncu(*selected, **options):
    return ncu.profile("ncu", Path("/c/ncu"), Options(**options), Selection((), selected), ("/b/add",))


def planned(name, workload=SCRIPT, **options):
    return Plan(workload, Options(**options), NOWHERE, Path("/c")).runs(name, 1)[0].argv


ALL, UM, OUT = " ".join(TRACE), " ".join(TRACE[2:4]), "--output=/c/nsys /b/add"
REGISTER = "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0"
NCU = "--import-source yes --target-processes all --clock-control"
RUN = f"/usr/bin/python3 {RUNNER} --out /c --recipe"
MODULE = Workload("m", "python", None, ("x",), ("/v/bin/torchrun", "--nproc-per-node=2"), ("-m", "package.train"))


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            nvcc.command("nvcc", Path("/w/-x.cu"), Path("/b/-x"), ["90"], ["-O3", "-DA=a b"], Path("/b/depends")),
            "nvcc -lineinfo -arch=sm_90 -O3 '-DA=a b' -MD -MF /b/depends -o /b/-x /w/-x.cu",
        ),
        # all of a run, or a part
        (by_nsys(), f"nsys profile {ALL} {OUT}"),
        (
            by_nsys(range_name="a@b"),
            f"nsys profile {ALL} --capture-range=nvtx '--nvtx-capture=a\\@b' {REGISTER} --capture-range-end=stop {OUT}",
        ),
        (
            by_nsys(cuda_profiler_api=True),
            f"nsys profile {ALL} --capture-range=cudaProfilerApi --capture-range-end=stop {OUT}",
        ),
        (
            by_nsys(delay_s=2, duration_s=0.5),
            f"nsys profile {ALL} --delay=2 --duration=1 {OUT}",
        ),
        (
            by_ncu(range_name="a/b"),
            f"ncu --set full {NCU} base --nvtx --nvtx-include 'a\\/b/' --nvtx-include 'a\\/b' --export /c/ncu /b/add",
        ),
        (by_ncu(cuda_profiler_api=True), f"ncu --set full {NCU} base --profile-from-start off --export /c/ncu /b/add"),
        # further flags replace ours
        (
            by_nsys(nsys_flags=("--trace=osrt", "--stats=true", "-s", "cpu")),
            f"nsys profile {TRACE[1]} {UM} --cpuctxsw=none --output=/c/nsys --trace=osrt --stats=true -s cpu /b/add",
        ),
        (
            by_ncu("--kernel-id", "::_Z1a:2", ncu_flags=("--set", "basic", "--kernel-id=::b:1")),
            f"ncu {NCU} base --export /c/ncu --set basic --kernel-id=::b:1 /b/add",
        ),
        (
            by_ncu("--kernel-id", "::_Z1a:2", ncu_flags=("--cache-control=none",), clock_control="none"),
            f"ncu --set full {NCU} none --kernel-id ::_Z1a:2 --export /c/ncu --cache-control=none /b/add",
        ),
        # the runner stands in the script's place
        (
            planned("torch", recipe="schedule", recipe_flags=("--wait=2",)),
            f"{RUN} schedule --wait=2 -- /w/train.py --lr 0.1",
        ),
        (
            planned("torch", MODULE),
            f"/v/bin/torchrun --nproc-per-node=2 {RUNNER} --out /c --recipe plain -- -m package.train x",
        ),
        (
            planned("nsys", recipe="nvtx"),
            f"nsys profile {ALL} --output=/c/nsys {RUN} nvtx --caches user -- /w/train.py --lr 0.1",
        ),
    ],
)
def test_a_command_is_what_was_asked_for(command, text):
    assert shlex.join(command) == text


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
