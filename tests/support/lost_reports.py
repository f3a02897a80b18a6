"""Reductions read one by one, and openers of reports that end the process they run in, for other processes to find."""

import os
import signal
import time
from functools import partial

from kanalyze.readers import read
from kanalyze.readers.capture.reports import Run
from kanalyze.reduction import tables
from kanalyze.reduction.tables import origin_of
from kanalyze.several.reducing import Task


def opened(path, folder):
    """Opens the report; says in `folder` that it was, and in which process."""
    (folder / f"{path.name}.{os.getpid()}").touch()
    return read(path, cache=False)


def killed(path, folder):
    """Kills this process, as the system does where memory is short."""
    opened(path, folder).close()
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def killed_once(path, folder):
    """Kills the first process that reads the report; the next one reads it."""
    if not [*folder.glob(f"{path.name}.*")]:
        killed(path, folder)
    return opened(path, folder)


def defect(path, folder):
    """Raises what is no error of a report's."""
    raise ZeroDivisionError(f"{path.name} in {folder.name}")


def task(opener, path, folder):
    """The task of reducing the report at `path`, opened by `opener`."""
    run = Run("torch", path, partial(opener, path, folder), path)
    return Task(str(path), origin_of(path), run)


def load(folder):
    """The reduction in a folder, all of whose files are checked; raises what is wrong with it."""
    tables.checked(folder)
    found = tables.load([folder])
    return found | {"ranks": found["ranks"].drop("reduction")}
