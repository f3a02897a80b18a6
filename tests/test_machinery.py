"""Modules that load when first used; how many threads polars and NumPy get; children that end with their parent."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files

import pytest

from kanalyze.machinery import loading_late
from support.command import ended, started

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="children end with their parent on Linux")


def python(code, *unset, **own):
    """Runs a program, without some variables of the environment and with others."""
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return ended([sys.executable, "-c", code], env=kept | own)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Modules, and a package that nobody may load, with a module and one that imports it."""
    folder = tmp_path / "late_package"
    folder.mkdir()
    texts = {
        "late_one.py": "import time\ntime.sleep(0.05)\nraise_nothing = 7\n",
        "late_broken.py": "1 / 0\n",
        "late_package/__init__.py": '"""What it is about."""\nnamed = 5\n',
        "late_package/inner.py": "value = 3\n",
        "late_package/data.txt": "data",
        "late_package/outer.py": "from late_package import inner\nvalue = inner.value + 1\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("late_")]:
        sys.modules.pop(name)


def loaded(name):
    return "__builtins__" in object.__getattribute__(sys.modules[name], "__dict__")


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("asked", [lambda module: module.raise_nothing, lambda module: vars(module)["raise_nothing"]])
def test_a_module_loads_when_something_of_it_is_first_asked_for(asked):
    before = sys.meta_path.copy()
    with loading_late("late_one"):
        late_one = import_module("late_one")
    assert sys.meta_path == before
    assert not loaded("late_one")
    with ThreadPoolExecutor(8) as pool:  # threads that ask at once get all of it
        assert [*pool.map(lambda _: asked(late_one), range(8))] == [7] * 8


@pytest.mark.usefixtures("made")
def test_other_modules_load_at_once():
    with loading_late("late_one"), pytest.raises(ZeroDivisionError):
        import_module("late_broken")
    with loading_late("nowhere_at_all"), pytest.raises(ModuleNotFoundError):
        import_module("nowhere_at_all")


@pytest.mark.usefixtures("made")
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


@pytest.mark.usefixtures("made")
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


#: Tells how many threads polars has where it is imported sparingly, and what is left of how it was told.
LOADING = """
import os
from kanalyze import machinery
machinery.workers = lambda: 1
with machinery.sparing_memory():
    import polars
print(polars.thread_pool_size(), sorted({"POLARS_MAX_THREADS", "_RJEM_MALLOC_CONF"} & {*os.environ}))
"""

#: Tells how many threads NumPy is told to have where it would be imported, and what is left of that.
MULTIPLYING = """
import os
from kanalyze import machinery
with machinery.WHERE():
    import polars
with machinery.one_blas_thread():
    told = os.environ.get("OPENBLAS_NUM_THREADS")
print(told, os.environ.get("OPENBLAS_NUM_THREADS"))
"""
IN_COMMAND, IN_LIBRARY = (MULTIPLYING.replace("WHERE", where) for where in ("sparing_memory", "one_blas_thread"))


@pytest.mark.parametrize(
    ("code", "own", "said"),
    [
        (LOADING, {}, "1 []"),
        (LOADING, {"POLARS_MAX_THREADS": "3"}, "3 ['POLARS_MAX_THREADS']"),
        (IN_COMMAND, {}, "1 None"),
        (IN_COMMAND, {"OPENBLAS_NUM_THREADS": "3"}, "3 3"),
        (IN_LIBRARY, {}, "None None"),
    ],
    ids=["polars", "polars as told", "numpy", "numpy as told", "numpy in a library"],
)
def test_as_many_threads_as_work_together_unless_told_otherwise(code, own, said):
    done = python(code, "POLARS_MAX_THREADS", "_RJEM_MALLOC_CONF", "OPENBLAS_NUM_THREADS", **own)
    assert done.stdout.strip() == said


#: Starts a child that holds standard output, and is killed as soon as that child says something.
_STARTS = {
    "end_with": """
import os, time
from kanalyze.machinery import end_with
parent = os.getpid()
if not os.fork():
    end_with(parent)
    print("child", flush=True)
    time.sleep(600)
time.sleep(600)""",
    "nsys": """
import sys, time
from pathlib import Path
from kanalyze.readers.nsys.read_rep import run
run([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"], Path("/dev/stdout"), print)
time.sleep(600)""",
    "ncu": """
import sys
from kanalyze.readers.ncu.read_csv_rep import run_program
said = "import os, time; out = open(f'/proc/{os.getppid()}/fd/1', 'w'); print('child', file=out, flush=True); "
run_program([sys.executable, "-c", said + "time.sleep(600)"])""",
}


@pytest.mark.slow
@ON_LINUX
@pytest.mark.parametrize("starts", _STARTS)
def test_a_child_ends_when_its_parent_is_killed(starts):
    with started([sys.executable, "-c", _STARTS[starts]], stderr=None, text=True) as parent:
        assert parent.stdout.readline() == "child\n"
        parent.kill()
        assert parent.stdout.read() == ""  # which waits for the end of all that could write


@pytest.mark.slow
@ON_LINUX
def test_a_child_whose_parent_ended_before_ends_at_once():
    done = python("from kanalyze.machinery import end_with; end_with(1 << 30); print('lives on')")
    assert (done.returncode, done.stdout) == (1, "")
