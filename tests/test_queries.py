"""SQL over the tables of reports; the ten questions of docs/sql.md have the answers of SQLite on the same report."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import kanalyze
from kanalyze import catalog, queries
from kanalyze.errors import CannotTellError, SqlError, UnknownNameError
from support.command import ADD, REPORTS, ROOT, SAMPLES, refused, run

MLP = SAMPLES / "mlp_train" / "nsys.sqlite"

PAGE = (ROOT / "docs" / "sql.md").read_text()
QUESTIONS = dict(re.findall(r"^## (.*?)\n.*?```sql\n(.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL))

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"
_LAUNCHED = "k.correlationId = r.correlationId AND k.globalPid = (r.globalTid & ~16777215)"
_WORK = " UNION ALL ".join(
    f"SELECT deviceId, streamId, '{kind}' AS kind, end - start AS ns FROM CUPTI_ACTIVITY_KIND_{kind.upper()}"
    for kind in ("kernel", "memcpy", "memset")
)

#: The same questions in the words of nsys' own tables.
IN_SQLITE = {
    "Which kernels took the most time?": f"""
        SELECT s.value, COUNT(*), SUM(end - start) AS ns, MAX(end - start) FROM {_KERNELS}
        GROUP BY s.value ORDER BY ns DESC, s.value LIMIT 5""",
    "What share of the kernels' time is matrix products?": f"""
        SELECT SUM(end - start) * 1.0 / (SELECT SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL) FROM {_KERNELS}
        WHERE s.value GLOB '*gemm*'""",
    "Which launch shapes does a kernel have, and how long does each take?": f"""
        SELECT s.value, gridX * gridY * gridZ AS b, blockX * blockY * blockZ AS t, registersPerThread, COUNT(*),
        AVG(end - start) AS ns FROM {_KERNELS} GROUP BY s.value, b, t, registersPerThread
        ORDER BY ns DESC, s.value LIMIT 5""",
    "How long after its call did each kernel start?": f"""
        SELECT s.value, COUNT(*), AVG(k.start - r.start), MAX(k.start - r.start) AS most
        FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN {_KERNELS} WHERE {_LAUNCHED}
        GROUP BY s.value ORDER BY most DESC, s.value LIMIT 5""",
    "Which kernels were launched in an NVTX range?": f"""
        SELECT COALESCE(n.text, t.value) AS range, COUNT(*), SUM(k.end - k.start) AS ns
        FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON {_LAUNCHED}
        JOIN NVTX_EVENTS n ON n.globalTid = r.globalTid AND r.start >= n.start AND r.start < n.end
        LEFT JOIN StringIds t ON t.id = n.textId WHERE n.eventType IN (59, 60)
        GROUP BY range ORDER BY ns DESC, range LIMIT 5""",
    "How much was copied in each direction, from and to which memory?": """
        SELECT o.label AS direction, f.label AS source, t.label, COUNT(*), SUM(bytes) AS total, SUM(end - start)
        FROM CUPTI_ACTIVITY_KIND_MEMCPY m JOIN ENUM_CUDA_MEMCPY_OPER o ON o.id = copyKind
        JOIN ENUM_CUDA_MEM_KIND f ON f.id = srcKind JOIN ENUM_CUDA_MEM_KIND t ON t.id = dstKind
        GROUP BY direction, source, t.label ORDER BY total DESC, direction, source""",
    "Which CUDA calls took the host's time?": """
        SELECT s.value, COUNT(*), SUM(end - start) AS ns FROM CUPTI_ACTIVITY_KIND_RUNTIME
        JOIN StringIds s ON s.id = nameId GROUP BY s.value ORDER BY ns DESC, s.value LIMIT 5""",
    "How busy was each stream, and with what?": f"""
        SELECT deviceId, streamId, kind, COUNT(*), SUM(ns) AS ns FROM ({_WORK})
        GROUP BY deviceId, streamId, kind ORDER BY ns DESC, kind""",
    "Where did a stream wait longest for its next kernel?": f"""
        SELECT s.value, start, start - LAG(end) OVER (PARTITION BY deviceId, streamId ORDER BY start) AS gap
        FROM {_KERNELS} ORDER BY gap DESC NULLS LAST, start LIMIT 5""",
    "How many kernels ran in each 10 ms?": """
        SELECT start / 10000000 * 10 AS at, COUNT(*), SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL
        GROUP BY at ORDER BY at""",
}


@pytest.fixture(scope="module")
def mlp():
    return kanalyze.read(MLP)


def test_ten_questions_are_asked():
    assert len(QUESTIONS) == 10
    assert [*QUESTIONS] == [*IN_SQLITE]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_ten_questions_have_the_answers_of_sqlite(question, mlp):
    with closing(sqlite3.connect(f"file:{MLP}?mode=ro", uri=True)) as database:
        expected = database.execute(IN_SQLITE[question]).fetchall()
    assert len(expected) > 0
    found = kanalyze.sql(mlp, QUESTIONS[question]).rows()
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other)


def test_only_tables_that_are_named_are_made():
    asked = []

    def make(name):
        asked.append(name)
        return pl.DataFrame({"event_id": [1, 2], "name": ["a", "b"]})

    found = queries.answer("SELECT name AS kernels FROM events WHERE event_id IN (SELECT event_id FROM gaps)", make)
    assert found.rows() == [("a",), ("b",)]
    assert sorted(asked) == ["events", "gaps"]


def test_texts_compare_with_any_text_and_products_do_not_wrap():
    kinds = pl.Series("kind", ["kernel"], dtype=pl.Enum(["kernel"]))
    shapes = pl.Series("grid_x", [2_000_000_000], dtype=pl.Int32)
    statement = "SELECT grid_x * 4 AS blocks FROM events WHERE kind <> 'no such kind'"
    assert queries.answer(statement, lambda _: pl.DataFrame([kinds, shapes])).rows() == [(8_000_000_000,)]


def test_of_several_reports_a_column_says_which(mlp):
    both = kanalyze.sql([kanalyze.read(ADD), mlp], "SELECT report, SUM(count) AS n FROM kernels GROUP BY report")
    assert dict(both.rows()) == {str(ADD): 1, str(MLP): 1303}
    ran = run("sql", ADD, MLP, "SELECT report, SUM(count) AS n FROM kernels GROUP BY report", "--format", "json")
    assert {row["report"]: row["n"] for row in json.loads(ran.text)} == dict(both.rows())


@pytest.mark.slow
def test_a_part_of_the_report_is_asked(mlp):
    whole, part = (
        kanalyze.sql(mlp, "SELECT SUM(ns) AS ns FROM ledger", **w).item() for w in ({}, {"window": "step#3"})
    )
    assert part == kanalyze.ledger(mlp, window="step#3").get_column("ns").sum() < whole
    ran = run("sql", MLP, "--window", "step#3", "SELECT SUM(ns) AS ns FROM ledger", "--format", "csv")
    assert ran.lines == ["ns", str(part)]
    ran = run("sql", MLP, "--window", "step#*", "SELECT COUNT(DISTINCT instance) AS n FROM ledger", "--format", "csv")
    assert int(ran.lines[1]) > 10


def test_tables_of_a_capture_come_from_the_tool_that_has_them():
    statement = "SELECT ops.name FROM ops JOIN joined ON joined.operator = ops.name WHERE joined.count = 32"
    ran = run("sql", SAMPLES / "square", statement, "--format", "csv")
    assert ran.lines == ["name", "aten::pow"]
    assert "ops is from" in ran.error


@pytest.mark.parametrize("name", ["gpu_metrics", "cpu_samples", "gpu_units"])
def test_tables_of_samples_come_from_the_run_that_has_them(name):
    folder = SAMPLES / "sampled" / "units"
    wanted = kanalyze.sql(kanalyze.read(folder / "samples.sqlite"), f"SELECT * FROM {name}")
    assert wanted.height > 0
    assert kanalyze.sql(kanalyze.read(folder), f"SELECT * FROM {name}").equals(wanted)
    assert kanalyze.sql(kanalyze.read(folder / "nsys.sqlite"), "SELECT * FROM gpu_metrics").is_empty()


def test_show_tables_lists_them():
    assert run("sql", ADD, "SHOW TABLES;", "--format", "csv").lines == ["name", *catalog.every_name()]


@pytest.mark.parametrize(
    ("statement", "slug", "said"),
    [
        ("SELECT * FROM kernls", "unknown-name", "Did you mean kernels?"),
        ("SELECT * FROM ranges", "cannot-tell", "no events of kind range"),
        ("SELEC 1", "bad-sql", "Expected: an SQL statement, found: SELEC"),
        ("SELECT nam FROM kernels", "bad-sql", 'unable to find column "nam"'),
        ("SELECT count FROM kernels WHERE count > 'a'", "bad-sql", "cannot compare string"),
        ("SELECT 1; SELECT 2", "bad-sql", "one (and only one) statement"),
        ("SELECT * FROM read_csv('/etc/passwd')", "bad-sql", "read_csv opens a file"),
        ("SELECT * FROM READ_PARQUET ('x')", "bad-sql", "opens a file"),
        ("SELECT * FROM '/etc/passwd'", "unknown-name", "no table '/etc/passwd'"),
        ('SELECT * FROM "\x1b]0;title\x07"', "unknown-name", "no table"),
        ("", "bad-sql", "statement"),
        ("DROP TABLE kernels", "bad-sql", "kernels"),
    ],
)
def test_what_cannot_be_answered_is_said_in_two_lines(statement, slug, said):
    message, remedy = refused(run("sql", ADD, statement))
    assert said in message + remedy
    assert remedy.endswith(f"[{slug}]")
    assert (message + remedy).isprintable()


def test_what_a_format_cannot_hold_is_said():
    assert "bad-sql" in refused(run("sql", ADD, "SELECT ARRAY_AGG(name) AS n FROM kernels", "--format", "csv"))[1]
    assert run("sql", ADD, "SELECT ARRAY_AGG(name) AS names FROM kernels").status == 0


def test_a_text_may_name_a_function_that_opens_files():
    found = kanalyze.sql(kanalyze.read(ADD), "SELECT 'read_csv(x)' AS a, count FROM kernels -- read_csv (y)")
    assert found.row(0) == ("read_csv(x)", 1)


def test_errors_are_types_in_python():
    report = kanalyze.read(REPORTS / "add.sqlite")
    for statement, error in {
        "SELECT 1 FROM x": UnknownNameError,
        "SELECT 1 FROM ranges": CannotTellError,
        "SELECT": SqlError,
    }.items():
        with pytest.raises(error):
            kanalyze.sql(report, statement)


def test_the_report_is_not_replaced_by_the_answer(tmp_path):
    copy = Path(tmp_path / "add.sqlite")
    copy.write_bytes(ADD.read_bytes())
    assert "it is the report itself" in refused(run("sql", copy, "SELECT 1 AS a", "-o", copy))[0]
    assert "binary" in refused(run("sql", copy, "SELECT 1 AS a", "--format", "parquet"))[0]
    assert run("sql", copy, "SELECT 1 AS a", "--format", "parquet", "-o", tmp_path / "a.parquet").status == 0
    assert pl.read_parquet(tmp_path / "a.parquet").rows() == [(1,)]
