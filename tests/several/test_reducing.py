"""Reducing reports on engines: what is there stays, what is lost is named, and every engine gives the same."""

import json
import multiprocessing
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

import kanalyze
from kanalyze.errors import EngineError, LostReportError, NoJobError, ReportNotFoundError, UnreadableReportError
from kanalyze.reduction.tables import MANIFEST, Packed, is_whole, origin_of, packed, write
from kanalyze.several import reducing
from kanalyze.several.reducing import by_dask, by_executor, by_processes, one_by_one, reduce_reports
from support import lost_reports
from support.command import REPORTS, run
from support.lost_reports import load

DDP, FSDP, NCCL = (REPORTS / name for name in ("torch/ddp.json.gz", "torch/fsdp.json.gz", "nccl.sqlite"))
EMPTY = REPORTS / "empty.sqlite"
QUIET = pytest.mark.filterwarnings("default")  # what loky and distributed warn about is theirs


@pytest.fixture
def traces(tmp_path):
    """A folder of two traces, and one that is none."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for path in (DDP, FSDP):
        shutil.copy(path, folder)
    (folder / "broken.json").write_text('{"traceEvents": [')
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What two reports are reduced to in this process."""
    return sorted(kanalyze.reduce([DDP, str(NCCL)], tmp_path_factory.mktemp("here") / "out").made)


def names(folders):
    return sorted(folder.name.partition(".")[0] for folder in folders)


def same(one, other):
    return all(table.equals(load(other)[name]) for name, table in load(one).items())


@pytest.mark.slow
def test_a_folder_is_reduced_and_what_cannot_be_is_named(traces, tmp_path):
    steps, errors = [], []
    out, told = tmp_path / "out", {"progress": lambda *done: steps.append(done), "left_out": errors.append}
    found = reduce_reports([traces], out, one_by_one, **told)
    assert (names(found.made), found.there) == (["ddp", "fsdp"], [])
    assert [str(traces / "broken.json") in str(error) for error in found.left_out] == [True]
    assert errors == found.left_out
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
def test_tables_that_earlier_versions_kept_are_passed_over(tmp_path):
    (folder,) = reduce_reports([NCCL], tmp_path / "out", one_by_one).made
    made = packed(load(folder), origin_of(NCCL))
    head = json.loads(made.files[MANIFEST])
    head["tables"]["findings"] = {"rows": 1, "bytes": 4, "checksum": "0"}
    former = {MANIFEST: json.dumps(head).encode(), "findings.parquet": b"PAR1"}
    older = write(made._replace(files=made.files | former), tmp_path / "older")
    assert is_whole(older)
    assert kanalyze.ranks(older).ranks.equals(kanalyze.ranks(folder).ranks)


@pytest.mark.slow
def test_a_rerun_does_what_is_missing_or_changed_or_damaged(traces, tmp_path):
    out, done = tmp_path / "out", []

    def engine(tasks):
        done.append([Path(task.name).name for task in tasks])
        return one_by_one(tasks)

    def rerun(*given):
        return reduce_reports(given, out, engine)

    first = rerun(traces / "ddp.json.gz")
    assert names(rerun(traces / "ddp.json.gz", traces).made) == ["fsdp"]
    assert rerun(traces).made == []
    damaged = next(one for one in out.iterdir() if one.name.startswith("fsdp"))
    (damaged / "collectives.parquet").write_bytes(b"")
    assert names(rerun(traces).made) == ["fsdp"]
    shutil.copy(FSDP, traces / "ddp.json.gz")
    again = rerun(traces)
    assert names(again.made) == ["ddp"]
    assert first.made[0] not in (*again.made, *again.there)
    assert not first.made[0].exists()
    assert len([*out.iterdir()]) == 2
    broken = ["broken.json"]  # which each run tries again
    expected = [["ddp.json.gz"], [*broken, "fsdp.json.gz"], broken, [*broken, "fsdp.json.gz"], [*broken, "ddp.json.gz"]]
    assert done == expected


def test_where_nothing_can_be_reduced_the_first_reason_is_the_error(tmp_path):
    with pytest.raises(ReportNotFoundError):
        reduce_reports([tmp_path / "none.json"], tmp_path / "out", one_by_one)
    with pytest.raises(NoJobError, match="no work on a GPU"):
        reduce_reports([EMPTY], tmp_path / "out", one_by_one)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoJobError, match="None of the reports"):
        kanalyze.reduce([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_was_finished_before_ctrl_c_is_there(traces, tmp_path):
    def engine(tasks):
        yield from [*one_by_one(tasks)][:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reduce_reports([traces], tmp_path / "out", engine)
    assert names(tmp_path.joinpath("out").iterdir()) == ["ddp"]


def of_loky():
    return pytest.importorskip("loky").get_reusable_executor(max_workers=2)


@pytest.mark.slow
@QUIET
@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadPoolExecutor(2),
        lambda: ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")),
        of_loky,
    ],
    ids=["threads", "spawned processes", "loky"],
)
def test_executors_give_the_same(make, here, tmp_path):
    with make() as executor:
        found = kanalyze.reduce([DDP, NCCL, tmp_path / "none"], tmp_path / "there", executor)
        if make is of_loky:
            ((_, outcome),) = by_executor(executor)([lost_reports.task(lost_reports.killed, DDP, tmp_path)])
            assert isinstance(outcome, LostReportError)
    assert all(map(same, here, sorted(found.made)))
    assert (names(found.made), [type(error) for error in found.left_out]) == (["ddp", "nccl"], [ReportNotFoundError])
    direct, kept = kanalyze.ranks(NCCL), kanalyze.ranks(max(found.made))
    assert all(table.equals(kept.table(name)) for name, table in direct.tables.items())


def test_an_executor_that_was_shut_down_loses_what_it_did_not_do(tmp_path):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(LostReportError, match="cannot schedule new futures"):
        kanalyze.reduce([DDP, NCCL], tmp_path / "out", executor)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_forked_processes_are_refused(tmp_path):
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor,
        pytest.raises(ValueError, match="spawn"),
    ):
        kanalyze.reduce([DDP], tmp_path, executor)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("openers", "expected"),
    [
        ([lost_reports.opened, lost_reports.killed, lost_reports.opened, lost_reports.opened], ["1.json.gz"]),
        ([lost_reports.killed_once, lost_reports.opened, lost_reports.opened], []),
    ],
    ids=["killed each time", "killed once"],
)
def test_a_process_that_is_killed_costs_its_report_alone(openers, expected, tmp_path):
    tasks = []
    for number, opener in enumerate(openers):
        path = tmp_path / f"{number}.json.gz"
        shutil.copy(DDP, path)
        tasks.append(lost_reports.task(opener, path, tmp_path))
    found = {task.name: outcome for task, outcome in by_processes(2)(tasks)}
    lost = [Path(name).name for name, outcome in found.items() if isinstance(outcome, LostReportError)]
    assert len(found) == len(openers)
    assert lost == expected
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_pool_that_is_left_ends_its_processes(tmp_path):
    tasks = [lost_reports.task(lost_reports.opened, path, tmp_path) for path in (DDP, FSDP, NCCL)]
    working = by_processes(2)(tasks)
    next(working)
    working.close()
    assert multiprocessing.active_children() == []
    assert "POLARS_MAX_THREADS" not in os.environ


@pytest.fixture
def cluster():
    """Three workers of dask.distributed, each a process; what kills three of them is given up."""
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    workers = {"n_workers": 3, "threads_per_worker": 1, "processes": True, "memory_limit": 0}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 2}),
        distributed.LocalCluster(**workers, dashboard_address=None) as found,
    ):
        yield found


@pytest.mark.slow
@QUIET
def test_workers_of_dask_reduce_while_one_of_them_is_killed(cluster, tmp_path):
    tasks = []
    for number in range(8):
        path = tmp_path / f"{number}.json.gz"
        shutil.copy((DDP, FSDP)[number % 2], path)
        opener = lost_reports.killed_once if number == 2 else lost_reports.opened
        tasks.append(lost_reports.task(opener, path, tmp_path))
    with by_dask(cluster.scheduler_address) as engine:
        found = dict(engine(tasks))
        assert [task.name for task in tasks] == sorted(task.name for task in found)
        assert not [outcome for outcome in found.values() if not isinstance(outcome, Packed)]
        assert len([*tmp_path.glob("2.json.gz.*")]) == 2  # one was killed, another one did it
        path = tmp_path / "8.json.gz"
        shutil.copy(DDP, path)
        ((_, lost),) = engine([lost_reports.task(lost_reports.killed, path, tmp_path)])
    assert isinstance(lost, LostReportError)
    assert "KilledWorker" in str(lost)
    assert len([*tmp_path.glob("8.json.gz.*")]) == 3


@pytest.mark.slow
@QUIET
def test_dask_gives_the_same(cluster, here, tmp_path):
    told = run("reduce", DDP, EMPTY, NCCL, "-o", tmp_path / "told", "--dask", cluster.scheduler_address)
    assert (told.status, told.text.split(".")[0]) == (1, "2 reports reduced, 1 left out")
    assert all(map(same, here, sorted((tmp_path / "told").iterdir())))


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(EngineError, match=r"dask\.distributed is not installed") as caught, by_dask("tcp://h:1"):
        pass
    assert caught.value.remedy == "Install it: pip install 'kanalyze[dask]'."


@pytest.fixture
def store(traces):
    """An address of the folder of traces, as of a bucket."""
    pytest.importorskip("fsspec")
    (traces / "broken.json").unlink()
    return f"file://{traces}"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "/*.json.gz"])
def test_reports_on_an_object_store_are_fetched_one_by_one(store, ending, tmp_path):
    out = tmp_path / "out"
    found = kanalyze.reduce(f"{store}{ending}", out)
    assert names(found.made) == ["ddp", "fsdp"]
    told = json.loads((min(found.made) / MANIFEST).read_text())["source"]
    assert told["path"] == f"{store}/ddp.json.gz"
    assert load(min(found.made))["ranks"].get_column("report").to_list() == [told["path"]]
    assert kanalyze.reduce(f"{store}{ending}", out).there == found.there + sorted(found.made)
    one, other = load(kanalyze.reduce(DDP, tmp_path / "local").made[0]), load(min(found.made))
    assert all(table.equals(other[name]) for name, table in one.items() if name != "ranks")


@pytest.mark.slow
def test_a_changed_object_is_reduced_again(store, traces, tmp_path):
    old = sorted(kanalyze.reduce(store, tmp_path / "out").made)
    shutil.copy(FSDP, traces / "ddp.json.gz")
    new = kanalyze.reduce(store, tmp_path / "out")
    assert names(new.made) == ["ddp"]
    assert not old[0].exists()
    assert all(map(is_whole, [*new.made, *new.there]))


def test_an_object_that_is_not_there(store, tmp_path):
    with pytest.raises(UnreadableReportError, match=r"none\.json: cannot be read \(no such file\)"):
        kanalyze.reduce(f"{store}/none.json", tmp_path)


@pytest.mark.parametrize(
    ("missing", "address", "reason"),
    [("fsspec", "s3://bucket/trace.json", "fsspec is not installed"), (None, "nosuch://b/t.json", "nosuch")],
)
def test_an_object_store_without_its_package(missing, address, reason, tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    if missing:
        monkeypatch.setitem(sys.modules, "fsspec", None)
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UnreadableReportError) as caught:
        kanalyze.reduce(address, tmp_path)
    assert reason in str(caught.value)
    assert "copy the files" in caught.value.remedy


@pytest.mark.slow
def test_a_report_on_an_object_store_is_reduced_under_its_own_name(tmp_path, monkeypatch):
    """Not that of the copy that is read."""
    monkeypatch.setattr(reducing, "_fetched", lambda _: nullcontext(NCCL))
    address = "memory://bucket/run/nccl.sqlite"
    found = reducing.work_on(reducing.Task(address, origin_of(NCCL), None))
    assert isinstance(found, Packed)
    assert load(write(found, tmp_path))["ranks"].get_column("report").unique().to_list() == [address]
