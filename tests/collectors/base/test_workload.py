"""What a text names: files, reference workloads, programs on PATH, and scripts behind their launchers."""

import sys
from pathlib import Path

import pytest

from kanalyze.collectors.base.errors import BadOptionError, WorkloadError
from kanalyze.collectors.base.workload import resolve, resolve_other
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


# The other program of two


@pytest.mark.parametrize(
    ("first", "other", "target", "given"),
    [
        (["train.py"], "--fused", ["train.py"], ["--fused"]),
        (["train.py", "fit", "--lr", "1"], "--lr=2 'a b'", ["train.py"], ["fit", "--lr", "1", "--lr=2", "a b"]),
        (["train.py", "--lr", "1"], "train.py --fused", ["train.py"], ["--lr", "1", "--fused"]),
        (["-m", "package.train", "-x"], "package.train --fused", ["-m", "package.train"], ["-x", "--fused"]),
        (["-m", "package.train"], "package.other", ["-m", "package.other"], []),
        (["-m", "tool"], "tool --fused", ["-m", "tool"], ["--fused"]),
        (["-m", "package.train"], "-m package.other -x", ["-m", "package.other"], ["-x"]),
        (["train.py", "1"], "-m package.other", ["-m", "package.other"], ["1"]),
        (["-m", "package.train", "1"], "train.py", ["train.py"], ["1"]),
    ],
)
def test_the_other_of_two_scripts(files, first, other, target, given):
    del files
    kind, launcher, _, told_target, told_args = told(resolve_other(other, resolve(first[0], first[1:])))
    assert (kind, launcher, told_target, told_args) == ("python", [], target, given)


@pytest.mark.parametrize(
    ("first", "args", "other", "found"),
    [
        ("add.cu", ["1"], "tool -n 2", ("executable", "tool", ("1", "-n", "2"))),
        ("tool", ["1"], "a b.cu", ("cuda", "a_b", ("1",))),
        ("tool", ["1"], "'a b.cu' 2", ("cuda", "a_b", ("1", "2"))),
        ("tool", [], "add", ("cuda", "add", ())),
        # what a launcher starts is among its arguments, so that none are for both
        ("sh", ["run.sh", "1"], "sh other.sh", ("executable", "sh", ("other.sh",))),
        ("sh", ["run.sh", "1"], "tool", ("executable", "tool", ())),
        ("sh", ["run.sh", "1"], "--fused", ("executable", "sh", ("run.sh", "1", "--fused"))),
    ],
)
def test_the_other_of_two_programs(files, first, args, other, found):
    (files / "add.cu").write_text("")
    Path("add.cu").write_text("")
    work = resolve_other(other, resolve(first, args))
    assert (work.kind, work.name, work.args) == found


def test_a_script_alone_is_started_as_the_first_one(files):
    del files
    first = resolve("torchrun", ["--standalone", "train.py", "--lr", "1"])
    Path("other.py").write_text("")
    for other, launcher in (
        ("other.py -x", ["torchrun"]),
        ("-x", ["torchrun"]),
        ("python3.99 other.py -x", ["python3.99"]),
    ):
        kind, found, _, target, args = told(resolve_other(other, first))
        assert (kind, found, args) == ("python", launcher, ["--lr", "1", "-x"])
        assert target == (["train.py"] if other == "-x" else ["other.py"])


@pytest.mark.parametrize("text", ["", " ", "train.py 'open"])
def test_another_program_needs_words(files, text):
    del files
    with pytest.raises(BadOptionError, match="--against"):
        resolve_other(text, resolve("train.py"))


def test_another_program_that_is_none(files):
    del files
    with pytest.raises(WorkloadError, match=r"no\.py: no such file"):
        resolve_other("no.py", resolve("train.py"))
