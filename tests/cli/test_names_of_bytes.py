"""Files whose names are no UTF-8 are read, named and written as any other."""

import os
import shutil

import pytest

from support.command import ADD, REPORTS, run


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = (b"a\xff.sqlite", b"b\xfe.sqlite", b"t\xff.json.gz")
    for name, report in zip(names, (ADD, ADD, REPORTS / "torch" / "ddp.json.gz"), strict=True):
        shutil.copy(report, name)
    return [*map(os.fsdecode, names)]


@pytest.mark.parametrize(
    "line",
    [
        *("show|kernels|{0}|{1}|--format|json", "show|joined|{0}|{2}", "sql|{0}|{1}|SELECT report FROM kernels"),
        *("compare|{0}|--save|x.kz", "compare|--noise|{0}|{1}|-o|n.json", "reduce|{0}|{2}|-o|out"),
        *("ranks|{2}|{0}|--format|json", "export|{0}|{1}|--tables|kernels|--to|parquet|-o|out"),
        *("plot|{2}|ranks|-o|p.svg", "html|{0}|-o|{1}.html"),
    ],
)
def test_a_command(files, line):
    ran = run(*(word.format(*files) for word in line.split("|")))
    assert ran.status in (0, 1, 2), ran
    assert "UnicodeEncodeError" not in ran.error
