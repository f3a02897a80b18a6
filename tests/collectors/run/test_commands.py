"""The commands of a run as data: what is built for which wish, without a tool in sight."""

from pathlib import Path

import pytest

from kanalyze.collectors import dry_run
from kanalyze.collectors.options import BadOptionError, Options, checked
from kanalyze.collectors.process import Step
from kanalyze.collectors.tools import found, nsys, nvcc
from kanalyze.errors import KanalyzeError, UnknownNameError
from support.stand_ins import WANTED

#: Dry runs, each on a machine without tools: a title, the program with its arguments, and the options.
RUNS = {
    "a script": (["train.py", "--lr", "0.1"], {}),
    "a script behind a launcher, without its lines": (["torchrun", "--nnodes", "1", "train.py"], {"lines": False}),
    "a module": (["-m", "package.train", "x"], {"passes": ("nsys", "torch"), "recipe": "schedule"}),
    "a reference workload": (["matmul"], {"passes": ("torch",), "recipe_flags": ("--wait=2",)}),
    "a CUDA source, repeated": (
        ["a b.cu", "a b", "it's", "$HOME"],
        {"repeat": 2, "kernels": 3, "arch": ("90",), "nvcc_flags": ("-O3", "-DA=a b")},
    ),
    "further flags in place of ours": (
        ["./program"],
        {
            "nvcc_flags": ("-arch=sm_90",),
            "nsys_flags": ("--trace=osrt", "--stats=true", "-s", "cpu"),
            "ncu_flags": ("--set", "basic", "--kernel-id=::b:1", "--cache-control=none"),
            "clock_control": "none",
        },
    ),
    "an NVTX range": (["./program"], {"range_name": "a@b/c", "launches": 2}),
    "between calls": (["./program"], {"cuda_profiler_api": True}),
    "a time": (["./program"], {"delay_s": 1.5, "duration_s": 0.5, "passes": ("nsys",), "samples": True}),
    "longer than samples": (["./program"], {"duration_s": 100.0, "passes": (), "samples": True}),
    "ranges of operators": (["train.py"], {"recipe": "nvtx", "passes": ("nsys", "torch")}),
    "names of operators": (
        ["train.py"],
        {"passes": ("nsys",), "names": True, "delay_s": 2.0, "duration_s": 3.0, "recipe": "schedule"},
    ),
    "samples of a script": (["train.py"], {"passes": (), "samples": True, "samples_for_s": 7.5}),
    "samples and metrics": (["./program"], {"passes": ("ncu",), "samples": True, "metrics": True}),
    "metrics": (["./program"], {"passes": (), "metrics": True}),
}


@pytest.fixture
def programs(bare, monkeypatch):
    """Programs, on a machine that has no tool; they are run without a profiler, too."""
    monkeypatch.setattr(found, "wanted_passes", WANTED)
    for name in ("train.py", "other.py", "a b.cu"):
        Path(name).write_text("")
    bare.write("torchrun", "#!/bin/sh\n")
    Path("program").write_text("#!/bin/sh\n")
    Path("program").chmod(0o755)


@pytest.mark.slow
@pytest.mark.usefixtures("programs")
def test_dry_runs_are_what_was_asked_for(gold):
    lines = []
    for title, ((program, *args), options) in RUNS.items():
        lines += [f"### {title}", *dry_run(program, args, output="cap", **options), ""]
    turns = dry_run("train.py", ["1"], against="other.py -x", output="cap", repeat=2)
    lines += ["### two programs in turns", *turns, ""]
    gold("\n".join(lines), "dry_runs.txt")


TWO = ("80,code=sm_80", "90,code=sm_90", "90,code=compute_90")


@pytest.mark.parametrize(
    ("arch", "flags"),
    [
        ([], ["-arch=native"]),
        (["sm_90"], ["-arch=sm_90"]),
        (["9.0"], ["-arch=sm_90"]),
        (["90a"], ["-arch=sm_90a"]),
        (["90", "sm_90", "compute_90"], ["-arch=sm_90"]),
        (["sm_80", "9.0"], [f"-gencode=arch=compute_{code}" for code in TWO]),
    ],
)
def test_architectures_become_flags_of_nvcc(arch, flags):
    assert list(nvcc.arch_flags(arch)) == flags


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


def test_a_step_for_the_shell_says_environment_arguments_and_where_the_result_goes():
    step = Step("s", ("a b", "it's", "$HOME"), Path("/l"), {"X": "1 2"}, stdout=Path("/o f"))
    assert step.shell == "X='1 2' 'a b' 'it'\"'\"'s' '$HOME' > '/o f'"


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


HOST = [
    *("--trace=cuda,nvtx,osrt", "--cuda-graph-trace=node", "--sample=process-tree", "--cpuctxsw=process-tree"),
    "--backtrace=fp",
]
PYTHON = ["--python-sampling=true", "--python-sampling-frequency=1000"]


def test_what_an_nsys_does_not_know_is_left_out_or_has_its_older_name():
    known = "  --trace=  --cuda-graph-trace=  --sample=  --cpuctxsw=  --backtrace=  --gpu-metrics-device= "
    options = Options(samples=True, metrics=True)
    flags, lacking = nsys.sampling(options, cpu=True, metrics=True, python=True, known=known)
    assert flags == [*HOST, "--gpu-metrics-device=all"]
    assert lacking == ["--python-sampling", "--python-sampling-frequency"]
    # without permission to sample the CPU the rest is recorded
    expected = [*("--trace=cuda,nvtx,osrt", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none"), *PYTHON]
    assert nsys.sampling(options, cpu=False, metrics=False, python=True)[0] == expected
