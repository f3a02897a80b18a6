"""What a text names: files, reference workloads, programs on PATH, and scripts behind their launchers."""

import sys
from pathlib import Path

import pytest

from kanalyze.collectors.base.errors import WorkloadError
from kanalyze.collectors.base.workload import resolve
from kanalyze.collectors.base.workloads import Reference, references


@pytest.fixture
def files(bare):
    """A folder with one file of each kind, and programs on PATH."""
    for name in ("add.cu", "train.py", "notes.txt", "-x.cu", "a b.cu"):
        Path(name).write_text("")
    for name in ("torchrun", "python3.99", "tool"):
        bare.write(name, "#!/bin/sh\n")
    bare.write("script", f"#!{sys.executable}\n")
    Path("folder").mkdir()
    return bare.folder


def told(work):
    paths = [
        str(Path(word).relative_to(Path.cwd())) if word.startswith(str(Path.cwd())) else word for word in work.target
    ]
    return work.kind, [Path(word).name for word in work.launcher[:1]], list(work.launcher[1:]), paths, list(work.args)


@pytest.mark.parametrize(
    ("text", "args", "kind", "name"),
    [
        ("add.cu", ["1"], "cuda", "add"),
        ("./add.cu", [], "cuda", "add"),
        ("-x.cu", ["-x"], "cuda", "x"),
        ("a b.cu", [], "cuda", "a_b"),
        ("train.py", [], "python", "train"),
        ("tool", ["--flag"], "executable", "tool"),
        ("script", [], "python", "script"),
    ],
)
def test_a_text_names_a_file_or_a_program(files, text, args, kind, name):
    del files
    work = resolve(text, args)
    assert (work.kind, work.name, work.args) == (kind, name, tuple(args))
    assert work.path.is_absolute()
    assert work.path.is_file()


@pytest.mark.parametrize(
    ("command", "launcher", "target", "args"),
    [
        ("torchrun --nproc-per-node=2 train.py --lr 1", ["--nproc-per-node=2"], ["train.py"], ["--lr", "1"]),
        ("torchrun --nproc_per_node 2 train.py", ["--nproc_per_node", "2"], ["train.py"], []),
        ("torchrun --standalone train.py -m", ["--standalone"], ["train.py"], ["-m"]),
        ("torchrun --nnodes 1 -m pkg.train x", ["--nnodes", "1"], ["-m", "pkg.train"], ["x"]),
        ("python3.99 -u -X dev train.py a", ["-u", "-X", "dev"], ["train.py"], ["a"]),
        ("python3.99 -m pkg.train a", [], ["-m", "pkg.train"], ["a"]),
    ],
)
def test_a_script_behind_its_launcher_is_the_workload(files, command, launcher, target, args):
    del files
    program, *rest = command.split()
    work = resolve(program, rest)
    assert told(work) == ("python", [program], launcher, target, args)
    assert work.name == "train"


@pytest.mark.parametrize("command", ["torchrun --no-python tool", "python3.99 -c pass", "python3.99", "torchrun"])
def test_a_launcher_without_script_is_a_program(files, command):
    del files
    program, *rest = command.split()
    assert (resolve(program, rest).kind, resolve(program, rest).name) == ("executable", program)


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
def test_what_is_no_workload_is_told_with_what_may_be_meant(files, text, message, remedy):
    del files
    with pytest.raises(WorkloadError) as caught:
        resolve(text)
    assert (str(caught.value), caught.value.remedy) == (message, remedy)


def test_a_script_that_its_launcher_does_not_find_is_told(files):
    del files
    with pytest.raises(WorkloadError, match=r"nowhere\.py: no such file"):
        resolve("torchrun", ["nowhere.py"])


def test_a_reference_workload_is_found_by_its_name_and_its_file_s_unless_there_is_a_file(files):
    del files
    assert resolve("gelu").path == next(one.path for one in references() if one.name == "gelu")
    assert resolve("matmul.py").name == "matmul"
    assert resolve("add.cu").path == Path("add.cu").absolute()


def test_every_reference_workload_says_what_it_teaches():
    found = {one.name: one for one in references()}
    assert set(found) == {
        *("add", "add_parallel", "add_extension", "square", "square_inline", "square_triton"),
        *("gelu", "cdist", "matmul", "mlp_train", "launch_bound", "streams", "remedies"),
    }
    assert all(isinstance(one, Reference) and one.teaches.endswith(".") for one in found.values())
    assert found["add_parallel"].variants == ("managed", "explicit")
