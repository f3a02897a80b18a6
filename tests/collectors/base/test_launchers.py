"""Scripts behind launchers and wrappers: torch's runner stands in their place, or it is said why it cannot."""

import sys
from pathlib import Path

import pytest

from kanalyze.collectors import collect
from kanalyze.collectors.base import launchers
from kanalyze.collectors.base.launchers import Behind
from kanalyze.collectors.base.options import Options
from kanalyze.collectors.base.workload import resolve
from kanalyze.collectors.base.workloads import references
from kanalyze.collectors.run.plan import Plan
from kanalyze.collectors.tools.found import find_tools, obstacles, wanted_passes
from kanalyze.collectors.tools.torch_pass import python_of


@pytest.fixture
def files(bare):
    """A script, and every launcher, on PATH."""
    Path("train.py").write_text("")
    for name in ("mpirun", "srun", "conda", "uv", "python3.99"):
        bare.write(name, "#!/bin/sh\n")
    for name in ("accelerate", "deepspeed", "torchrun"):
        bare.write(name, f"#!{sys.executable}\n")
    Path("train.sh").write_text("#!/bin/bash\nset -e\n# python is not started here\ncd x; torchrun train.py\n")
    Path("bare.sh").write_text("#!/bin/sh\n# python train.py\n./tool\n")
    for name in ("train.sh", "bare.sh"):
        Path(name).chmod(0o755)
    return bare.folder


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("mpirun -n 2 python train.py --lr 1", ("mpirun -n 2 python", "train.py", "--lr 1")),
        ("env X=1 python -u -m pkg.train a", ("env X=1 python -u", "-m pkg.train", "a")),
        ("conda run -n ml python train.py", ("conda run -n ml python", "train.py", "")),
        ("env A=b nice -n 5 python3.12 train.py", ("env A=b nice -n 5 python3.12", "train.py", "")),
        ("srun -N 2 torchrun --nnodes 2 train.py x", ("srun -N 2 torchrun --nnodes 2", "train.py", "x")),
        ("accelerate launch --num_processes 2 train.py a", ("accelerate launch --num_processes 2", "train.py", "a")),
        ("accelerate launch --multi_gpu train.py", ("accelerate launch --multi_gpu", "train.py", "")),
        ("deepspeed --num_gpus 2 train.py --x", ("deepspeed --num_gpus 2", "train.py", "--x")),
        ("torchrun --module --nnodes 1 pkg.train", ("torchrun --nnodes 1", "-m pkg.train", "")),
        (
            "python -m torch.distributed.run --nproc_per_node 2 train.py -m",
            ("python -m torch.distributed.run --nproc_per_node 2", "train.py", "-m"),
        ),
        ("accelerate launch -m pkg.train", None),
        ("accelerate config", None),
        ("accelerate launch none.py", None),
        ("torchrun --no-python tool", None),
        ("mpirun -n 2 ./tool", None),
        ("env", None),
        ("python -c pass", None),
        ("tool python train.py", None),
    ],
)
def test_the_script_behind_a_command(files, command, found):
    del files
    program, *args = command.split()
    told = Behind(*(tuple(part.split()) for part in found)) if found else None
    assert launchers.behind(program, args) == told


def test_the_runner_stands_in_the_script_s_place_and_the_plain_command_is_as_given(files):
    del files
    work = resolve("mpirun", ["-n", "2", "python3.99", "-u", "train.py", "a b"])
    plan = Plan(work, Options(), find_tools(Options(), work, torch=False), Path("/c"))
    script = str(Path("train.py").absolute())
    assert list(plan.command[1:]) == ["-n", "2", "python3.99", "-u", script, "a b"]
    under = list(plan.torch(1)[0].argv)
    assert under[1:5] == ["-n", "2", "python3.99", "-u"]
    assert Path(under[5]).name == "torch_runner.py"
    assert under[-3:] == ["--", script, "a b"]


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("env X=1 python3.99 train.py", "{bin}/env X=1 python3.99"),
        ("conda run -n ml python3.99 train.py", "{bin}/conda run -n ml python3.99"),
        ("srun -N 2 python3.99 train.py", "{bin}/python3.99"),
        ("python3.99 -u train.py", "{bin}/python3.99"),
    ],
)
def test_torch_is_looked_for_in_the_python_that_the_wrapper_starts(files, command, python):
    (files / "env").write_text("#!/bin/sh\n")
    (files / "env").chmod(0o755)
    program, *args = command.split()
    assert " ".join(python_of(resolve(program, args), Options())) == python.format(bin=files)


@pytest.mark.parametrize(
    "command",
    ["./train.sh", "bash train.sh", "accelerate launch -m pkg.train", "torchrun --no-python tool", "env sh a.sh"],
)
def test_where_the_script_cannot_be_told_the_torch_pass_says_so(files, command):
    del files
    program, *args = command.split()
    work = resolve(program, args)
    assert (work.kind, work.starts_python) == ("executable", True)
    assert wanted_passes(work, Options()) == ("bare", "nsys", "torch", "ncu")
    why = obstacles(work, Options(), find_tools(Options(), work, torch=False))["torch"]
    assert why.why.startswith("the script that this program starts cannot be told")
    assert "kanalyze collect torchrun --nproc" in why.remedy


@pytest.mark.parametrize("command", ["./bare.sh", "bash bare.sh", "env", "mpirun -n 2 ./tool"])
def test_a_program_that_starts_no_python_has_no_torch_pass(files, command):
    del files
    program, *args = command.split()
    work = resolve(program, args)
    assert (work.kind, work.starts_python) == ("executable", False)
    assert wanted_passes(work, Options()) == ("bare", "nsys", "ncu")


@pytest.mark.parametrize(("lines", "seen"), [(6_552, True), (6_554, False)])
def test_of_a_script_of_the_shell_the_first_64_kib_are_looked_through(tmp_path, lines, seen):
    script = tmp_path / "long.sh"
    script.write_text("./tool 12\n" * lines + "python x\n")
    assert launchers.starts_python("bash", [str(script)], b"") == seen


def test_a_script_of_the_shell_that_starts_python_is_collected_but_for_the_torch_pass(stand_ins):
    program = stand_ins.write("train", "#!/bin/sh\nfalse && python train.py\necho 'Max error: 0'\n")
    capture = collect(program, output=Path("cap"))
    assert {one["name"]: one["status"] for one in capture.manifest["passes"]} == {
        "nsys": "done",
        "torch": "skipped",
        "ncu": "done",
    }
    assert capture.problems == ()


def test_every_reference_workload_is_still_what_it_was():
    kinds = {one.name: resolve(str(one.path)).kind for one in references()}
    assert set(kinds.values()) == {"cuda", "python"}
