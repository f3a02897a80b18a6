"""SQL over the tables of reports; the ten questions of docs/sql.md have the answers of SQLite on the same report."""

import re
import sqlite3
import sys
from contextlib import closing

import polars as pl
import pytest

import kanalyze
from kanalyze import catalog
from kanalyze.errors import SqlError
from support.command import ADD, MLP, REPORTS, ROOT, SAMPLES, ended, environment, refused, run

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

    found = catalog.answer("SELECT name AS kernels FROM events WHERE event_id IN (SELECT event_id FROM gaps)", make)
    assert found.rows() == [("a",), ("b",)]
    assert sorted(asked) == ["events", "gaps"]


def test_texts_compare_with_any_text_and_products_do_not_wrap():
    kinds = pl.Series("kind", ["kernel"], dtype=pl.Enum(["kernel"]))
    shapes = pl.Series("grid_x", [2_000_000_000], dtype=pl.Int32)
    statement = "SELECT grid_x * 4 AS blocks FROM events WHERE kind <> 'no such kind'"
    assert catalog.answer(statement, lambda _: pl.DataFrame([kinds, shapes])).rows() == [(8_000_000_000,)]


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


@pytest.mark.slow
def test_tables_of_a_capture_come_from_the_tool_that_has_them():
    statement = "SELECT ops.name FROM ops JOIN joined ON joined.operator = ops.name WHERE joined.count = 32"
    ran = run("sql", SAMPLES / "square", statement, "--format", "csv")
    assert ran.lines == ["name", "aten::pow"]
    assert "ops is from" in ran.error


@pytest.mark.parametrize(
    ("statement", "slug", "said"),
    [
        ("SELECT * FROM kernls", "unknown-name", "Did you mean kernels?"),
        ("SELECT * FROM ranges", "cannot-tell", "no events of kind range"),
        ("SELEC 1", "bad-sql", "Expected: an SQL statement, found: SELEC"),
        ("SELECT nam FROM kernels", "bad-sql", 'unable to find column "nam"'),
        ("SELECT count FROM kernels WHERE count > 'a'", "bad-sql", "cannot compare string"),
        ("SELECT 1; SELECT 2", "bad-sql", "one (and only one) statement"),
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


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv({})",
        'SELECT * FROM "READ_CSV"({})',
        "SELECT * FROM `read_csv`({})",
        "SELECT * FROM/**/`read_csv`/* */({})",
        "SELECT * FROM read_csv -- (\n ({})",
        'SELECT *, 1 AS "--" FROM read_csv({})',
        "SELECT '\\', * FROM read_csv({}) --'",
        "EXPLAIN SELECT * FROM read_csv({})",
        "WITH x AS (SELECT * FROM `read_csv`({})) SELECT 1",
        "SELECT (SELECT a FROM `read_csv`({})) FROM kernels",
        "SELECT * FROM kernels JOIN read_csv({}) AS r ON r.b = kernels.name",
        "SELECT name FROM kernels UNION ALL SELECT b FROM `read_csv`({})",
    ],
)
def test_functions_that_open_files_are_refused_however_they_are_spelt(statement, tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,SECRET\n")
    with pytest.raises(SqlError, match=r"(?i)read_csv opens a file or an address") as refusal:
        kanalyze.sql(kanalyze.read(ADD), statement.format(f"'{tmp_path}/a.csv'"))
    assert "SHOW TABLES" in refusal.value.remedy


@pytest.mark.parametrize("function", ["read_csv", "read_json", "read_ndjson", "read_parquet", "read_ipc"])
@pytest.mark.parametrize("place", ["http://127.0.0.1:9/x", "s3://abc/x.parquet", "hf://abc", "/nonexistent"])
def test_no_function_asks_the_network(function, place):
    message, remedy = refused(run("sql", ADD, f"SELECT * FROM `{function}`('{place}')"))
    assert f"{function} opens a file or an address" in message
    assert remedy.endswith("[bad-sql]")


_JOINS = " CROSS JOIN ".join(f"events {name}" for name in "abcdefgh")


def program(statement, code="from kanalyze.cli import entry\nentry()", **changes):
    """The program in a process of its own."""
    return ended([sys.executable, "-c", code, "sql", ADD, statement], env=environment(**changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "limits", "said"),
    [
        (f"SELECT COUNT(*) FROM {_JOINS}", {"KANALYZE_SQL_SECONDS": "1"}, "it takes more than 1 s.\n"),
        (f"SELECT * FROM {_JOINS}", {"KANALYZE_SQL_GIB": "0.5"}, "more than 0.5 GiB of memory beside its tables.\n"),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT * FROM r",
            {"KANALYZE_SQL_SECONDS": "1"},
            "it takes more than 1 s.\nAsk for fewer rows",
        ),
        (f"SELECT {'+'.join(['1'] * 20_000)}", {}, "it is nested too deeply.\n"),
        (f"SELECT {'(' * 20_000}1{')' * 20_000}", {}, "recursion limit exceeded"),
        ("SELECT 1", {"KANALYZE_SQL_GIB": "nan"}, "KANALYZE_SQL_GIB is 'nan'"),
    ],
)
def test_a_statement_that_takes_too_much_says_of_what(statement, limits, said):
    done = program(statement, **limits)
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.endswith("[bad-sql]\n")
    assert len(done.stderr.splitlines()) == 2


#: The program, whose child does not see which functions open files.
_MISLED = """
import re
from kanalyze.cli import _process, entry
kept = _process._redirect_stderr
def misled(said):
    from kanalyze import catalog as queries
    queries._OPENS = re.compile("x^")
    kept(said)
_process._redirect_stderr = misled
entry()
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["{}/a.csv", "http://127.0.0.1:9/a.csv"])
def test_no_file_can_be_opened_where_a_statement_is_answered(place, tmp_path):
    (tmp_path / "a.csv").write_text("SECRET\n1\n")
    done = program(f"SELECT * FROM read_csv('{place.format(tmp_path)}')", _MISLED)
    assert (done.returncode, done.stdout) == (2, "")
    assert "SECRET" not in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_no_function_that_opens_files_is_called_otherwise():
    with pytest.raises(SqlError, match="'scan_csv' is not a supported table function"):
        kanalyze.sql(kanalyze.read(ADD), "SELECT * FROM scan_csv('a.csv')")
    columns = [column.name for name in catalog.every_name() for column in catalog.table(name).columns]
    assert not [name for name in columns if name.lower().startswith("read_")]
    metrics = kanalyze.read(REPORTS / "ncu" / "add.details.csv")
    assert kanalyze.sql(metrics, "SELECT COUNT(dram_read_bytes) AS read_csv FROM counters").columns == ["read_csv"]
