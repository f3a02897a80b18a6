"""What a text names: files, reference workloads, programs on PATH, and scripts behind launchers and wrappers."""

import shlex
import sys
from pathlib import Path

import pytest

from kanalyze.collectors.options import Options
from kanalyze.collectors.tools.found import find_tools, obstacles, python_of, wanted_passes
from kanalyze.collectors.workload import Reference, references, resolve, resolve_other, starts_python
from kanalyze.errors import KanalyzeError


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


#: Commands, each of which is a program with its arguments.
COMMANDS = """
./add.cu 1
-x.cu -x
train.py --lr 1
tool --flag
script
mpirun -n 2 python3.99 train.py --lr 1
mpirun -n 2 ./tool
srun -N 2 python3.99 train.py
srun -N 2 torchrun --nnodes 2 train.py x
env X=1 python3.99 -u -m pkg.train a
env A=b nice -n 5 python3.12 train.py
env sh a.sh
env
conda run -n ml python3.99 train.py
accelerate launch --num_processes 2 train.py a
accelerate launch -m pkg.train
accelerate launch none.py
accelerate config
deepspeed --num_gpus 2 train.py --x
torchrun
torchrun --module --nnodes 1 pkg.train
torchrun --nproc-per-node=2 train.py --lr 1
torchrun --nproc_per_node 2 train.py
torchrun --standalone train.py -m
torchrun --run_path --nnodes 1 -m pkg.train x
torchrun --no-python tool
torchrun nowhere.py
python3.99 -u -X dev train.py a
python3.99 -m torch.distributed.run --nproc_per_node 2 train.py -m
python3.99 -u -m accelerate.commands.launch --x 1 train.py
python3.99 -c pass
python3.99 -m
tool python train.py
./train.sh
bash train.sh
./bare.sh
bash bare.sh
ad.cu
gleu
folder
notes.txt
gelu
"""

#: A program with its arguments, and what is compared with it.
OTHERS = """
train.py | --fused
train.py fit --lr 1 | --lr=2 'a b'
train.py --lr 1 | train.py --fused
-m package.train -x | package.train --fused
-m package.train | package.other
-m tool | tool --fused
-m package.train | -m package.other -x
train.py 1 | -m package.other
-m package.train 1 | train.py
torchrun --standalone train.py --lr 1 | ./train.py -x
torchrun --standalone train.py --lr 1 | -x
torchrun train.py --lr 1 | python3.99 train.py -x
./add.cu 1 | tool -n 2
tool 1 | a b.cu
tool 1 | 'a b.cu' 2
tool | add
sh run.sh 1 | sh other.sh
sh run.sh 1 | --fused
train.py |
train.py | train.py 'open
train.py | no.py
"""


def told(command, other=None):
    """What a command, or one that is compared with it, is as a workload; or why it is none."""
    program, *args = command.split()
    try:
        work = resolve(program, args) if other is None else resolve_other(other, resolve(program, args))
    except KanalyzeError as error:
        return f"{error} {error.remedy}"
    facts = {
        "kind": work.kind, "name": work.name, "launcher": shlex.join(work.launcher),
        "script": shlex.join(work.target), "arguments": shlex.join(work.args),
        "passes": " ".join(wanted_passes(work, Options())),
    }  # fmt: skip
    if any("python3.99" in word for word in work.launcher):
        facts["python"] = shlex.join(python_of(work, Options()))
    return "; ".join(f"{name} {text}" for name, text in facts.items() if text)


@pytest.mark.slow
def test_what_commands_are(bare, gold):
    for name in ("env", "bash", "sh"):
        bare.write(name, "#!/bin/sh\n")
    lines = [f"{command}: {told(command)}" for command in COMMANDS.split("\n") if command]
    for line in OTHERS.split("\n"):
        if line:
            first, _, other = line.partition(" |")
            lines.append(f"{line}: {told(first, other.strip())}")
    shipped = str(references()[0].path.parent)
    text = "\n".join([*lines, ""]).replace(str(Path.cwd()), "HOME").replace(str(bare.folder), "BIN")
    gold(text.replace(shipped, "KERNELS").replace(sys.executable, "PYTHON"), "workloads.txt")


def test_where_the_script_cannot_be_told_the_torch_pass_says_so():
    work = resolve("./train.sh")
    assert (work.kind, work.starts_python) == ("executable", True)
    why, remedy = obstacles(work, Options(), find_tools(Options(), work, torch=False))["torch"]
    assert why.startswith("the script that this program starts cannot be told")
    assert "kanalyze collect torchrun --nproc" in remedy


@pytest.mark.parametrize(("lines", "seen"), [(6_552, True), (6_554, False)])
def test_of_a_script_of_the_shell_the_first_64_kib_are_looked_through(tmp_path, lines, seen):
    script = tmp_path / "long.sh"
    script.write_text("./tool 12\n" * lines + "python x\n")
    assert starts_python("bash", [str(script)], b"") == seen


def test_reference_workloads_say_what_they_teach_and_are_found_by_name_unless_there_is_a_file():
    found = {one.name: one for one in references()}
    assert set(found) == {
        *("add", "add_parallel", "add_extension", "square", "square_inline", "square_triton"),
        *("gelu", "cdist", "matmul", "mlp_train", "launch_bound", "streams", "serving", "remedies"),
    }
    assert all(isinstance(one, Reference) and one.teaches.endswith(".") for one in found.values())
    assert {resolve(str(one.path)).kind for one in found.values()} == {"cuda", "python"}
    assert found["add_parallel"].variants == ("managed", "explicit")
    assert resolve("gelu").path == found["gelu"].path
    assert resolve("matmul.py").name == "matmul"
    assert resolve("add.cu").path == Path("add.cu").absolute()
