"""The rows of compiled.json, from Triton caches made by hand as Triton lays them out."""

import json
import logging
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from kanalyze.collectors.in_workload import compiled
from kanalyze.collectors.in_workload.compiled import Caches, OutputCode, origins, resources
from kanalyze.collectors.in_workload.hooks import when_imported

INDUCTOR_FILE = f"/home/me/torchinductor_me/ab/c{'a' * 51}.py"
MS = 1_000_000


def put(cache, key, name, *, source="/home/me/square.py", took_ms=90, **metadata):
    """A kernel in the cache, with `took_ms` between its first file and its last."""
    folder = cache / f"FOLDER{key}"
    folder.mkdir(parents=True)
    place = f'loc("{source}":12:1)'
    for ending, text in (("source", f"#loc = {place}\nmodule {{}}"), ("ptx", f"// {name}"), ("ttir", place)):
        (folder / f"{name}.{ending}").write_text(text)
    document = {"hash": key * 32, "name": name, "target": {"backend": "cuda", "arch": 90, "warp_size": 32}}
    document |= {"num_warps": 4, "num_stages": 3, "shared": 1024, **metadata}
    (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / f"__grp__{name}.json").write_text(json.dumps({"child_paths": {}}))
    os.utime(folder / f"{name}.source", ns=(0, 0))
    os.utime(folder / f"{name}.json", ns=(took_ms * MS, took_ms * MS))
    return folder


def test_rows_of_kernels(tmp_path, gold):
    """Sorted by name and warps; what is no kernel is passed over, and without stages a name tells the generator."""
    caches = {name: tmp_path / name for name in ("usual", "worker", "heard", "user", "bare", "none")}
    put(caches["usual"], "cc", "square", num_warps=8)
    put(caches["usual"], "bb", "square", num_warps=4)
    put(caches["usual"], "aa", "triton_poi_fused_mul_0", source=INDUCTOR_FILE)
    for name, text in (("cut.json", '{"hash": "1'), ("list.json", "[]"), ("square.autotune.json", '{"key": []}')):
        (caches["usual"] / "FOLDERbb" / name).write_text(text)
    (caches["usual"] / "FOLDERdd").mkdir()
    put(caches["worker"], "bb", "triton_red_fused_sum_0", source=INDUCTOR_FILE, took_ms=25)
    put(caches["heard"], "aa", "square")
    for key, name in (("aa", "of_another_run"), ("bb", "from_the_cache")):
        put(caches["user"], key, name)
    before = frozenset(one.metadata["hash"] for one in compiled.entries([caches["user"]]))
    put(caches["user"], "cc", "new")
    for key, name in (("aa", "triton_poi_0"), ("bb", "square")):
        folder = put(caches["bare"], key, name)
        for ending in ("source", "ttir", "ptx"):
            (folder / f"{name}.{ending}").unlink()
    hit, made = None, 123_000
    heard = {"worker": {"bb" * 32: hit}, "heard": {"aa" * 32: made}, "user": {"bb" * 32: hit, "cc" * 32: made}}
    lines = []
    for name, folder in caches.items():
        how = {"before": before} if name == "user" else {}
        rows = compiled.rows(compiled.entries([folder]), heard=heard.get(name), **how)
        lines += [f"## {name}", *map(json.dumps, rows)]
    gold("\n".join([*lines, ""]), "compiled.txt")


def test_ptx_and_rows_are_kept_beside_the_reports(tmp_path):
    put(tmp_path / "cache", "aa", "square")
    put(tmp_path / "cache", "bb", "square", num_warps=8)
    capture = tmp_path / "capture"
    capture.mkdir()
    assert (compiled.keep(capture, [], []), compiled.merge_ranks(capture)) == ([], None)
    found = compiled.entries([tmp_path / "cache"])
    made, names = compiled.rows(found), ["triton/square-aaaaaaaa.ptx", "triton/square-bbbbbbbb.ptx"]
    assert compiled.keep(capture, found, made) == [capture / name for name in ("compiled.json", *names)]
    assert json.loads((capture / "compiled.json").read_text()) == {"schema": 1, "kernels": made}
    assert [row["ptx"] for row in made] == names
    assert (capture / names[1]).read_text() == "// square"


def test_ranks_become_one_table_with_the_longest_time_of_each_kernel(tmp_path):
    put(tmp_path / "cache", "aa", "square")
    put(tmp_path / "cache", "bb", "gelu")
    gelu, square = compiled.rows(compiled.entries([tmp_path / "cache"]))
    longest = square | {"compile_ns": 30}
    for rank, kernels in enumerate(([square | {"compile_ns": 10}], [longest, gelu])):
        (tmp_path / f"compiled-rank{rank}.json").write_text(json.dumps({"schema": 1, "kernels": kernels}))
    assert compiled.merge_ranks(tmp_path) == tmp_path / "compiled.json"
    merged = json.loads((tmp_path / "compiled.json").read_text())
    assert merged == {"schema": 1, "kernels": [gelu, longest]}


@pytest.mark.parametrize(
    ("chosen", "home"), [({"TRITON_CACHE_DIR": "/c"}, "/c"), ({"TRITON_HOME": "/h"}, "/h"), ({}, "/home/me")]
)
def test_where_triton_keeps_kernels(tmp_path, chosen, home):
    inductor = tmp_path / "torchinductor_me" / "triton" / "0"
    inductor.mkdir(parents=True)
    found = compiled.caches({"HOME": "/home/me", "USER": "me", "TMPDIR": str(tmp_path), **chosen})
    assert found == ([Path("/c")] if home == "/c" else [Path(home, ".triton", "cache"), inductor])


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that nobody has imported, and that is forgotten afterwards."""
    name = f"package_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from . import knobs\nafter = knobs.value\n")
    (tmp_path / name / "knobs.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[module]


def test_a_module_is_met_when_the_program_imports_it(package):
    met = []
    when_imported(f"{package}.knobs", lambda module: (met.append(module.value), setattr(module, "value", 2)))
    assert met == []
    module = __import__(package)
    assert (met, module.after) == ([1], 2)
    when_imported(f"{package}.knobs", lambda again: met.append(again.value))
    assert met == [1, 2]


def test_the_listener_hears_of_the_first_time_and_passes_on_to_the_one_before(tmp_path):
    class Times:
        total = 1_500

    class Knobs:
        class compilation:  # noqa: N801 - Triton's own name
            listener = None

    others, heard = [], Caches(tmp_path, "", fresh=False)
    Knobs.compilation.listener = lambda **event: others.append(event["cache_hit"])
    heard.listen(object())
    assert heard.heard == {}  # an older Triton has no listener
    heard.listen(Knobs)
    for hit in (False, True):
        Knobs.compilation.listener(
            src=None, metadata={"hash": "aa"}, metadata_group={}, times=Times(), cache_hit=hit, new_keyword=1
        )
    assert heard.heard == {"aa": 1_500_000}
    assert others == [False, True]


def test_output_code_is_kept_and_nothing_else(tmp_path):
    code = OutputCode(tmp_path / "inductor" / "output_code.py")
    code.listen()
    logger = logging.getLogger("torch._inductor.codecache.__output_code")
    logger.debug("Output code: \n%s", "x = 1\n")
    logger.debug("Output code written to: %s", "/somewhere")
    logger.debug("Output code: \n%s", "y = 2")
    assert code.finish() == [tmp_path / "inductor" / "output_code.py"]
    assert (tmp_path / "inductor" / "output_code.py").read_text() == "# graph 1\nx = 1\n\n\n# graph 2\ny = 2\n\n\n"
    assert [path.name for path in (tmp_path / "inductor").iterdir()] == ["output_code.py"]


GRAPH = """TRACED GRAPH
 ===== AFTER POST GRAD =====
    def forward(self, arg0_1: "f32[4, 8]"):
        \x1b[2m# File: /home/me/model.py:10 in forward, code: y = torch.relu(x) * 2\x1b[0m
        relu: "f32[4, 8][8, 1]cuda:0" = torch.ops.aten.relu.default(arg0_1);  arg0_1 = None
        mul = torch.ops.aten.mul.Tensor(relu, 2);  relu = None

        # File: /opt/other.py:11 in f, code: return gelu(y)
        gelu: "f32[4, 8]" = torch.ops.aten.gelu.default(mul)

        # No stacktrace found for following nodes
        copy: "f32[4, 8]" = torch.ops.aten.copy_.default(gelu)
"""

CODE = """async_compile = AsyncCompile()


# kernel path: /tmp/inductor/7b/c7b.py
# Topologically Sorted Source Nodes: [relu, y], Original ATen: [aten.relu, aten.mul]
# Graph fragment:
#   %arg0_1 : Tensor "f32[4, 8][8, 1]cuda:0" = PlaceHolder[target=arg0_1]
#   %relu : Tensor "f32[4, 8]"[num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%arg0_1,))
#   %mul : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor](args = (%relu, 2), kwargs = {})
#   return %mul
triton_poi_fused_mul_relu_0 = async_compile.triton('triton_poi_fused_mul_relu_0', '''
''')

# kernel path: /tmp/inductor/ab/cab.py
# Topologically Sorted Source Nodes: [], Original ATen: []
# Graph fragment:
#   %copy : [num_users=1] = call_function[target=torch.ops.aten.copy_.default](args = (%gelu,), kwargs = {})
triton_poi_fused_1 = async_compile.triton('triton_poi_fused_1', '''
"""


def test_kernels_lead_to_the_operators_and_lines_that_they_were_made_of(tmp_path, monkeypatch, capsys):
    lines = {"relu": "model.py:10", "mul": "model.py:10", "gelu": "/opt/other.py:11"}
    assert compiled.node_lines(GRAPH, "/home/me") == lines
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/me"))
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    code = OutputCode(tmp_path / "output_code.py")
    code.listen()
    logging.getLogger("torch._inductor.compile_fx.__post_grad_graphs").debug("%s", GRAPH)
    logging.getLogger("torch._inductor.codecache.__output_code").debug("Output code: \n%s", CODE)
    nothing = {"operators": None, "lines": None}
    assert code.origins == {"c7b.py": {"operators": "aten::relu, aten::mul", "lines": "model.py:10"}, "cab.py": nothing}
    assert code.origins == origins(CODE + "triton_poi_fused_mul_relu_0.run(buf)\n", lines)
    # of other calls of the same code nobody knows the lines
    again = origins(CODE + 2 * "triton_poi_fused_mul_relu_0.run(buf)\n", lines)
    assert again["c7b.py"] == nothing | {"operators": "aten::relu, aten::mul"}
    # code from a cache has no graph before it
    logging.getLogger("torch._inductor.codecache.__output_code").debug("Output code: \n%s", CODE)
    assert code.origins["c7b.py"] == nothing | {"operators": "aten::relu, aten::mul"}
    code.finish()
    assert capsys.readouterr() == ("", "")


def test_a_row_has_what_the_code_of_its_file_says(tmp_path):
    put(tmp_path / "cache", "aa", "triton_poi")
    (entry,) = compiled.entries([tmp_path / "cache"])
    entry.beside(".ttir").write_text('#loc = loc("/tmp/inductor/7b/c7b.py":18:0)')
    (row,) = compiled.rows([entry], made_of={"c7b.py": {"operators": "aten::mul", "lines": None}})
    assert (row["operators"], row["lines"]) == ("aten::mul", None)


def test_caches_of_ones_own_are_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/users/own")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/users/own")
    caches = Caches(tmp_path, "-rank1", fresh=True)
    caches.begin()
    put(tmp_path / ".caches-rank1" / "triton", "aa", "square")
    files, made = caches.finish()
    assert [path.name for path in files] == ["compiled-rank1.json", "square-aaaaaaaa.ptx"]
    assert [(row["name"], row["ptx"]) for row in made] == [("square", "triton/square-aaaaaaaa.ptx")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compiled-rank1.json", "triton"]


KERNEL = """
    import sys
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit
    def double_kernel(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    for warps in (4, 8, 4):
        source = ASTSource(fn=double_kernel, signature=signature, constexprs={"BLOCK": 1024})
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
"""


def test_a_real_triton_is_heard_and_its_cache_read(tmp_path):
    """Compiles for a GPU that need not be there; registers are held against what Triton's cuobjdump prints."""
    triton = pytest.importorskip("triton", reason="needs triton, which has no GPU to compile for but no need of one")
    script = tmp_path / "kernel.py"
    script.write_text(textwrap.dedent(KERNEL))
    watching = textwrap.dedent(f"""
        import json, pathlib, runpy
        from kanalyze.collectors.in_workload.compiled import Caches
        caches = Caches(pathlib.Path({str(tmp_path)!r}), "", fresh=True)
        caches.own = pathlib.Path({str(tmp_path / "kept")!r})
        caches.begin()
        caches.fresh = False  # so that the cache is still there to be looked at
        runpy.run_path({str(script)!r})
        caches.fresh = True
        import shutil; shutil.copytree(caches.own / "triton", {str(tmp_path / "copy")!r})
        caches.finish()
    """)
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-c", watching]
    subprocess.run(command, check=True, timeout=100, env=compiling)  # noqa: S603
    rows = json.loads((tmp_path / "compiled.json").read_text())["kernels"]
    told = [(each["name"], each["num_warps"], each["arch"], each["source"], each["cache_hit"]) for each in rows]
    assert told == [("double_kernel", 4, 90, "triton", False), ("double_kernel", 8, 90, "triton", False)]
    assert all(each["compile_ns"] > 0 and each["spills"] == 0 for each in rows)
    assert all(".visible .entry double_kernel(" in (tmp_path / each["ptx"]).read_text() for each in rows)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    binaries = {entry.metadata["hash"]: entry.beside(".cubin") for entry in compiled.entries([tmp_path / "copy"])}
    for each in rows:
        command = [tool, "--dump-resource-usage", binaries[each["hash"]]]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
        assert f"REG:{each['registers']} STACK:0 " in said


# Registers and local memory, held against cubins put together by hand


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
    assert resources(file, "add_kernel") == (22, 0)
    assert resources(file, "_Z3mulPf") == (255, 26_608)
    assert resources(file, "add") is resources(b"", "add") is resources(b"#!/bin/sh\n", "add") is None
    # records of other forms are stepped over
    others = struct.pack("<BBH", 3, 0x1B, 0xFF) + struct.pack("<BBHIII", 4, 0x0A, 12, 1, 2, 3)
    assert resources(cubin([("add_kernel", 40, 16)], others), "add_kernel") == (40, 16)


@given(st.binary(max_size=300), st.integers(0, 510))
def test_damage_never_raises(noise, at):
    file = cubin([("add_kernel", 22, 8)])
    resources(file[:at] + noise + file[at + len(noise) :], "add_kernel")
