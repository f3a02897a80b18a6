"""The CUDA sources compile without a warning, count their work right, and tell a wrong result from a right one."""

import ast
import shutil
import subprocess

import pytest

from support.kernel_files import CUDA, KERNELS

NVCC = shutil.which("nvcc")
pytestmark = [pytest.mark.skipif(NVCC is None, reason="nvcc is not on PATH"), pytest.mark.slow]  # it compiles

WARNINGS = ("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror")
ONE = ("-arch=sm_90",)
SEVERAL = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=[sm_90,compute_90]")


def start(*command):
    return subprocess.run(  # noqa: S603 - the compiler, and what it made of our own sources
        list(map(str, command)), capture_output=True, text=True, timeout=100, check=False
    )


def nvcc(*arguments):
    return start(NVCC, *arguments)


def source_in(script):
    """The CUDA source that a Python workload hands to load_inline."""
    for node in ast.parse((KERNELS / script).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CUDA_SOURCE":
            return ast.literal_eval(node.value)
    raise AssertionError(script)


def run_with(name, statements, folder):
    """Run `statements` in a program that holds everything of a .cu file but its main."""
    program = folder / "program.cu"
    program.write_text(
        f'#define main main_of_the_file\n#include "{KERNELS / name}"\n#undef main\nint main() {{ {statements} }}\n'
    )
    compiled = nvcc(*ONE, "-o", folder / "program", program)
    assert (compiled.returncode, compiled.stderr) == (0, "")
    return start(folder / "program")


@pytest.mark.parametrize("name", [*CUDA, "_add_extension_kernel.cu", "square_inline.py", "gelu.py"])
def test_a_source_compiles_for_several_architectures_without_a_warning(name, tmp_path):
    """Also one that is a text inside a script."""
    source = KERNELS / name
    if source.suffix == ".py":
        source = tmp_path / "source.cu"
        source.write_text(source_in(name))
    compiled = nvcc(*SEVERAL, "-lineinfo", *WARNINGS, "-c", "-o", tmp_path / "out.o", source)
    assert (compiled.returncode, compiled.stdout + compiled.stderr) == (0, "")


@pytest.mark.parametrize("name", CUDA)
def test_operations_bytes_and_errors(name, tmp_path):
    ended = run_with(
        name,
        """
        static_assert(flops(1000) == 1000);
        static_assert(bytes_moved(1000) == 12000);
        static_assert(bytes_moved(1LL << 40) == 12LL << 40);
        float right[] = {3, 3, 3}, wrong[] = {3, 2.5f, 4}, none[] = {3, NAN, 3}, infinite[] = {3, -INFINITY, 3};
        std::cout << max_error(3, right) << ' ' << max_error(3, wrong) << ' ' << max_error(3, none) << ' '
                  << max_error(3, infinite) << std::endl;
        return 0;
        """,
        tmp_path,
    )
    assert ended.stdout == "0 1 nan inf\n"


def test_add_parallel_reads_its_command_line(tmp_path):
    ended = run_with(
        "add_parallel.cu",
        """
        static_assert(bytes_copied(1000) == 12000);
        const char *lines[][5] = {{"add_parallel"},
                                  {"add_parallel", "--variant", "explicit", "--size", "17"},
                                  {"add_parallel", "--size", "2147483647"},
                                  {"add_parallel", "--size", "2147483648"},
                                  {"add_parallel", "--size", "0"},
                                  {"add_parallel", "--size", "12x"},
                                  {"add_parallel", "--size"},
                                  {"add_parallel", "--variant", "fast"},
                                  {"add_parallel", "--help"}};
        for (auto &line : lines) {
          int count = 0;
          while (count < 5 && line[count] != nullptr) count++;
          Options options;
          bool good = parse(count, const_cast<char **>(line), options);
          std::cout << good << ' ' << options.explicit_copies << ' ' << options.size << std::endl;
        }
        return 0;
        """,
        tmp_path,
    )
    assert ended.stdout.splitlines()[:3] == ["1 0 1048576", "1 1 17", "1 0 2147483647"]
    assert [line[0] for line in ended.stdout.splitlines()[3:]] == ["0"] * 6


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
@pytest.mark.parametrize("name", CUDA)
def test_without_a_gpu_a_program_says_so_and_claims_no_result(name, tmp_path):
    assert nvcc(*ONE, "-o", tmp_path / "program", KERNELS / name).returncode == 0
    ended = start(tmp_path / "program")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("cudaMallocManaged: CUDA ")
