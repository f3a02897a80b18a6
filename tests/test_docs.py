"""What README.md and docs/ say is what the program does: examples are run, lists are held against the code."""

import ast
import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import kanalyze
import kanalyze.collectors.options  # its kinds are known once it is imported
from kanalyze import catalog
from kanalyze.analyses.findings.rules import WORDS
from kanalyze.analyses.host._call_kinds import bucket_of
from kanalyze.analyses.page.time_page import TABLES
from kanalyze.analyses.ranges.instances import compare
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.cli import kanalyze as command_line
from kanalyze.errors import ClosedReportError, KanalyzeError, UnreadableReportError
from kanalyze.renderers.formats.json import SCHEMA_VERSION, render
from kanalyze.renderers.page.comparison import answer
from kanalyze.renderers.tables import descriptions as explanations
from kanalyze.several import Asked
from kanalyze.several.sides import comparison
from support import examples
from support.build import report as made
from support.command import capture_with_lines
from support.real_reports import real_summary
from support.serving import USUAL, events_of

ROOT = examples.ROOT
REPORTS = [*(ROOT / f"tests/reports/{name}.sqlite" for name in ("add_um", "findings", "nvtx", "two_gpus"))]
REPORTS += [ROOT / "sample_reports/mlp_train/torch.json.gz", capture_with_lines()]
REFRESH = "run `python tests/support/examples.py` to write what the program prints now"
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs/cli.md").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
ERRORS = (ROOT / "docs/errors.md").read_text()
DEFINITIONS = (ROOT / "docs/definitions.md").read_text()
SUMMARY_JSON = (ROOT / "docs/summary-json.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(examples.folder(tmp_path))


def sections(page):
    """The text below each heading of the second level."""
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return {name.strip("` "): text for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def first_column(text):
    """What stands in backquotes at the beginning of the rows of a page's tables."""
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", examples.FILES, ids=lambda path: path.name)
@pytest.mark.usefixtures("folder")
@pytest.mark.one_in(8)
def test_console_examples_print_what_they_show(path):
    text = path.read_text()
    assert examples.refreshed(text) == text, REFRESH


def verdict(*sides):
    """What compare says of two baselines, without how it was found out."""
    told = answer(comparison(*([ROOT / f"sample_reports/{side}.kz"] for side in sides), Asked({})))
    return re.sub(r", \d against \d runs(, interleaved)?", "", told.removeprefix("A step "))


@pytest.mark.slow
def test_the_tables_of_seeds_and_changes_have_the_verdicts_of_compare():
    page = sections((ROOT / "docs/comparing.md").read_text())
    text = page["The seeds' comparisons, told by one command"]
    rows = re.findall(r"^\| `(\w+)` → `(\w+)` \| [^|]+ \| ([^|]+) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 10
    for base, new, said in rows:
        assert verdict(f"seeds/{base}", f"seeds/{new}").startswith(said), (base, new)
    text = page["Held against the machine"]
    rows = re.findall(r"^\| `(\w+)`: [^|]+ \| [^|]+ \| ([^|]+) \| ([^|:]+)[^|]*\|$", text, flags=re.MULTILINE)
    assert len(rows) == 6
    for name, said, where in rows:
        told = verdict(f"changes/{name}_base", f"changes/{name}_new")
        assert told.startswith(said), name
        place = f": {where.partition(';')[0]}"
        assert where.startswith("no kernel or copy") or place in told.replace(", api", ""), name


@pytest.mark.parametrize("path", examples.FILES, ids=lambda path: path.name)
@pytest.mark.usefixtures("folder")
def test_python_examples_give_what_they_show(path):
    plain = re.sub(r"^```.*$", "", path.read_text(), flags=re.MULTILINE)
    example = doctest.DocTestParser().get_doctest(plain, {}, path.name, str(path), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


@pytest.mark.usefixtures("folder")
def test_examples_in_docstrings_give_what_they_show():
    names = (module.name for module in pkgutil.walk_packages(kanalyze.__path__, "kanalyze."))
    modules = [kanalyze, *(importlib.import_module(name) for name in names if not name.endswith("__main__"))]
    tests = [test for module in modules for test in doctest.DocTestFinder().find(module) if test.examples]
    assert tests
    for test in tests:
        assert doctest.DocTestRunner().run(test).failed == 0, test.name


def test_readme_has_two_commands_and_the_page_that_the_first_prints():
    first, second = re.findall(r"^```sh\n(.*)\n```$", README, flags=re.MULTILINE)
    assert first.endswith(f".venv/bin/{examples.commands(README)[0]}")
    assert "pytest" in second


def test_every_table_is_in_one_list_of_the_commands_page():
    assert sorted(first_column(sections(COMMANDS)["Which table"])) == sorted(catalog.names())


def test_every_command_is_in_the_list_of_commands():
    named = re.findall(r"`kanalyze ([a-z]+)", "".join(re.findall(r"^\| .*? \|", COMMANDS, flags=re.MULTILINE)))
    assert list(dict.fromkeys(named)) == command_line.list_commands(None)


def kinds(base=KanalyzeError):
    return [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]


def test_every_error_has_its_own_slug_and_an_entry():
    slugs = [kind.slug for kind in kinds()]
    assert len(set(slugs)) == len(slugs)
    assert list(sections(ERRORS)) == slugs


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.slug)
def test_an_entry_shows_the_message_and_says_cause_and_remedy(kind):
    entry = sections(ERRORS)[kind.slug]
    assert f"[{kind.slug}]\n" in entry
    assert "\nCause: " in entry
    assert "\nRemedy: " in entry


@pytest.mark.parametrize(
    "error",
    [
        UnreadableReportError.because(Path("report.sqlite"), "Permission denied"),
        ClosedReportError.of(Path("sample_reports/add"), "copy_detail"),
    ],
    ids=lambda error: error.slug,
)
def test_messages_that_no_example_prints_are_what_the_program_would_print(error):
    assert f"```text\nkanalyze: {error}\n{error.remedy}  [{error.slug}]\n```" in ERRORS


def keys(rows):
    return {key for row in rows for key in row}


@pytest.fixture(scope="module")
def summaries():
    served = kanalyze.summarize(made(events_of(USUAL)))  # of a serving engine, of which there is no report here
    return [json.loads(render([page])) for page in [*map(real_summary, REPORTS), served]]


@pytest.mark.slow
def test_every_key_of_the_summary_is_documented_and_no_other(summaries):
    documented = sections(SUMMARY_JSON)
    assert keys(summaries) == set(first_column(documented["The object"]))
    for name in ("report", "scope"):
        assert keys([summary[name] for summary in summaries]) == set(first_column(documented[name]))
    for name in ("windows", "findings"):
        assert keys(row for summary in summaries for row in summary[name]) == set(first_column(documented[name]))


@pytest.mark.slow
def test_every_key_of_several_reports_and_of_instances_is_documented_and_no_other():
    documented = sections(SUMMARY_JSON)
    report = kanalyze.read(ROOT / "tests/reports/nvtx.sqlite")
    found = compare([report.narrow(window=window) for window in report.windows("step")])
    several = json.loads(render([found, kanalyze.summarize(report)]))
    assert list(several) == first_column(documented["Several reports"])
    instances = several["reports"][0]
    assert list(instances) == first_column(documented["All instances of a range"])
    assert keys(instances["spread"]) == set(first_column(documented["spread"]))
    expected = set(first_column(documented["instances"])) - {"BUCKET_ns"} | {f"{bucket}_ns" for bucket in BUCKETS}
    assert keys(instances["instances"]) == expected


@pytest.mark.slow
def test_tables_of_the_summary_have_the_columns_of_their_page(summaries):
    for table in (*TABLES, catalog.table("processes")):
        declared, name = [column.name for column in table.columns], table.name
        rows = [row for summary in summaries for row in summary.get(name, [])]
        assert rows
        assert all(list(row) == declared for row in rows)


def test_summary_page_names_the_version_in_use():
    assert f"`schema_version` is {SCHEMA_VERSION}" in SUMMARY_JSON


def test_every_module_has_its_layer():
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", sections(ARCHITECTURE)["The way of the data"], flags=re.MULTILINE)
    described = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    # a folder of its own, which an editable install does not put beside the others
    assert described == {module.name for module in pkgutil.iter_modules(kanalyze.__path__)} | {"collectors"}


def test_every_kind_of_addition_names_a_folder_that_exists():
    folders = set(re.findall(r"`(analyzer/[\w/]+)/\w*<", ARCHITECTURE))
    assert len(folders) == 5
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_calls_are_in_the_buckets_that_the_definitions_say():
    rows = re.findall(r"^\| `(loading|allocation|sync|api)` \| (.*) \|$", DEFINITIONS, flags=re.MULTILINE)
    told = {bucket: re.findall(r"`((?:cu|nv)\w+)`", calls) for bucket, calls in rows if "`cu" in calls}
    assert set(told) == {"loading", "allocation", "sync", "api"}
    for bucket, calls in told.items():
        assert {name: bucket_of(name) for name in calls} == dict.fromkeys(calls, bucket)


def test_every_table_that_equals_one_of_nsys_is_listed():
    """Each form of a table that says so, as far as the options that give it."""
    listed = set(first_column(sections(DEFINITIONS)["3. Tables that equal those of nsys"]))
    declared = [table for name in catalog.names() for table in (catalog.table(name), *catalog.forms(name))]
    assert listed == {f"{table.name} {table.when}".strip() for table in declared if table.equals}


def test_every_check_of_health_is_defined():
    found = kanalyze.health(kanalyze.read(ROOT / "tests/reports/nvtx.sqlite")).get_column("check").to_list()
    described = re.findall(r"^\| ([a-z][^|`]*) \|", sections(DEFINITIONS)["6. Health"], flags=re.MULTILINE)
    assert described[1:] == found  # below the heading


def test_every_rule_is_explained_and_no_other():
    rooms = (ROOT / "analyzer/analyses/findings/rules").glob("*.py")
    others = ("page/proven_causes", "ranks/_job_findings", "page/time_page")
    files = (*rooms, *(ROOT / f"analyzer/analyses/{other}.py" for other in others))
    made = {rule for path in files[-2:] for rule in rule_names(path)}
    made |= {name.partition(":")[0] for name in WORDS["findings"]}
    texts = {node.value for path in files for node in ast.walk(ast.parse(path.read_text())) if is_text(node)}
    assert made <= {*explanations.names()} <= texts | made | {"overhead"}  # a word of pages that is no finding
    assert explanations.names() == list(sections(examples.printed(examples.FINDINGS_COMMAND)))


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.slow
def test_a_finding_leads_to_its_explanation(summaries):
    for finding in (finding for summary in summaries for finding in summary["findings"]):
        command, rule = finding["definition"].split()
        assert (command, rule) == ("explain", finding["rule"])
        assert explanations.explanation(rule).name == rule


def rule_names(path):
    tree = ast.parse(path.read_text())
    named = {
        ast.unparse(node.target): node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.target, ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    makers = ("Finding", "Told", "JobFinding", "_Cause", "finding")
    names = [getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls]
    rules = [call.args[0] for call, name in zip(calls, names, strict=True) if name in makers and call.args]
    rules += [side for rule in rules if isinstance(rule, ast.IfExp) for side in (rule.body, rule.orelse)]
    found = [rule.value if is_text(rule) else named.get(ast.unparse(rule)) for rule in rules]
    return [rule for rule in found if isinstance(rule, str)]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter's own modules
def test_the_notebook_runs_and_prints_what_it_shows():
    pytest.importorskip("nbclient")  # comes with `.[dev]` only
    from support import tour  # noqa: PLC0415 - needs nbclient

    assert tour.run(tour.kept()).cells == tour.kept().cells


@pytest.mark.slow
def test_pages_that_the_code_names_exist():
    nodes = [node for path in (ROOT / "analyzer").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    named = {name for node in nodes if is_text(node) for name in re.findall(r"[\w-]+\.md\b", node.value)}
    assert named
    assert named <= {path.name for path in (ROOT / "docs").rglob("*.md")}
