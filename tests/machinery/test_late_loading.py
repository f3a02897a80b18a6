"""Modules that load when they are first used; with how many threads, and which allocator, polars and NumPy do."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files

import pytest

from kanalyze.machinery.late_loading import loading_late


@pytest.fixture
def made(tmp_path, monkeypatch):
    (tmp_path / "late_one.py").write_text("raise_nothing = 7\n")
    (tmp_path / "late_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("late_one", "late_broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("made")
def test_a_module_loads_when_it_is_first_used():
    before = sys.meta_path.copy()
    with loading_late("late_one"):
        late_one = import_module("late_one")
    assert sys.meta_path == before
    assert "raise_nothing" not in object.__getattribute__(late_one, "__dict__")
    assert late_one.raise_nothing == 7


@pytest.mark.usefixtures("made")
def test_other_modules_load_at_once():
    with loading_late("late_one"), pytest.raises(ZeroDivisionError):
        import_module("late_broken")
    with loading_late("nowhere_at_all"), pytest.raises(ModuleNotFoundError):
        import_module("nowhere_at_all")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that nobody may load, with a module and one that imports it."""
    folder = tmp_path / "late_package"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""What it is about."""\nnamed = 5\n')
    (folder / "inner.py").write_text("value = 3\n")
    (folder / "data.txt").write_text("data")
    (folder / "outer.py").write_text("from late_package import inner\nvalue = inner.value + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("late_package")]:
        sys.modules.pop(name)


def loaded(name):
    return "__builtins__" in object.__getattribute__(sys.modules[name], "__dict__")


@pytest.mark.usefixtures("package")
def test_a_module_leaves_the_package_around_it_unloaded_until_that_is_used():
    with loading_late("late_package"):
        outer = import_module("late_package.outer")
        package = import_module("late_package")
    assert (files(package) / "data.txt").read_text() == "data"
    assert not loaded("late_package.outer")
    assert outer.value == 4
    assert [loaded(f"late_package{name}") for name in (".outer", ".inner", "")] == [True, True, False]
    assert package.__doc__ == "What it is about."
    assert (package.named, loaded("late_package")) == (5, True)


@pytest.mark.usefixtures("package")
def test_it_loads_in_a_context():
    entered = []

    @contextmanager
    def within():
        entered.append("begin")
        yield
        entered.append("end")

    with loading_late("late_package", within=within):
        inner = import_module("late_package.inner")
    assert entered == []
    assert inner.value == 3
    assert entered == ["begin", "end"]
    with pytest.raises(AttributeError):
        _ = inner.nothing


@pytest.mark.usefixtures("made")
def test_it_loads_when_all_that_it_holds_is_asked_for():
    with loading_late("late_one"):
        late_one = import_module("late_one")
    assert vars(late_one)["raise_nothing"] == 7


@pytest.mark.usefixtures("made")
def test_threads_that_ask_at_once_get_all_of_it(tmp_path):
    (tmp_path / "late_one.py").write_text("import time\ntime.sleep(0.05)\nraise_nothing = 7\n")
    with loading_late("late_one"):
        late_one = import_module("late_one")
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda _: late_one.raise_nothing, range(8))] == [7] * 8


LOADING = """
import os
from kanalyze.machinery import late_loading
late_loading.workers = lambda: 1
with late_loading.sparing_memory():
    import polars
print(polars.thread_pool_size(), sorted({"POLARS_MAX_THREADS", "_RJEM_MALLOC_CONF"} & {*os.environ}))
"""


@pytest.mark.parametrize(
    ("own", "said"), [({}, "1 []"), ({"POLARS_MAX_THREADS": "3"}, "3 ['POLARS_MAX_THREADS']")], ids=["ours", "theirs"]
)
def test_polars_gets_as_many_threads_as_work_together_unless_told_otherwise(own, said):
    kept = {
        name: value for name, value in os.environ.items() if name not in ("POLARS_MAX_THREADS", "_RJEM_MALLOC_CONF")
    }
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", LOADING], env=kept | own, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == said


#: Tells how many threads NumPy is told to have where it would be imported, and what is left of that.
MULTIPLYING = """
import os
from kanalyze.machinery import late_loading
with late_loading.{where}():
    import polars
with late_loading.one_blas_thread():
    told = os.environ.get("OPENBLAS_NUM_THREADS")
print(told, os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(
    ("where", "own", "said"),
    [
        ("sparing_memory", {}, "1 None"),
        ("sparing_memory", {"OPENBLAS_NUM_THREADS": "3"}, "3 3"),
        ("one_blas_thread", {}, "None None"),
    ],
    ids=["ours", "theirs", "a library"],
)
def test_numpy_gets_one_thread_in_a_command_and_as_many_as_ever_in_another_program(where, own, said):
    kept = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    code = MULTIPLYING.format(where=where)
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], env=kept | own, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == said
