"""The runs at a path: of captures, folders of reports, single reports and sides of an interleaved collection."""

import json
import shutil

import pytest

from kanalyze.errors import KanalyzeError
from kanalyze.readers.capture.reports import runs_of, sides_in
from kanalyze.turns import Turn, interleaved
from support.command import ADD, REPORTS, SAMPLES

TRACE = SAMPLES / "mlp_train" / "torch.json.gz"


def capture(folder, *names, against=None):
    """A capture with reports of these names."""
    folder.mkdir()
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ADD if path.suffix == ".sqlite" else TRACE, path)
    (folder / "manifest.json").write_text(json.dumps({"schema": 1} | ({"against": against} if against else {})))
    return folder


def shown(path, runs):
    return [(run.tool, run.number, str(run.file.relative_to(path)), run.turn) for run in runs]


def test_a_report_is_one_run():
    tables, page = REPORTS / "nvtx.parquetdir", SAMPLES / "add" / "ncu.details.csv"
    for path, tool in ((ADD, "nsys"), (tables, "nsys"), (TRACE, "torch"), (page, "ncu")):
        (run,) = runs_of(path)
        assert (run.tool, run.number, run.file, run.turn) == (tool, 1, path, None)
        assert run.opened().meta.path == path


def test_a_capture_has_the_repetitions_of_each_tool(tmp_path):
    names = [f"nsys{number}.sqlite" for number in ("", "-2", "-3", "-10")]
    folder = capture(tmp_path / "run", *names, "torch.json.gz", "torch-2/torch.json.gz", "torch-11/torch.json.gz")
    shutil.copy(SAMPLES / "add" / "ncu.details.csv", folder)
    assert shown(folder, runs_of(folder)) == [
        *(("nsys", number, name, None) for number, name in enumerate(names, 1)),
        ("torch", 1, "torch.json.gz", None),
        ("torch", 2, "torch-2/torch.json.gz", None),
        ("torch", 3, "torch-11/torch.json.gz", None),
        ("ncu", 1, "ncu.details.csv", None),
    ]
    reports = [run.opened() for run in runs_of(folder)]
    assert [report.meta.path for report in reports[:2]] == [folder, folder / "nsys-2.sqlite"]
    assert {report.meta.capture for report in reports[1:]} == {folder}
    assert [report.meta.tool for report in reports] == [*["nsys"] * 4, *["torch.profiler"] * 3, "ncu"]


def test_traces_of_several_ranks_are_of_one_run(tmp_path):
    names = ["torch-rank0.json.gz", "torch-rank1.json.gz"]
    folder = capture(tmp_path / "run", *names, *(f"torch-2/{name}" for name in names))
    assert [(run.number, run.file.name) for run in runs_of(folder)] == [
        (number, name) for number in (1, 2) for name in names
    ]


def test_of_a_folder_of_reports_each_is_a_run(tmp_path):
    for name in ("b.sqlite", "a.sqlite"):
        shutil.copyfile(ADD, tmp_path / name)
    capture(tmp_path / "c", "nsys.sqlite", "nsys-2.sqlite")
    assert shown(tmp_path, runs_of(tmp_path)) == [
        ("nsys", 1, "a.sqlite", None),
        ("nsys", 2, "b.sqlite", None),
        ("nsys", 3, "c/nsys.sqlite", None),
        ("nsys", 4, "c/nsys-2.sqlite", None),
    ]


@pytest.fixture
def both(tmp_path):
    """The folder of an interleaved collection."""
    turns = {"base": (1, 4, 5, 8), "new": (2, 3, 6, 7)}
    names = ("nsys", "nsys-2", "torch", "torch-2")
    for side, numbers in turns.items():
        told = {"collection": "a", "side": side, "turns": dict(zip(names, numbers, strict=True))}
        files = ("nsys.sqlite", "nsys-2.sqlite", "torch.json.gz", "torch-2/torch.json.gz")
        capture(tmp_path / side, *files, against=told)
    return tmp_path


def test_runs_that_were_interleaved_have_their_turns(both):
    base, new = map(runs_of, sides_in(both))
    assert [run.turn for run in base] == [Turn("a", "base", number) for number in (1, 4, 5, 8)]
    assert [run.opened().meta.turn for run in new] == [Turn("a", "new", number) for number in (2, 3, 6, 7)]
    assert interleaved([run.turn for run in base], [run.turn for run in new])
    assert not interleaved([run.turn for run in base], [run.turn for run in base])


def test_only_two_captures_are_two_sides(both):
    assert sides_in(both) == (both / "base", both / "new")
    assert [sides_in(path) for path in (both / "base", ADD, both / "nowhere")] == [None, None, None]
    (both / "new" / "manifest.json").unlink()
    assert sides_in(both) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "{}", '{"against": 1}', '{"against": {}}'),
        *(
            f'{{"against": {{"collection": {collection}, "side": {side}, "turns": {turns}}}}}'
            for collection, side, turns in (
                *(('"a"', '"base"', "[1]"), ("1", '"base"', '{"nsys": 1}'), ('"a"', '["base"]', '{"nsys": 1}')),
                *(('"a"', '"other"', '{"nsys": 1}'), ('"a"', '"base"', '{"nsys": true}')),
            )
        ),
    ],
)
def test_what_no_collector_writes_is_no_turn(both, text):
    (both / "base" / "manifest.json").write_text(text)
    assert [run.turn for run in runs_of(both / "base")] == [None] * 4


def test_what_is_missing_is_told_when_it_is_opened(tmp_path):
    (tmp_path / "text").write_text("text")
    for path in (tmp_path / "nowhere", tmp_path / "text", capture(tmp_path / "empty")):
        (run,) = runs_of(path)
        assert (run.tool, run.file) == ("", path)
        with pytest.raises(KanalyzeError, match=path.name):
            run.opened()
