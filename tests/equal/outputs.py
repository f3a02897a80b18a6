"""What every command prints, recorded and compared: a change that is to change no output is held to that.

    OLD/.venv/bin/python tests/equal/outputs.py old
    NEW/.venv/bin/python tests/equal/outputs.py new
    diff -r old new

The interpreter decides which kanalyze is run; reports and command lines are those beside this script, so that one
script serves two checkouts. It writes a file for each report and capture in sample_reports/ and tests/reports/, for
those reports damaged (tests/fuzz, one case of each kind of damage), for what is refused, and for further reports that
are named: of each command line of cases.py the exit status and what goes to standard output, standard error and into
files. Tables and HTML pages that Python gives are recorded as well, in all their forms. Of long texts the beginning
stands there, and a sum that tells the rest apart. Places, which differ from one checkout to another, are replaced. Two
processors take about six minutes; `--only TEXT` records fewer parts.
"""

import argparse
import gc
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

import cases  # noqa: E402 - the path comes first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Part = tuple[str, Callable[[], Iterator[tuple[str, "Outcome"]]]]

#: Columns of the terminal; pages are recorded at the second width, too.
WIDTH, WIDE = 80, 130

#: Names of a report's own that are used as windows and asked about.
RANGES, KERNELS = 3, 20

#: Of a longer text so many characters are written.
BEGINNING = 50_000

#: After so many cases what they left in memory is collected.
COLLECTED = 25

#: What in the environment would change what is printed.
UNWANTED = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING", "PYTHONWARNINGS")


class Outcome(NamedTuple):
    """How a case ended, and what it wrote where."""

    status: str
    texts: dict[str, str]


def command(line, width=WIDTH):
    """What a command line does, in this process and the current folder."""
    from kanalyze.cli import main  # noqa: PLC0415 - in workers only

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    with (
        patch.object(sys, "argv", ["kanalyze", *line]),
        patch.dict(os.environ, COLUMNS=str(width)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        status = _ended(main)
    texts = {"stdout": _written(out), "stderr": _written(err)}
    return Outcome(status, texts | _files(Path("out")))


def _ended(work):
    try:
        work()
    except SystemExit as end:
        return str(end.code or 0)
    except Exception as error:  # noqa: BLE001 - a traceback is an outcome like others
        return f"{type(error).__name__}: {error}"
    return "0"


def _written(stream):
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", "backslashreplace")  # type: ignore[attr-defined]


def _files(folder):
    """The files that a case left in `folder`, which is emptied: texts, and of others what tells them apart."""
    found = {str(file): _content(file.read_bytes()) for file in sorted(folder.rglob("*")) if file.is_file()}
    shutil.rmtree(folder)
    folder.mkdir()
    return found


def _content(data):
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()}"


def value(make):
    """What a function of the library gives as text, or the error that it raises."""
    texts = {"stdout": "", "stderr": ""}
    status = _ended(lambda: texts.update(stdout=make()))
    return Outcome(status, texts)


def of_report(report, extra=None):
    """All cases of one report; of one that lies elsewhere, at `extra`, as well."""
    if extra is not None:
        Path(report).parent.mkdir(exist_ok=True)
        Path(report).symlink_to(extra)
    declared = _declared()
    yield _said(["summarize", report], WIDE)
    names = _names_in(report, "ranges", "range")[:RANGES], _names_in(report, "kernels", "name")[:KERNELS]
    for line in chain(cases.pages(report), cases.tables(report, declared), cases.named(report, *names)):
        yield _said(line)
    yield f"html {report}", value(partial(_html, report))
    yield from _library(report, declared)


def _said(line, width=WIDTH):
    return f"{' '.join(['kanalyze', *map(_quoted, line)])}{f' [{width} columns]' * (width != WIDTH)}", command(
        line, width
    )


def _quoted(word):
    return word if re.fullmatch(r"[\w./#:*%+=-]+", word) else json.dumps(word)


def _declared():
    return json.loads(command(["show", "--format", "json"]).texts["stdout"])


def _names_in(report, table, column):
    told = command(["show", table, report, "--format", "json"])
    rows = json.loads(told.texts["stdout"]) if told.status == "0" else []
    return list(dict.fromkeys(row[column] for row in rows if row.get(column)))


def _html(report):
    import kanalyze  # noqa: PLC0415 - in workers only

    return kanalyze.read(report)._repr_html_()  # type: ignore[attr-defined]


def _library(report, declared):
    """Every form of every table as the library gives it, all of one open report."""
    import kanalyze  # noqa: PLC0415 - in workers only

    try:
        given = kanalyze.read_all(report)
        first = kanalyze.read(report)
    except kanalyze.KanalyzeError as error:
        yield f"read {report}", value(partial(_refuse, error))
        return
    for table in declared:
        for options in ({}, *cases.forms(table)):
            told = "".join(f" {name}={what}" for name, what in options.items())
            yield f"table {table['table']}{told} {report}", value(partial(_table, first, given, table, options))


def _refuse(error):
    raise error


def _table(first, given, table, options):
    """A table as text: the types of its columns, and its rows with all digits."""
    from kanalyze import KanalyzeError, catalog  # noqa: PLC0415 - in workers only

    name = table["table"]
    together = "together" in vars(catalog.table(name)) and catalog.table(name).together
    try:
        frame = catalog.make(*(given[:1] if together else [first]), name, *(given[1:] if together else []), **options)
    except KanalyzeError as error:
        return f"{error.slug} {error.exit_status}\n{error}\n{error.remedy}\n{error.details}"
    types = " ".join(f"{column}:{kind}" for column, kind in frame.schema.items())
    return f"{types}\n{frame.write_ndjson()}"


def of_damaged(form):
    """Reports of a format with each kind of damage that tests/fuzz knows, once."""
    from fuzz.cases import DAMAGE, SEEDS, cases as damaged  # noqa: PLC0415 - needs polars, which kanalyze is to import first

    for case in islice(damaged(form), len(DAMAGE[form]) * len(SEEDS[form])):
        folder = Path(f"damaged-{case.number}")
        folder.mkdir()
        report = str(case.write(folder))
        told = f"{form}, {case.damage}, {case.number}: "
        for line in (["summarize", report], ["show", "health", report], ["show", "events", report, "--format", "csv"]):
            name, outcome = _said(line)
            yield told + name, outcome
        shutil.rmtree(folder)


def of_lines(which):
    """The cases of several reports, of none, and of what is refused."""
    lines: Iterable[list[str]]
    if which == "several":
        lines = chain.from_iterable(map(cases.of_several, cases.PAIRS))
    elif which == "none":
        lines = cases.of_none(_declared())
    else:
        lines = cases.refused()
        Path("empty.sqlite").touch()
        Path("text.json").write_text("This is no report.\n")
        Path("folder").mkdir()
        whole = (ROOT / "tests" / "reports" / "add.sqlite").read_bytes()
        Path("cut.sqlite").write_bytes(whole[: len(whole) // 2])
        Path("own.sqlite").write_bytes(whole)
    yield from map(_said, lines)


def of_processes():
    """Some command lines in processes of their own, which end as the program does."""
    add = "tests/reports/add.sqlite"
    for line in ([], ["--version"], ["summarize", add], ["show", "kernels", add], ["show", "nosuch", add], ["verify"]):
        ended = subprocess.run([sys.executable, "-m", "kanalyze", *line], capture_output=True, text=True, check=False)
        told = {"stdout": ended.stdout, "stderr": ended.stderr}
        yield f"process: kanalyze {' '.join(line)}", Outcome(str(ended.returncode), told)


def every_part(extras):
    """The parts of the record, named, each to be run in a folder of its own; what takes longest comes first."""
    damage = ["nsys sqlite", "torch json", "ncu csv", "nsys folder", "torch json.gz", "capture", "ncu rep"]
    own = cases.reports(ROOT)
    own.sort(key=lambda report: (report not in cases.LEADERS, report))
    return [
        *((str(path), partial(of_report, f"extra/{path.name}", path.resolve())) for path in extras),
        *((report, partial(of_report, report)) for report in own),
        *((f"damaged {form}", partial(of_damaged, form)) for form in damage),
        *((which, partial(of_lines, which)) for which in ("several", "none", "refused")),
        ("processes", of_processes),
    ]


def record(target, part):
    """Write the outcomes of a part by the names of its cases, with places replaced; gives how many there are."""
    warnings.simplefilter("ignore")  # said once in a process, whichever parts it runs; tests take them for errors
    for name in UNWANTED:
        os.environ.pop(name, None)
    gc.disable()  # as the program does
    with (
        tempfile.TemporaryDirectory(prefix="equal-") as place,
        (target / re.sub(r"[^\w.]+", "-", part[0])).open("w", encoding="utf-8", errors="backslashreplace") as file,
        chdir(place),
        patch.dict(os.environ, XDG_CACHE_HOME=f"{place}/cache", LINES="24"),
    ):
        for name in ("sample_reports", "tests"):
            Path(name).symlink_to(ROOT / name)
        Path("out").mkdir()
        replaced = _places(place)
        for number, (name, outcome) in enumerate(part[1](), 1):
            print(f"===== {name}\nstatus {_plain(outcome.status, replaced)}", file=file)
            for where, text in outcome.texts.items():
                print(f"----- {where}\n{_beginning(_plain(text, replaced))}", file=file)
            if number % COLLECTED == 0:
                gc.collect()
        return number


def _beginning(text):
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return text if len(text) <= BEGINNING else f"{text[:BEGINNING]}\n[{len(text)} characters, {digest}]"


def _places(place):
    """What stands for each place in the record; longer names first, since they begin with others."""
    import kanalyze  # noqa: PLC0415 - in workers only

    package = Path(kanalyze.__file__).parents[1]
    places = {place: "<here>", str(package): "<checkout>", str(ROOT): "<checkout>", str(Path.home()): "<home>"}
    places |= {sys.executable: "<python>", sys.prefix: "<environment>", str(package / "analyzer"): "<package>"}
    return dict(sorted(places.items(), key=lambda item: -len(item[0])))


def _plain(text, places):
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("extras", type=Path, nargs="*", help="further reports")
    parser.add_argument("--only", default="", help="only reports and parts whose name holds this")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    given = parser.parse_args()
    given.target.mkdir(parents=True)
    parts = [part for part in every_part(given.extras) if given.only in part[0]]
    # not concurrent.futures', whose processes are not always replaced when they end together
    with get_context("spawn").Pool(given.jobs, maxtasksperchild=8) as pool:
        counts = pool.imap(partial(record, given.target.resolve()), parts)
        for number, (part, count) in enumerate(zip(parts, counts, strict=True), 1):
            print(f"{number} of {len(parts)}: {part[0]}, {count} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
