"""What a text names: files, reference workloads, programs on PATH, and scripts behind launchers and wrappers."""

import shlex
import sys
from pathlib import Path

import pytest

from kanalyze.collectors.options import BadOptionError, Options, WorkloadError
from kanalyze.collectors.tools.found import find_tools, obstacles, python_of, wanted_passes
from kanalyze.collectors.workload import (
    Behind,
    Reference,
    behind,
    references,
    resolve,
    resolve_other,
    starts_python,
)


@pytest.fixture(autouse=True)
def files(bare):
    """A folder with one file of each kind; a script, and every launcher, on PATH."""
    for name in ("add.cu", "train.py", "notes.txt", "-x.cu", "a b.cu"):
        Path(name).write_text("")
    for name in ("mpirun", "srun", "conda", "uv", "python3.99", "tool"):
        bare.write(name, "#!/bin/sh\n")
    for name in ("accelerate", "deepspeed", "torchrun", "script"):
        bare.write(name, f"#!{sys.executable}\n")
    Path("folder").mkdir()
    Path("train.sh").write_text("#!/bin/bash\nset -e\n# python is not started here\ncd x; torchrun train.py\n")
    Path("bare.sh").write_text("#!/bin/sh\n# python train.py\n./tool\n")
    for name in ("train.sh", "bare.sh"):
        Path(name).chmod(0o755)
    return bare.folder


def told(work):
    paths = [
        str(Path(word).relative_to(Path.cwd())) if word.startswith(str(Path.cwd())) else word for word in work.target
    ]
    return work.kind, [Path(word).name for word in work.launcher[:1]], list(work.launcher[1:]), paths, list(work.args)


def resolved(command):
    program, *args = command.split()
    return resolve(program, args)


@pytest.mark.parametrize(
    ("text", "args", "kind", "name"),
    [
        ("./add.cu", ["1"], "cuda", "add"),
        ("-x.cu", ["-x"], "cuda", "x"),
        ("a b.cu", [], "cuda", "a_b"),
        ("train.py", [], "python", "train"),
        ("tool", ["--flag"], "executable", "tool"),
        ("script", [], "python", "script"),
    ],
)
def test_a_text_names_a_file_or_a_program(text, args, kind, name):
    work = resolve(text, args)
    assert (work.kind, work.name, work.args) == (kind, name, tuple(args))
    assert work.path.is_absolute()
    assert work.path.is_file()


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("mpirun -n 2 python train.py --lr 1", ("mpirun -n 2 python", "train.py", "--lr 1")),
        ("env X=1 python -u -m pkg.train a", ("env X=1 python -u", "-m pkg.train", "a")),
        ("conda run -n ml python train.py", ("conda run -n ml python", "train.py", "")),
        ("env A=b nice -n 5 python3.12 train.py", ("env A=b nice -n 5 python3.12", "train.py", "")),
        ("srun -N 2 torchrun --nnodes 2 train.py x", ("srun -N 2 torchrun --nnodes 2", "train.py", "x")),
        ("accelerate launch --num_processes 2 train.py a", ("accelerate launch --num_processes 2", "train.py", "a")),
        ("deepspeed --num_gpus 2 train.py --x", ("deepspeed --num_gpus 2", "train.py", "--x")),
        ("torchrun --module --nnodes 1 pkg.train", ("torchrun --nnodes 1", "-m pkg.train", "")),
        ("torchrun --nproc-per-node=2 train.py --lr 1", ("torchrun --nproc-per-node=2", "train.py", "--lr 1")),
        ("torchrun --nproc_per_node 2 train.py", ("torchrun --nproc_per_node 2", "train.py", "")),
        ("torchrun --standalone train.py -m", ("torchrun --standalone", "train.py", "-m")),
        ("torchrun --run_path --nnodes 1 -m pkg.train x", ("torchrun --run_path --nnodes 1", "-m pkg.train", "x")),
        ("python3.99 -u -X dev train.py a", ("python3.99 -u -X dev", "train.py", "a")),
        (
            "python -m torch.distributed.run --nproc_per_node 2 train.py -m",
            ("python -m torch.distributed.run --nproc_per_node 2", "train.py", "-m"),
        ),
        (
            "python -u -m accelerate.commands.launch --x 1 train.py",
            ("python -u -m accelerate.commands.launch --x 1", "train.py", ""),
        ),
        ("accelerate launch -m pkg.train", None),
        ("accelerate config", None),
        ("accelerate launch none.py", None),
        ("torchrun --no-python tool", None),
        ("mpirun -n 2 ./tool", None),
        ("env", None),
        ("python -c pass", None),
        ("python -m", None),
        ("tool python train.py", None),
    ],
)
def test_the_script_behind_a_command(command, found):
    program, *args = command.split()
    assert behind(program, args) == (Behind(*(tuple(part.split()) for part in found)) if found else None)


def test_a_script_behind_its_launcher_is_the_workload():
    work = resolved("torchrun --nnodes 1 -m pkg.train x")
    assert (work.name, told(work)) == (
        "train",
        ("python", ["torchrun"], ["--nnodes", "1"], ["-m", "pkg.train"], ["x"]),
    )
    for command in ("torchrun --no-python tool", "python3.99 -c pass", "torchrun"):
        assert (resolved(command).kind, resolved(command).name) == ("executable", command.partition(" ")[0])


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("env X=1 python3.99 train.py", "{bin}/env X=1 python3.99"),
        ("conda run -n ml python3.99 train.py", "{bin}/conda run -n ml python3.99"),
        ("srun -N 2 python3.99 train.py", "{bin}/python3.99"),
        ("python3.99 -u train.py", "{bin}/python3.99"),
    ],
)
def test_torch_is_looked_for_in_the_python_that_the_wrapper_starts(bare, command, python):
    bare.write("env", "#!/bin/sh\n")
    assert " ".join(python_of(resolved(command), Options())) == python.format(bin=bare.folder)


@pytest.mark.parametrize(
    "command",
    ["./train.sh", "bash train.sh", "accelerate launch -m pkg.train", "torchrun --no-python tool", "env sh a.sh"],
)
def test_where_the_script_cannot_be_told_the_torch_pass_says_so(command):
    work = resolved(command)
    assert (work.kind, work.starts_python) == ("executable", True)
    assert wanted_passes(work, Options()) == ("bare", "nsys", "torch", "ncu")
    why = obstacles(work, Options(), find_tools(Options(), work, torch=False))["torch"]
    assert why.why.startswith("the script that this program starts cannot be told")
    assert "kanalyze collect torchrun --nproc" in why.remedy


@pytest.mark.parametrize("command", ["./bare.sh", "bash bare.sh", "env", "mpirun -n 2 ./tool"])
def test_a_program_that_starts_no_python_has_no_torch_pass(command):
    work = resolved(command)
    assert (work.kind, work.starts_python) == ("executable", False)
    assert wanted_passes(work, Options()) == ("bare", "nsys", "ncu")


@pytest.mark.parametrize(("lines", "seen"), [(6_552, True), (6_554, False)])
def test_of_a_script_of_the_shell_the_first_64_kib_are_looked_through(tmp_path, lines, seen):
    script = tmp_path / "long.sh"
    script.write_text("./tool 12\n" * lines + "python x\n")
    assert starts_python("bash", [str(script)], b"") == seen


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("ad.cu", "ad.cu: no such file, program on PATH or reference workload.", "Did you mean add.cu?"),
        ("gleu", "gleu: no such file, program on PATH or reference workload.", "Did you mean gelu?"),
        ("folder", "folder: a folder, not a program.", "Give the .cu file, Python script or executable in it."),
        (
            "notes.txt",
            "notes.txt: neither a .cu file nor a Python script, and not executable.",
            "If it is a program, make it executable: `chmod +x notes.txt`.",
        ),
    ],
)
def test_what_is_no_workload_is_told_with_what_may_be_meant(text, message, remedy):
    with pytest.raises(WorkloadError) as caught:
        resolve(text)
    assert (str(caught.value), caught.value.remedy) == (message, remedy)
    with pytest.raises(WorkloadError, match=r"nowhere\.py: no such file"):
        resolve("torchrun", ["nowhere.py"])


def test_reference_workloads_say_what_they_teach_and_are_found_by_name_unless_there_is_a_file():
    found = {one.name: one for one in references()}
    assert set(found) == {
        *("add", "add_parallel", "add_extension", "square", "square_inline", "square_triton"),
        *("gelu", "cdist", "matmul", "mlp_train", "launch_bound", "streams", "remedies"),
    }
    assert all(isinstance(one, Reference) and one.teaches.endswith(".") for one in found.values())
    assert {resolve(str(one.path)).kind for one in found.values()} == {"cuda", "python"}
    assert found["add_parallel"].variants == ("managed", "explicit")
    assert resolve("gelu").path == found["gelu"].path
    assert resolve("matmul.py").name == "matmul"
    assert resolve("add.cu").path == Path("add.cu").absolute()


# The other program of two


@pytest.mark.parametrize(
    ("first", "other", "target", "given"),
    [
        ("train.py", "--fused", "train.py", "--fused"),
        ("train.py fit --lr 1", "--lr=2 'a b'", "train.py", "fit --lr 1 --lr=2 'a b'"),
        ("train.py --lr 1", "train.py --fused", "train.py", "--lr 1 --fused"),
        ("-m package.train -x", "package.train --fused", "-m package.train", "-x --fused"),
        ("-m package.train", "package.other", "-m package.other", ""),
        ("-m tool", "tool --fused", "-m tool", "--fused"),
        ("-m package.train", "-m package.other -x", "-m package.other", "-x"),
        ("train.py 1", "-m package.other", "-m package.other", "1"),
        ("-m package.train 1", "train.py", "train.py", "1"),
        # a script alone is started as the first one
        ("torchrun --standalone train.py --lr 1", "./train.py -x", "torchrun train.py", "--lr 1 -x"),
        ("torchrun --standalone train.py --lr 1", "-x", "torchrun train.py", "--lr 1 -x"),
        ("torchrun train.py --lr 1", "python3.99 train.py -x", "python3.99 train.py", "--lr 1 -x"),
        # programs
        ("./add.cu 1", "tool -n 2", "tool", "1 -n 2"),
        ("tool 1", "a b.cu", "a_b", "1"),
        ("tool 1", "'a b.cu' 2", "a_b", "1 2"),
        ("tool", "add", "add", ""),
        # what a launcher starts is among its arguments, so that none are for both
        ("sh run.sh 1", "sh other.sh", "sh", "other.sh"),
        ("sh run.sh 1", "--fused", "sh", "run.sh 1 --fused"),
    ],
)
def test_the_other_of_two_programs(first, other, target, given):
    work = resolve_other(other, resolved(first))
    _, launcher, _, script, args = told(work)
    assert (" ".join([*launcher, *(script or [work.name])]), args) == (target, shlex.split(given))


def test_another_program_that_is_none():
    for text in ("", " ", "train.py 'open"):
        with pytest.raises(BadOptionError, match="--against"):
            resolve_other(text, resolve("train.py"))
    with pytest.raises(WorkloadError, match=r"no\.py: no such file"):
        resolve_other("no.py", resolve("train.py"))
