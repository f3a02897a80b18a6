"""With how many threads, and which allocator, commands load polars."""

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
