"""With how many threads, and which allocator, commands load polars and NumPy."""

import os
import subprocess
import sys

import pytest

LOADING = """
import os
from kanalyze.machinery import memory
memory.workers = lambda: 1
with memory.sparing_memory():
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
from kanalyze.machinery import memory
with memory.{where}():
    import polars
with memory.one_blas_thread():
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
