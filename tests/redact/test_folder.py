"""Folders of captures: what can be redacted is, the rest is left out with a word; manifests, and lines of a program."""

import gzip
import json
import platform
import shutil
from pathlib import Path

import pytest

from kanalyze.collectors.in_workload.notes import lines_noted
from kanalyze.collectors.tools import machine
from kanalyze.errors import DamagedReportError, OutputError, RedactError, ReportNotFoundError, UnknownFormatError
from kanalyze.redact import redact
from support.command import ADD, REPORTS

MANIFEST = {
    "schema": 1,
    "kind": "kanalyze capture",
    "status": "complete",
    "began": "2026-11-20T14:00:00.000+00:00",
    "workload": {
        "name": "train",
        "path": "/home/quillon/geheim/train.py",
        "args": [
            *("--lr", "0.1", "-u", "me:uncovered", "-u", "1000"),
            *("--wandb-key", "uncovered-secret", "--data", "/projekte/set"),
        ],
        "command": ["/home/quillon/env/bin/python3", "/home/quillon/geheim/train.py"],
        "cwd": "/home/quillon/geheim",
        "sha256": "ab12",
    },
    "machine": {"host": "brontes-17", "system": "Linux-6.8-x86_64", "cpu": "Intel Xeon", "cpus": 16},
    "gpus": [{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-6c2e0d36-1418-64af-ccf0-d561691817a5"}],
    "git": {"root": "/home/quillon/geheim", "commit": "0dedf65", "branch": "quillon/idea", "changed": True},
    "environment": {"CUDA_VISIBLE_DEVICES": "0,1", "LD_LIBRARY_PATH": "/x", "MASTER_ADDR": "brontes-17", "RANK": "0"},
    "options": {"passes": ["nsys"], "any": "new option of brontes-17"},
    "passes": [
        {"name": "nsys", "duration_ns": 12, "notes": ["saw /home/quillon/geheim"], "invented": "uncovered", "steps": []}
    ],
    "files": {"nsys.sqlite": 1, "gone.nsys-rep": 2},
}


@pytest.fixture
def capture(tmp_path):
    folder = tmp_path / "train-20261120-140000"
    (folder / "logs").mkdir(parents=True)
    (folder / "triton").mkdir()
    shutil.copyfile(ADD, folder / "nsys.sqlite")
    (folder / "nsys.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 1\n quillon")
    trace = gzip.compress(b'{"traceEvents": [{"ph": "X", "name": "quillon"}]}')
    (folder / "brontes-17_12.345.pt.trace.json.gz").write_bytes(trace)
    (folder / "ncu.details.csv").write_text(
        '==PROF== Connected to process 12 (/home/quillon/geheim/add)\n"ID","Host Name","Kernel Name"\n'
        '"0","brontes-17","add(int, float *)"\n"1","127.0.0.1","say ""hi"" to /home/quillon/x"\n'
    )
    (folder / "ncu.ncu-rep").write_bytes(b"NVR\0 of another time")
    (folder / "logs" / "nsys.log").write_text("Generated:\n    /home/quillon/geheim/run.nsys-rep\nMax error: 0\n")
    (folder / "triton" / "k.ptx").write_text('.file 1 "/home/quillon/geheim/k.py"\n.loc 1 7 0\n')
    (folder / "compiled.json").write_text('{"schema": 1, "kernels": [{"name": "k", "ptx": "triton/k.ptx"}]}')
    (folder / "memory.pickle").write_bytes(b"\x80\x05 quillon")
    (folder / "elsewhere.log").symlink_to("/etc/hostname")
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    return folder


def told(path):
    """What a redacted file says; of a manifest without what changes with any other file."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if path.name != "manifest.json":
        return data.decode()
    manifest = json.loads(data)
    manifest["files"] = [*manifest["files"]]
    manifest.get("redacted", {}).pop("removed", None)
    return json.dumps(manifest, indent=1) + "\n"


def test_a_capture_whole(capture, tmp_path, gold):
    removed = redact(capture, tmp_path / "out")
    made = [path for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()]
    texts = [f"### {path.relative_to(tmp_path / 'out')}\n{told(path)}" for path in made if path.suffix != ".sqlite"]
    gold("".join(texts), "redacted_capture.txt")
    assert json.loads(told(made[3]))["redacted"]["left_out"] == removed.left_out
    for path in made:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        planted = (b"quillon", b"brontes", b"geheim", b"uncovered", b"6c2e0d36")
        assert [text for text in planted if text in data.lower()] == [], path


def test_the_captures_of_two_programs_in_turns(capture, tmp_path):
    """Each manifest has its own files, and still tells the turns; all that stays of it."""
    both = tmp_path / "both"
    for side, numbers in (("base", (1, 4)), ("new", (2, 3))):
        shutil.copytree(capture, both / side, symlinks=True)
        turns = dict(zip(("nsys", "nsys-2"), numbers, strict=True))
        against = {"collection": "39d550c7241040bab1e9d0765241838e", "side": side, "turns": turns}
        (both / side / "manifest.json").write_text(json.dumps(MANIFEST | {"against": against}))
    redact(both, tmp_path / "out")
    redact(capture, tmp_path / "alone")
    alone = json.loads(told(tmp_path / "alone" / "manifest.json"))
    for side in ("base", "new"):
        was = json.loads((both / side / "manifest.json").read_text())
        made = json.loads(told(tmp_path / "out" / side / "manifest.json"))
        sizes = json.loads((tmp_path / "out" / side / "manifest.json").read_text())["files"]
        assert sizes["nsys.sqlite"] == (tmp_path / "out" / side / "nsys.sqlite").stat().st_size
        assert made == alone | {"against": was["against"]}


def test_counting_alone_writes_nothing(capture, tmp_path, monkeypatch):
    """What a capture says of its machine is what redaction looks for, wherever else it stands."""
    monkeypatch.setattr(platform, "node", lambda: "brontes-17")
    assert machine.host()["host"] == MANIFEST["machine"]["host"]
    before = sorted(tmp_path.rglob("*"))
    counted = redact(capture, None)
    assert sorted(tmp_path.rglob("*")) == before
    assert counted.left_out == redact(capture, tmp_path / "out").left_out


def test_a_name_that_is_left_in_a_copy_is_refused_and_its_file_left_out_of_a_folder(capture, tmp_path, monkeypatch):
    monkeypatch.setattr("kanalyze.redact.texts.rules_of", lambda _: [])
    (capture / "x.log").write_text("of brontes-17\n")
    with pytest.raises(RedactError, match="a report with a name in it that is left after redaction"):
        redact(capture / "x.log", tmp_path / "out.log", remove=["brontes-17"])
    assert redact(capture, tmp_path / "out").left_out["x.log"].startswith("a report with a name in it that is left")
    assert not (tmp_path / "out.log").exists()
    assert not (tmp_path / "out" / "x.log").exists()


def test_a_manifest_alone(capture, tmp_path):
    redact(capture / "manifest.json", tmp_path / "out.json")
    redact(capture, tmp_path / "out")
    whole = json.loads(told(tmp_path / "out" / "manifest.json"))
    del whole["redacted"]
    assert json.loads((tmp_path / "out.json").read_text()) == whole | {"files": MANIFEST["files"]}
    # one of a `.cu` file begins with what was built
    build = {"build": {"command": ["/home/quillon/nvcc"], "environment": {}, "key": "1f"}}
    (capture / "manifest.json").write_text(json.dumps(build | MANIFEST, indent=1))
    redact(capture / "manifest.json", tmp_path / "built.json")
    made = json.loads((tmp_path / "built.json").read_text())
    assert (made["build"], made["machine"]["host"]) == ({"command": ["nvcc"], "environment": {}, "key": "1f"}, None)


def test_a_folder_is_never_overwritten_or_written_into_itself(capture, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="exists already"):
        redact(capture, tmp_path / "out")
    with pytest.raises(OutputError, match="within the folder"):
        redact(capture, capture / "out")
    with pytest.raises(OutputError, match="exists already"):
        redact(ADD, tmp_path / "out")
    with pytest.raises(OutputError, match="No such file or directory"):
        redact(ADD, tmp_path / "nowhere" / "out.sqlite")
    assert [*(tmp_path / "out").iterdir()] == []


def test_a_file_of_a_capture_that_is_damaged_leaves_nothing(capture, tmp_path):
    (capture / "manifest.json").write_text("{")
    (capture / "nsys.sqlite").write_bytes(ADD.read_bytes()[:5000])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Exception, match="damaged"):
        redact(capture, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        (REPORTS / "nvtx.parquetdir", RedactError, "an export of nsys as a folder of tables, which cannot be redacted"),
        (REPORTS / "nothing.sqlite", ReportNotFoundError, "no such file"),
        (REPORTS / "expected", UnknownFormatError, "a folder without a report that can be redacted"),
    ],
)
def test_what_is_no_capture_is_refused(path, error, message, tmp_path):
    if path.name == "expected":
        path = tmp_path / "empty"
        path.mkdir()
    with pytest.raises(error, match=message):
        redact(path, tmp_path / "out")


def test_a_capture_of_which_only_the_manifest_can_be_redacted(tmp_path):
    inner = tmp_path / "all" / "node" / "run"
    inner.mkdir(parents=True)
    (inner / "manifest.json").write_text(json.dumps(MANIFEST))
    (inner / "memory.pickle").write_bytes(b"geheim")
    shutil.copyfile(ADD, tmp_path / "all" / "nsys.sqlite")
    removed = redact(tmp_path / "all", tmp_path / "out")
    made = json.loads((tmp_path / "out" / "node" / "run" / "manifest.json").read_text())
    assert made["files"] == {}
    assert {*made["redacted"]["left_out"]} == {"memory.pickle"}
    assert [*removed.left_out] == [str(Path("node", "run", "memory.pickle"))]


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
    rest = {"files", "places", "unknown"}
    assert {key: made[key] for key in made.keys() - rest} == {key: CONTENT[key] for key in CONTENT.keys() - rest}
    assert "unknown" not in made
    assert removed.counts["lines"] == 2
    redact(tmp_path / "lines-nsys.json.gz", tmp_path / "source.json.gz", source=True)
    assert [text for *_, text in read(tmp_path / "source.json.gz")["places"]] == [TEXT, "x = [user](x)", ""]


def test_what_the_collector_writes_is_known(tmp_path):
    path = tmp_path / "lines-torch.json.gz"
    with lines_noted(path, __file__):
        assert Path(__file__).exists()
    redact(path, tmp_path / "out.json.gz")
    assert {*read(tmp_path / "out.json.gz")} == {*read(path)}


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"threads": [CONTENT["threads"][0] | wrong]}
            for wrong in ({"id": "quillon"}, {"lines": {"times": ["geheim"], "places": [0]}}, {"loops": {"times": [1]}})
        ),
        *({"places": [[0, 3, "main"]]}, {"clocks": [[1]]}, {"files": None}),
    ],
)
def test_what_the_collector_does_not_write_is_refused(tmp_path, change):
    with pytest.raises(DamagedReportError, match="the lines of the program"):
        redact(written(tmp_path, CONTENT | change), tmp_path / "out.json.gz")
