"""Registers and local memory from a cubin, held against cubins put together by hand."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanalyze.collectors.in_workload.cubin import Resources, resources


def cubin(functions, extra=b""):
    """An ELF file with a symbol per function, and a .nv.info with their registers and frames; `extra` stands first."""
    strings, symbols, info = b"\0", bytes(24), extra
    for number, (name, registers, frame) in enumerate(functions, 1):
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 5, 0, 0)
        strings += name.encode() + b"\0"
        info += struct.pack("<BBHII", 4, 0x11, 8, number, frame) + struct.pack("<BBHII", 4, 0x2F, 8, number, registers)
    names = b"\0.shstrtab\0.strtab\0.symtab\0.nv.info\0"
    parts = [(0, 0, b"", 0), (1, 3, names, 0), (11, 3, strings, 0), (19, 2, symbols, 2), (27, 0x70000000, info, 3)]
    body, headers = b"", b""
    for name, kind, content, link in parts:
        headers += struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, 64 + len(body), len(content), link, 0, 4, 0)
        body += content
    head = b"\x7fELF\x02\x01".ljust(16, b"\0") + struct.pack("<HHIQQQ", 2, 190, 1, 0, 0, 64 + len(body))
    return head + struct.pack("<IHHHHHH", 0, 64, 56, 0, 64, len(parts), 1) + body + headers


def test_each_function_has_its_own():
    file = cubin([("add_kernel", 22, 0), ("_Z3mulPf", 255, 26_608)])
    assert resources(file, "add_kernel") == Resources(registers=22, local_bytes=0)
    assert resources(file, "_Z3mulPf") == Resources(registers=255, local_bytes=26_608)


def test_a_function_that_is_not_there_is_none():
    assert resources(cubin([("add_kernel", 22, 0)]), "add") is None


def test_records_of_other_forms_are_stepped_over():
    others = struct.pack("<BBH", 3, 0x1B, 0xFF) + struct.pack("<BBHIII", 4, 0x0A, 12, 1, 2, 3)
    assert resources(cubin([("add_kernel", 40, 16)], others), "add_kernel") == Resources(40, 16)


def test_what_is_no_cubin_is_none():
    assert resources(b"", "f") is None
    assert resources(b"#!/bin/sh\n", "f") is None


@pytest.mark.parametrize("keep", range(0, 504, 7))
def test_a_cut_file_is_none(keep):
    file = cubin([("add_kernel", 22, 8)])
    assert keep < len(file)
    assert resources(file[:keep], "add_kernel") is None


@given(st.binary(max_size=300), st.integers(0, 510))
def test_damage_never_raises(noise, at):
    file = cubin([("add_kernel", 22, 8)])
    resources(file[:at] + noise + file[at + len(noise) :], "add_kernel")
