"""`kanalyze redact`: what it says, and how it ends."""

import shutil

import pytest

from support.command import REPORTS, refused, run


@pytest.fixture
def report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in ("USER", "LOGNAME", "HOSTNAME", "EMAIL"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "run.log").write_text("saw /home/quillon/x.py\nof quillon, acme\n")
    return tmp_path / "run.log"


def test_the_copy_and_what_was_taken_out(report):
    ran = run("redact", "run.log", "-o", "public.log", "--remove", "Acme")
    assert (ran.status, ran.error) == (0, "")
    assert ran.text == (
        "public.log: written. Taken out:\n"
        "  1  paths\n"
        "  1  texts that were asked for\n"
        "  1  user names\n"
        "Names of kernels, ranges and files stay: look at it before you show it; --remove takes out more.\n"
    )
    assert report.with_name("public.log").read_text() == "saw x.py\nof [user], [removed]\n"


def test_only_looking(report):
    ran = run("redact", "run.log", "--check", "--keep", "quillon")
    assert (ran.status, ran.error) == (0, "")
    assert ran.lines[:2] == ["run.log: would be taken out:", "  1  paths"]
    assert [path.name for path in report.parent.iterdir()] == ["run.log"]


def test_files_that_are_left_out_are_named(report):
    (report.parent / "capture").mkdir()
    shutil.copyfile(report, report.parent / "capture" / "a.log")
    (report.parent / "capture" / "b.bin").write_bytes(b"\0")
    ran = run("redact", "capture", "-o", "out")
    assert "left out: b.bin, a file that redaction does not know" in ran.lines


@pytest.mark.parametrize("options", [[], ["-o", "out.log", "--check"]])
@pytest.mark.usefixtures("report")
def test_either_a_place_or_a_check(options):
    ran = run("redact", "run.log", *options)
    assert ran.status == 2
    assert "Give either -o OUT or --check." in ran.error


@pytest.mark.parametrize(
    ("arguments", "message", "slug"),
    [
        (["run.lo", "-o", "out"], "run.lo: no such file.", "report-not-found"),
        (["run.log", "-o", "run.log"], "run.log: exists already, and is not overwritten.", "output-failed"),
        (
            [REPORTS / "nvtx.parquetdir", "-o", "out"],
            f"{REPORTS / 'nvtx.parquetdir'}: an export of nsys as a folder of tables, which cannot be redacted.",
            "cannot-redact",
        ),
    ],
)
@pytest.mark.usefixtures("report")
def test_bad_input_is_refused(arguments, message, slug):
    said, remedy = refused(run("redact", *arguments))
    assert said == message
    assert remedy.endswith(f"[{slug}]")
