"""Every Python workload run as a user would, small, on whatever device there is; and what it says of a wrong result."""

import re
import shutil
import sys
from functools import cache

import pytest

from support import kernel_files
from support.kernel_files import KERNELS, PYTHON, documented_variants, load, run

torch = pytest.importorskip("torch", reason=kernel_files.NEEDS_TORCH)
pytest.importorskip("triton", reason=kernel_files.NEEDS_TRITON)

pytestmark = pytest.mark.timeout(300)  # on a busy machine what is compiled takes minutes

DEVICE = f"device: {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "device: cpu (no GPU found)"
MOST = "more than 16777216 kernels in all"

#: Arguments that make a run small.
SMALL = {
    "add_extension.py": ("--size", 1000, "--steps", 2),
    "square.py": ("--size", 70, "--steps", 2),
    "square_inline.py": ("--size", 70, "--steps", 2),
    "square_triton.py": ("--size", 600, "--widths", "100,129", "--steps", 1),
    "gelu.py": ("--size", 33, "--steps", 1),
    "cdist.py": ("--size", 70, "--dimensions", 9, "--steps", 2),
    "matmul.py": ("--sizes", "33,128", "--steps", 2),
    "mlp_train.py": ("--size", 12, "--layers", 2, "--batch", 5, "--steps", 4),
    "launch_bound.py": ("--kernels", 10, "--steps", 2),
    "streams.py": ("--size", 32, "--chunks", 4, "--streams", 3, "--steps", 2),
    "serving.py": ("--requests", 5, "--rate", 1000),
    "remedies.py": ("vocabulary", "indexing", "--steps", 2, "--turns", 2),
}

#: In a copy of a workload: what is replaced by what, so that its result is wrong.
MUTANTS = {
    "square.py": ("lambda a: a * a,", "lambda a: a * a.roll(1),"),
    "square_triton.py": (
        "columns = start + tl.arange(0, BLOCK_SIZE)",
        "columns = start + tl.arange(1, BLOCK_SIZE + 1)",
    ),
    "gelu.py": ("inner = 0.7978845608 * (value", "inner = 0.7978 * (value"),
    "cdist.py": ("squares.clamp_min_(0)", "squares.clamp_min_(1)"),
    "matmul.py": ("product = left @ right", "product = left @ right * 1.01"),
    "mlp_train.py": ("        optimizer.step()", "        pass"),
    "launch_bound.py": ("range(kernels)", "range(kernels - 1)"),
    "streams.py": ("torch.mm(lane.source, factor, out=lane.result)", "torch.mm(factor, lane.source, out=lane.result)"),
    "serving.py": ("(one.tokens[at], at, one.slot)", "(one.tokens[at], max(0, at - 1), one.slot)"),
    "remedies.py": ("torch.manual_seed(0)", "torch.manual_seed(len(variant))"),
}


@cache
def small_run(name):
    """One run of all variants, which several tests look at."""
    return run(KERNELS / name, *SMALL[name])


@pytest.mark.parametrize("name", PYTHON)
def test_a_workload_runs_and_finds_its_result_right(name):
    ended = small_run(name)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith(DEVICE)
    assert re.fullmatch(r"check: ok max_error=[\d.e+-]+", ended.stdout.splitlines()[-1])
    assert "Traceback" not in ended.stderr


def refused(name, monkeypatch, capsys, *arguments):
    """How a workload ends in this process with arguments with which it does nothing, and what it printed."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        load(name.removesuffix(".py")).main()
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize("name", [name for name in PYTHON if documented_variants(name)])
def test_each_variant_has_its_line_and_the_command_line_knows_them(name, monkeypatch, capsys):
    """In one run of all: a variant alone differs only in what is left out."""
    variants = documented_variants(name)
    _, usage, _ = refused(name, monkeypatch, capsys, "--help")
    assert f"--variant {{{','.join(['all', *variants])}}}" in usage
    seen = re.findall(r"^(\w+)\b.* ms\b", small_run(name).stdout, flags=re.MULTILINE)
    assert list(dict.fromkeys(seen)) == variants


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_result_is_told(name, tmp_path):
    right, wrong = MUTANTS[name]
    for part in KERNELS.glob("_*.py"):
        shutil.copy(part, tmp_path)
    text = (KERNELS / name).read_text()
    assert text.count(right) == 1
    (tmp_path / name).write_text(text.replace(right, wrong))
    one = {"gelu.py": ("--variant", "triton"), "square_triton.py": ("--variant", "loop")}.get(name, ())
    ended = run(tmp_path / name, *SMALL[name], *one)
    assert ended.returncode == 1, ended.stderr
    assert re.fullmatch(r"check: FAILED max_error=\S+ \(.* is \S+ off, \S+ is allowed\)", ended.stdout.splitlines()[-1])


def test_an_extension_is_built_once_and_again_when_asked(tmp_path):
    """A second run takes a fraction of the first; `--rebuild` compiles in a folder of its own."""
    folder = str(tmp_path / "extensions")

    def build_ms(*arguments):
        ended = run(KERNELS / "square_inline.py", *SMALL["square_inline.py"], *arguments, TORCH_EXTENSIONS_DIR=folder)
        assert ended.returncode == 0, ended.stderr
        return float(re.search(r"^build \(or load\) +([\d.]+) ms", ended.stdout, flags=re.MULTILINE)[1])

    first, second = build_ms(), build_ms()
    assert second < first / 5
    assert build_ms("--rebuild") > 5 * second


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("add_extension.py", "extension: a C++ loop in place of the CUDA kernel"),
        ("square_inline.py", "extension: a C++ loop in place of the CUDA kernel"),
        ("square_triton.py", "triton: interpreted, so its times mean nothing"),
        ("gelu.py", "triton: interpreted, so its times mean nothing; cuda: a C++ loop in its place"),
        ("launch_bound.py", "graph: no GPU, so this is the plain loop again"),
        ("streams.py", "streams: none without a GPU, so all variants are the same loop"),
    ],
)
def test_without_a_gpu_each_says_what_takes_the_gpu_s_place(name, word):
    assert word in small_run(name).stdout.splitlines()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_compiler_torch_compile_is_left_out():
    ended = run(KERNELS / "square_triton.py", *SMALL["square_triton.py"], CXX="no-such-compiler")
    assert ended.returncode == 0
    assert "compile: left out, since torch.compile found no C++ compiler" in ended.stdout.splitlines()
    assert not re.search(r"^compile \d", ended.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("square.py", ("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
        ("gelu.py", ("--variant", "fast"), "argument --variant: invalid choice: 'fast'"),
        ("streams.py", ("--steps", "0"), "argument --steps: 0 is less than 1"),
        ("remedies.py", ("speed",), "no such pair: speed; there are vocabulary, "),
        ("matmul.py", ("--sizes", "12,x"), "argument --sizes: '12,x' is no list such as 512,1024"),
        ("launch_bound.py", ("--kernels", 2**22, "--steps", 3), f"{MOST}: float32 counts no further by ones"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(name, arguments, message, monkeypatch, capsys):
    status, out, err = refused(name, monkeypatch, capsys, *arguments)
    assert (status, out) == (2, "")
    assert f"{name}: error: {message}" in err


def test_the_pairs_are_listed_without_running():
    ended = run(KERNELS / "remedies.py", "--list")
    assert [line.partition(" ")[0] for line in ended.stdout.splitlines()] == list(kernel_files.documented_pairs())
    assert "a vocabulary of 50257 -> padded to 50304" in ended.stdout
