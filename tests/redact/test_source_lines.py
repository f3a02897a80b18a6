"""Lines of a program in a capture: where its threads were stays, what stands there goes."""

import gzip
import json
from pathlib import Path

import pytest

from kanalyze.collectors.in_workload.source_lines import Lines
from kanalyze.errors import DamagedReportError
from kanalyze.redact import redact
from kanalyze.redact.files import kind_of

TEXT = "customer = login('geheim')"
CONTENT = {
    "schema": 1,
    "process": 12,
    "exact": True,
    "clocks": [[1_700_000_000_000_000_000, 5], [1_700_000_001_000_000_000, 1_000_000_005]],
    "files": ["train.py", "/home/quillon/geheim/model.py", "sub/loss.py"],
    "places": [[0, 3, "main", TEXT], [1, 41, "Model.forward", "x = quillon(x)"], [2, 7, "loss", ""]],
    "threads": [
        {"id": 12, "lines": {"times": [5, 10, 20], "places": [0, 1, -1]}, "loops": {"times": [7], "places": [1]}}
    ],
    "unknown": "uncovered",
}


def written(tmp_path, content):
    path = tmp_path / "lines-nsys.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def read(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def test_numbers_files_and_functions_stay_and_texts_go(tmp_path):
    removed = redact(written(tmp_path, CONTENT), tmp_path / "out.json.gz")
    made = read(tmp_path / "out.json.gz")
    assert made["files"] == ["train.py", "model.py", "loss.py"]
    assert made["places"] == [[0, 3, "main", ""], [1, 41, "Model.forward", ""], [2, 7, "loss", ""]]
    assert {key: made[key] for key in ("schema", "process", "exact", "clocks", "threads")} == {
        key: CONTENT[key] for key in ("schema", "process", "exact", "clocks", "threads")
    }
    assert "unknown" not in made
    assert removed.counts["lines"] == 2


def test_texts_stay_where_the_user_lets_them_but_names_do_not(tmp_path):
    redact(written(tmp_path, CONTENT), tmp_path / "out.json.gz", source=True)
    assert [text for *_, text in read(tmp_path / "out.json.gz")["places"]] == [TEXT, "x = [user](x)", ""]


def test_what_the_collector_writes_is_known(tmp_path):
    path = tmp_path / "lines-torch.json.gz"
    lines = Lines(path, __file__)
    lines.start()
    assert Path(__file__).exists()
    assert lines.write()
    assert kind_of(path) == "lines"
    redact(path, tmp_path / "out.json.gz")
    assert {*read(tmp_path / "out.json.gz")} == {*read(path)}


@pytest.mark.parametrize(
    "change",
    [
        {"threads": [CONTENT["threads"][0] | {"id": "quillon"}]},
        {"threads": [CONTENT["threads"][0] | {"lines": {"times": ["geheim"], "places": [0]}}]},
        {"threads": [CONTENT["threads"][0] | {"loops": {"times": [1], "places": ["geheim"]}}]},
        {"threads": [{"id": 1, "lines": {"times": [1], "places": [0]}}]},
        {"places": [[0, 3, "main"]]},
        {"clocks": [[1]]},
        {"files": None},
    ],
)
def test_what_the_collector_does_not_write_is_refused(tmp_path, change):
    with pytest.raises(DamagedReportError, match="the lines of the program"):
        redact(written(tmp_path, CONTENT | change), tmp_path / "out.json.gz")
