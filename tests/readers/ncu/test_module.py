"""Reports in ncu's own format: through NVIDIA's module, which gives the same as the pages, or an installed ncu."""

import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, strategies as st
from polars.testing import assert_frame_equal

from kanalyze import read_all
from kanalyze.errors import ExportError
from kanalyze.readers import read
from kanalyze.readers.ncu import module as ncu_module, read_csv_rep as ncu_program
from support.command import SAMPLES
from support.counters import needs_module

REPORTS = sorted(SAMPLES.glob("*/ncu*.ncu-rep"))

#: A file of whole blocks: sound, and not cut off.
WHOLE = (True, False)

#: Metrics of which the module has a unit that ncu 2025.3 did not print.
UNITS_SINCE = {"idc__requests.sum"}


@pytest.fixture
def without_module(monkeypatch):
    """No module, and no ncu of this machine."""
    monkeypatch.setattr(ncu_module, "module", lambda: None)
    monkeypatch.setattr(ncu_program, "find", lambda: None)


@pytest.mark.parametrize(("action", "usable"), [(["sections", "rule_results"], True), (["rule_results"], False)])
def test_a_module_of_before_2026_3_which_tells_no_sections_is_left_out(monkeypatch, action, usable):
    found = SimpleNamespace(IAction=SimpleNamespace(**dict.fromkeys(action)))
    monkeypatch.setitem(sys.modules, "ncu_report", found)
    assert ncu_module.module() is (found if usable else None)


@needs_module
@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_the_module_gives_what_the_pages_give(path, tmp_path):
    shutil.copy(path, tmp_path)
    found, printed = read(tmp_path / path.name), read(path.with_name(path.name.replace(".ncu-rep", ".details.csv")))
    assert_frame_equal(found.kernel_config, printed.kernel_config)
    assert_frame_equal(found.devices, printed.devices)
    keep = ["event_id", "section", "rule", "kind", "message", "scope"]
    ours, theirs = found.table("rule_results"), printed.table("rule_results")
    assert_frame_equal(ours.select(keep), theirs.select(keep))
    # ncu prints estimates with four digits
    assert_frame_equal(ours.select("speedup_share"), theirs.select("speedup_share"), rel_tol=5e-4, abs_tol=0)
    _same_metrics(found.table("metrics"), printed.table("metrics"))


def _same_metrics(ours, theirs):
    keys = ["event_id", "section", "metric", "text"]
    assert_frame_equal(ours.select(keys), theirs.select(keys))
    known = ~pl.col("metric").is_in(UNITS_SINCE)
    assert_frame_equal(ours.filter(known).select("unit"), theirs.filter(known).select("unit"))
    # pages in base units have two decimals, and some print what is below 0 by an error of measurement as 0
    value, printed = ours.get_column("value"), theirs.get_column("value")
    close = (value - printed).abs() <= 0.00501 + 1e-6 * value.abs()
    assert (close | ((value < 0) & (printed == 0)) | value.is_null()).all()


@needs_module
@pytest.mark.parametrize("part", [0.0002, 0.01, 0.3, 0.9, 0.999])
def test_a_report_that_is_cut_off_is_refused(tmp_path, part):
    """The module gives nothing of it, or a kernel without any metric."""
    path, whole = tmp_path / "cut.ncu-rep", REPORTS[0].read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ExportError, match=r"the module ncu_report.* cannot read it: it is cut off"):
        read(path)


@needs_module
def test_what_is_no_report_is_refused(tmp_path):
    path = tmp_path / "text.ncu-rep"
    path.write_bytes(b"hello")
    with pytest.raises(ExportError, match="no kernel is in it"):
        read(path)


@needs_module
def test_kernels_before_the_cut_are_read_and_the_cut_is_told(monkeypatch):
    monkeypatch.setattr(ncu_module, "blocks", lambda path: (True, path == REPORTS[0]))
    found = read(REPORTS[0])
    assert found.table("metrics").height > 1000
    assert found.table("notes").select("check", "effect").rows() == [
        (
            "report cut off",
            "ncu.ncu-rep was not written or copied whole: 1 of its kernels can be read, and others are lost",
        )
    ]


class OlderModule:
    """A module that cannot read what a newer ncu wrote."""

    __version__ = "2025.1.0"

    def load_report(self, path):
        raise RuntimeError(f"unsupported report version in {path}")


def test_a_report_newer_than_the_module_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(ncu_module, "module", OlderModule)
    shutil.copy(REPORTS[0], tmp_path)
    with pytest.raises(ExportError, match=r"the module ncu_report 2025\.1\.0 cannot read it: unsupported") as caught:
        read(tmp_path / REPORTS[0].name)
    assert "pip install --upgrade ncu-report" in caught.value.remedy


@pytest.mark.parametrize(("length", "told"), [(200, "x" * 200), (201, "x" * 199 + "…")])
def test_of_a_long_line_that_a_program_says_the_beginning_is_told(length, told):
    said = ncu_module.unreadable(Path("a.ncu-rep"), "ncu", ["first", "", "x" * length])
    assert str(said).partition("\n")[0] == f"a.ncu-rep: ncu cannot read it: first; {told}."


def test_of_a_report_that_the_module_cannot_read_the_pages_beside_it_are_read(monkeypatch):
    """In a capture, or given by itself: one with the module is no worse off than one without."""
    path = REPORTS[0]
    pages = read(path.with_name("ncu.details.csv"))
    monkeypatch.setattr(ncu_module, "module", OlderModule)
    for found in (read(path), read_all(path.parent)[-1]):
        assert found.meta.tool == "ncu"
        assert_frame_equal(found.table("metrics"), pages.table("metrics"))
        (note,) = found.table("notes").filter(pl.col("check") == "report left out").get_column("effect")
        assert "its pages are read" in note
        assert "the module ncu_report 2025.1.0 cannot read it" in note


#: What is no whole block, and what no block.
CUT, ODD = (True, True), (False, False)


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_a_file_is_cut_off_wherever_a_block_is_not_whole(path, tmp_path):
    whole, part = path.read_bytes(), tmp_path / "part.ncu-rep"
    assert ncu_module.blocks(path) == WHOLE
    for length in (4, 7, 9, 50, 1000, len(whole) // 2, len(whole) - 1):
        part.write_bytes(whole[:length])
        assert ncu_module.blocks(part) == CUT, length


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (bytes(4), WHOLE),  # built in another way: left to the module
        (b"\2\0\0\0\x28\0" + bytes(4), ODD),  # a block behind which nothing makes sense
        (b"\2\0\0\0\x28\x08\x09\0\0\0abcd", ODD),  # 8 bytes follow, and a message of 9 is in them
        (b"\2\0\0\0\x28\x08\x04\0\0\0abcd", WHOLE),
        (b"\6\0\0\0\x28\xff\xff\xff\xff\x0f" + bytes(100), ODD),  # larger than any
    ],
)
def test_a_file_is_sound_or_not(tmp_path, blocks, expected):
    path = tmp_path / "k.ncu-rep"
    path.write_bytes(b"NVR\0\2\0\0\0\x08\7" + blocks)
    assert ncu_module.blocks(path) == expected


@given(st.binary(max_size=60))
def test_any_file_is_cut_off_or_not(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "k.ncu-rep"
    for beginning in (b"", b"NVR\0", b"NVR\0\2\0\0\0\x08\7"):
        path.write_bytes(beginning + text)
        assert ncu_module.blocks(path) in (WHOLE, CUT, ODD)


@pytest.mark.usefixtures("without_module")
def test_without_anything_to_read_it_both_ways_are_named(tmp_path):
    shutil.copy(REPORTS[0], tmp_path / "k.ncu-rep")
    with pytest.raises(ExportError) as caught:
        read(tmp_path / "k.ncu-rep")
    assert "no module ncu_report, no ncu" in str(caught.value)
    assert "pip install 'kanalyze[ncu]'" in caught.value.remedy
    assert "--csv --page raw --print-units base" in caught.value.remedy


@pytest.mark.usefixtures("without_module")
def test_without_anything_to_read_it_the_pages_beside_are_read():
    found, printed = read(REPORTS[0]), read(REPORTS[0].with_suffix(".details.csv"))
    assert_frame_equal(found.table("metrics"), printed.table("metrics"))


class FakeNcu:
    """A runner that prints the pages of a sample, and what it was asked."""

    def __init__(self, sample, refuses=""):
        self.sample, self.refuses, self.asked = sample, refuses, []

    def __call__(self, command):
        self.asked.append(list(command))
        if self.refuses and self.refuses in command:
            return CompletedProcess(command, 1, b"", f"==ERROR== unrecognised option '{self.refuses}'.\n".encode())
        page = command[command.index("--page") + 1]
        return CompletedProcess(command, 0, (self.sample / f"ncu.{page}.csv").read_bytes(), b"")


@pytest.mark.usefixtures("without_module")
@pytest.mark.parametrize("refuses", ["", "--rename-kernels"])
def test_an_installed_ncu_prints_the_pages(monkeypatch, tmp_path, refuses):
    monkeypatch.setattr(ncu_program, "find", lambda: tmp_path / "ncu")
    fake, sample = FakeNcu(SAMPLES / "add", refuses), SAMPLES / "add" / "ncu.details.csv"
    told = []
    found = ncu_program.through_program(tmp_path / "k.ncu-rep", lambda *said: told.append(said), fake)
    assert_frame_equal(found.metrics, read(sample).table("metrics"))
    assert fake.asked[0] == [
        *(str(tmp_path / "ncu"), "--import", str(tmp_path / "k.ncu-rep"), "--csv", "--page", "details"),
        *("--print-units", "base", "--rename-kernels", "off"),
    ]
    assert told[-1][1] == 1.0


@pytest.mark.usefixtures("without_module")
def test_an_ncu_that_cannot_read_it_is_quoted(monkeypatch, tmp_path):
    def refuse(command):
        return CompletedProcess(command, 1, b"", b"==ERROR== Failed to load report: newer version.\n")

    monkeypatch.setattr(ncu_program, "find", lambda: tmp_path / "ncu")
    with pytest.raises(ExportError, match="Failed to load report: newer version"):
        ncu_program.through_program(tmp_path / "k.ncu-rep", lambda *_: None, refuse)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("See the @url:Guide:https://a.b/c.html#d@ for more.", "See the Guide (https://a.b/c.html#d) for more."),
        ("Check the @section:LaunchStats:Launch Statistics@.", "Check the Launch Statistics."),
        ("at @sass:12:this@ and @source:a.cu:7:that@", "at this and that"),
        ("mail@host", "mail@host"),
    ],
)
def test_links_in_messages_are_printed_as_ncu_prints_them(message, expected):
    assert ncu_module.plain(message) == expected


def test_an_ncu_that_cannot_be_started_is_told(tmp_path):
    program = tmp_path / "ncu"
    program.write_text("no program")
    program.chmod(0o644)
    with pytest.raises(ExportError, match="Permission denied"):
        ncu_program.printed(tmp_path / "k.ncu-rep", "raw", program)
