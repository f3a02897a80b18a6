"""What the shells complete, by click's own mechanism."""

import pytest
from click.shell_completion import ShellComplete

import kanalyze.cli
from kanalyze import catalog, cli
from kanalyze.collectors.workload import references
from kanalyze.renderers.tables.descriptions import names
from support.command import ADD, REPORTS, SAMPLES, command_line, ended, environment

NVTX, TRACE = REPORTS / "nvtx.sqlite", SAMPLES / "mlp_train" / "torch.json.gz"


def completed(*words):
    *before, incomplete = map(str, words)
    shell = ShellComplete(kanalyze.cli.kanalyze, {}, "kanalyze", "_KANALYZE_COMPLETE")
    return [item.value for item in shell.get_completions(before, incomplete)]


def test_groupings_of_the_table_on_the_line():
    assert completed("show", "kernels", NVTX, "--by", "") == [*catalog.table("kernels").groupings]
    assert completed("show", "ops", NVTX, "--by", "mo") == ["module"]
    assert completed("show", "nosuch", NVTX, "--by", "") == []


def test_columns_of_the_table_and_of_its_forms():
    found = completed("show", "kernels", NVTX, "--columns", "")
    assert found[:3] == ["all", "name", "count"]
    assert "grid_x" in found
    assert completed("show", "kernels", NVTX, "--columns", "name,to") == ["name,total_ns"]
    assert completed("show", "kernels", NVTX, "--columns", "total_ns,tot") == []
    assert completed("show", "gaps", NVTX, "--by", "culprit", "--sort", "c") == ["culprit", "count"]


def test_windows_are_those_of_the_report_on_the_line():
    for words in (["show", "kernels", NVTX], ["summarize", NVTX], ["whatif", TRACE]):
        assert completed(*words, "--window", "ste")[0] == "steady"
    assert completed("show", "kernels", NVTX, "--window", "step") == ["step", "step#*"]
    assert completed("summarize", SAMPLES / "mlp_train", "--window", "nai") == ["naive"]
    assert completed("summarize", TRACE, "--window", "steps") == ["steps"]


@pytest.mark.slow
def test_what_is_completed_is_a_window():
    report = kanalyze.read(SAMPLES / "mlp_train")
    windows = completed("summarize", SAMPLES / "mlp_train", "--window", "")
    assert {"step", "step#*", "naive"} <= {*windows}
    assert all(report.windows(window) for window in windows)


def test_a_large_report_is_not_read(monkeypatch):
    monkeypatch.setattr(cli, "_MOST_BYTES", {".sqlite": 1000})
    assert completed("show", "kernels", NVTX, "--window", "") == ["steady"]


@pytest.mark.parametrize("path", ["none.sqlite", "damaged.sqlite", "empty.json", "."])
def test_an_error_completes_nothing_and_says_nothing(tmp_path, monkeypatch, capsys, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.sqlite").write_bytes(ADD.read_bytes()[:3000])
    (tmp_path / "empty.json").write_text("{}")
    assert completed("show", "kernels", path, "--window", "") in ([], ["steady"])
    assert capsys.readouterr() == ("", "")


def test_workloads_findings_and_passes():
    assert completed("collect", "squ") == ["squ", *(one.name for one in references() if one.name.startswith("squ"))]
    assert completed("collect", "add", "--against", "squ") == completed("collect", "--against", "squ")
    assert completed("collect", "--against", "squ") == completed("collect", "squ")
    assert completed("collect", "--with", "nsys,") == ["nsys,torch", "nsys,ncu"]
    assert completed("explain", "") == list(names())


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_gets_its_completions(shell):
    """Through the program itself; words with blanks are quoted where the shell does not do that."""
    scripted = ended(command_line(), env=environment(_KANALYZE_COMPLETE=f"{shell}_source"))
    assert "_KANALYZE_COMPLETE" in scripted.stdout
    line = f"kanalyze show kernels {NVTX} --window shared"
    asked = {"COMP_WORDS": line, "COMP_CWORD": "5" if shell != "fish" else "shared"}
    told = ended(command_line(), env=environment(_KANALYZE_COMPLETE=f"{shell}_complete", **asked))
    assert ("'shared name'" in told.stdout) == (shell == "bash")
    assert "shared name" in told.stdout
    assert told.stderr == ""
