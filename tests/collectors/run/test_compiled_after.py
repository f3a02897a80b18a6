"""What Triton compiled in a run without the torch pass, told from its cache before and after."""

import json
from pathlib import Path

import pytest

from kanalyze.collectors import collect
from kanalyze.collectors.run import compiled_after

KERNEL = {"target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "num_warps": 4, "num_stages": 3, "shared": 0}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    folder = tmp_path / "triton-cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


def put(cache, key, name):
    folder = cache / key
    folder.mkdir(parents=True)
    (folder / f"{name}.json").write_text(json.dumps({**KERNEL, "hash": key * 32, "name": name}))
    (folder / f"{name}.ptx").write_text(f"// {name}")


def rows(folder):
    return [
        (row["name"], row["cache_hit"], row["ptx"])
        for row in json.loads((folder / "compiled.json").read_text())["kernels"]
    ]


def test_what_is_new_is_kept_and_what_came_from_the_cache_is_said(cache, tmp_path):
    put(cache, "aa", "old_kernel")
    put(cache, "bb", "of_another_program")
    before = compiled_after.cached()
    put(cache, "cc", "new_kernel")
    (note,) = compiled_after.keep(tmp_path, before, {"old_kernel", "new_kernel", "_Z3addiPfS_"})
    assert note == (
        "1 kernel (old_kernel) came from Triton's cache, so that compiled.json does not have it; "
        "the torch pass compiles everything afresh"
    )
    assert rows(tmp_path) == [("new_kernel", False, "triton/new_kernel-cccccccc.ptx")]
    assert (tmp_path / "triton/new_kernel-cccccccc.ptx").read_text() == "// new_kernel"


@pytest.mark.parametrize(
    ("number", "told"), [(3, "3 kernels (a, b, c) came"), (4, "4 kernels (a, b, c, …) came"), (0, None)]
)
def test_of_several_from_the_cache_the_first_are_named(cache, tmp_path, number, told):
    names = "abcd"[:number]
    for name in names:
        put(cache, name * 2, name)
    notes = compiled_after.keep(tmp_path, compiled_after.cached(), {*names})
    assert [note.startswith(told) and "does not have them" in note for note in notes] == [True] * bool(told)


def test_without_anything_new_there_is_no_file_and_no_note(cache, tmp_path):
    put(cache, "aa", "old_kernel")
    assert compiled_after.keep(tmp_path, compiled_after.cached(), {"_Z3addiPfS_"}) == []
    assert not (tmp_path / "compiled.json").exists()


def test_what_the_torch_pass_wrote_stays(cache, tmp_path):
    put(cache, "aa", "new_kernel")
    (tmp_path / "compiled.json").write_text("{}")
    assert compiled_after.keep(tmp_path, frozenset(), set()) == []
    assert (tmp_path / "compiled.json").read_text() == "{}"


@pytest.fixture
def script(stand_ins, cache):
    """A script that lets Triton compile a kernel, and a Python that has torch."""
    path = Path("train.py")
    metadata = json.dumps({**KERNEL, "hash": "dd" * 32, "name": "mine"})
    path.write_text(f"mkdir -p {cache}/dd; echo '{metadata}' > {cache}/dd/mine.json; echo 'check: ok'\n")
    return path.absolute(), stand_ins.make("python3")


@pytest.mark.parametrize("passes", [("nsys",), ("ncu",), ("nsys", "ncu")])
@pytest.mark.one_in(4)
def test_a_run_without_the_torch_pass_keeps_what_it_compiled(script, passes):
    path, python = script
    capture = collect(path, output=Path("cap"), python=python, passes=passes)
    assert rows(Path("cap")) == [("mine", False, None)]
    assert "compiled.json" in capture.manifest["files"]


@pytest.mark.slow
def test_where_the_torch_pass_is_done_its_word_counts(script):
    path, python = script
    collect(path, output=Path("cap"), python=python)
    assert not Path("cap/compiled.json").exists()
    assert not [*Path("cap").glob(".caches*")]


@pytest.mark.slow
def test_where_the_torch_pass_fails_the_cache_is_looked_at(stand_ins, script):
    path, python = script
    stand_ins.mode("python3", "runner fails")
    collect(path, output=Path("cap"), python=python)
    assert rows(Path("cap")) == [("mine", False, None)]
