"""Work on frames in one thread: to hand something over to another takes longer than to do it, unless it is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import polars as pl

T = TypeVar("T")


def in_one_thread(work: Callable[[], T]) -> T:
    """Runs `work` with all that polars does for it in the calling thread.

    polars hands filters, sorts, groups and joins to its pool of threads and waits for them, which takes several times
    as long as they do on frames of a few rows. It hands over nothing in a thread in which its streaming engine runs,
    which has one already for each processor; and there it calls what a query maps a frame with. Should it do otherwise
    one day, only speed is lost: without it the pages of reports of 0.2 to 0.6 MB take 0.05 s more of 0.5 to 0.75 s of
    CPU time, and up to 0.13 s more of 0.8 s until they are there, and that of 23 MB 0.07 s more of 1.29 s of CPU time.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run(frame: pl.DataFrame) -> pl.DataFrame:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - any would come out as an error of polars
            errors.append(error)
        return frame

    try:
        pl.LazyFrame({"any": [0]}).map_batches(run).collect(engine="streaming")
    except KeyboardInterrupt:
        if not errors:
            raise  # else it is the one that `work` ended with, once more
    if errors:
        raise errors.pop()  # held by nothing but what catches it
    return found[0] if found else work()
