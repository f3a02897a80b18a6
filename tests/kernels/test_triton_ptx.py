"""What Triton makes of the kernels, compiled for a GPU that need not be there; and how its PTX is read."""

import json
import os
import subprocess
import sys

import pytest

from support.kernel_files import KERNELS, NEEDS_TORCH, NEEDS_TRITON, load

pytest.importorskip("torch", reason=NEEDS_TORCH)
pytest.importorskip("triton", reason=NEEDS_TRITON)


PTX = """
.visible .entry square_row_kernel(
	.param .u64 .ptr .global .align 1 square_row_kernel_param_0
)
.reqntid 128
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<23>;
	.reg .b64 	%rd<17>;
	ld.param.b64 	%rd5, [square_row_kernel_param_0];
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	@%p2 ld.global.v4.b32 { %r5, %r6, %r7, %r8 }, [ %rd2 + 0 ];
	ld.shared.b32 	%r9, [%r10];
	@%p1 st.global.v4.b32 [ %rd3 + 0 ], { %r11, %r12, %r13, %r14 };
	@%p2 st.global.b32 [ %rd4 + 0 ], { %r15 };
	ret;
}
"""

#: In a process of its own, without the interpreter that the other tests of a machine without a GPU run under.
COMPILE = """
import json, sys
import torch
torch.cuda.is_available = lambda: True  # so that the file asks for no interpreter
import square_triton, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

kernel, block, warps, aligned = json.loads(sys.argv[1])
names = ("out", "x", "out_stride", "x_stride", "width")
source = ASTSource(
    getattr(square_triton, kernel),
    signature=dict(zip(names, ("*fp32", "*fp32", "i32", "i32", "i32"))) | {"BLOCK_SIZE": "constexpr"},
    constexprs={"BLOCK_SIZE": block},
    attrs={(index,): [["tt.divisibility", 16]] for index in range(5 if aligned else 2)},
)
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
ptx = compiled.asm["ptx"]
print(json.dumps([square_triton.memory_instructions(ptx), square_triton.virtual_registers(ptx)]))
"""


def compiled(kernel, block, warps, *, aligned, folder):
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ended = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", COMPILE, json.dumps([kernel, block, warps, aligned])],
        env=kept | {"PYTHONPATH": str(KERNELS), "TRITON_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_what_is_said_of_a_compiled_kernel():
    class Compiled:
        asm = {"ptx": PTX}  # noqa: RUF012
        n_regs = 32
        n_spills = 0

        class metadata:  # noqa: N801 - as Triton names it
            num_warps = 4
            shared = 16

    assert load("square_triton").describe(Compiled).splitlines() == [
        "    4 warps, 32 registers a thread, 0 spills, 16 B shared memory",
        "    PTX: 2 ld.global.v4.b32, 1 st.global.v4.b32, 1 st.global.b32; declares 2 pred, 22 b32, 16 b64",
    ]


def test_rows_that_are_a_multiple_of_16_are_moved_16_bytes_at_once(tmp_path):
    """As the docstring claims: 1024 elements of 128 threads are 8 each, two loads of 4 or eight of 1."""
    instructions, _ = compiled("square_row_kernel", 1024, 4, aligned=True, folder=tmp_path)
    assert instructions == {"ld.global.v4.b32": 2, "st.global.v4.b32": 2}
    instructions, _ = compiled("square_row_kernel", 1024, 4, aligned=False, folder=tmp_path)
    assert instructions == {"ld.global.b32": 8, "st.global.b32": 8}


def test_wide_rows_need_more_registers_in_one_block_and_no_more_in_a_loop(tmp_path):
    _, narrow = compiled("square_row_kernel", 1024, 4, aligned=True, folder=tmp_path)
    _, wide = compiled("square_row_kernel", 16_384, 16, aligned=True, folder=tmp_path)
    _, loop = compiled("square_loop_kernel", 1024, 4, aligned=True, folder=tmp_path)
    assert wide["b32"] > 2 * narrow["b32"]
    assert loop["b32"] < 1.5 * narrow["b32"]
