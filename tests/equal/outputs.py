"""What every command prints, recorded and compared: a change that is to change no output is held to that.

    OLD/.venv/bin/python tests/equal/outputs.py record old.json
    NEW/.venv/bin/python tests/equal/outputs.py record new.json
    python tests/equal/outputs.py compare old.json new.json

The interpreter decides which kanalyze is run; reports and command lines are those beside this script, so that one
script serves two checkouts. `record` writes, for each command line of cases.py, what goes to standard output, standard
error and into files, and the exit status: every table, page and error of every report and capture in sample_reports/
and tests/reports/, of those reports damaged (tests/fuzz, one case of each kind of damage), of what is refused, and of
further reports that are named. Tables and HTML pages that Python gives are recorded as well, in all their forms.
Places, which differ from one checkout to another, are replaced. `compare` prints each case that differs with the first
line that does, and ends with status 1 where there is one; `--but PATTERN` leaves out the cases that a regular
expression finds, where a change is meant. Two processors take about six minutes; `--only TEXT` records fewer cases.
"""

import argparse
import base64
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
import zlib
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
    from fuzz.cases import DAMAGE, SEEDS  # noqa: PLC0415 - needs polars, which kanalyze is to import first
    from fuzz.cases import cases as damaged  # noqa: PLC0415 - as above

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


def run_part(part):
    """The outcomes of a part by the names of its cases, with places replaced."""
    warnings.simplefilter("ignore")  # said once in a process, whichever parts it runs; tests take them for errors
    for name in UNWANTED:
        os.environ.pop(name, None)
    gc.disable()  # as the program does
    with (
        tempfile.TemporaryDirectory(prefix="equal-") as place,
        chdir(place),
        patch.dict(os.environ, XDG_CACHE_HOME=f"{place}/cache", LINES="24"),
    ):
        for name in ("sample_reports", "tests"):
            Path(name).symlink_to(ROOT / name)
        Path("out").mkdir()
        replaced = _places(place)
        found = {}
        for number, (name, outcome) in enumerate(part[1]()):
            texts = {where: _plain(text, replaced) for where, text in outcome.texts.items()}
            found[name] = Outcome(_plain(outcome.status, replaced), texts)
            if number % COLLECTED == 0:
                gc.collect()
        return found


def _places(place):
    """What stands for each place in the record; longer names first, since they begin with others."""
    package = _package().parent
    places = {place: "<here>", str(package): "<checkout>", str(ROOT): "<checkout>", str(Path.home()): "<home>"}
    places |= {sys.executable: "<python>", sys.prefix: "<environment>", str(package / "analyzer"): "<package>"}
    return dict(sorted(places.items(), key=lambda item: -len(item[0])))


def _plain(text, places):
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def _package():
    """The folder of the kanalyze that this interpreter imports."""
    import kanalyze  # noqa: PLC0415 - `compare` does without

    return Path(kanalyze.__file__).parent


def record(target, parts, jobs):
    """Write what every case gives into the file `target`."""
    recorded = {"commit": _commit(), "cases": {}, "texts": {}}
    # not concurrent.futures', whose processes are not always replaced when they end together
    with get_context("spawn").Pool(jobs, maxtasksperchild=8) as pool:
        for number, (part, found) in enumerate(zip(parts, pool.imap(_kept, parts), strict=True), 1):
            recorded["cases"] |= found[0]
            recorded["texts"] |= found[1]
            print(f"{number} of {len(parts)}: {part[0]}, {len(found[0])} cases", file=sys.stderr)
    target.write_text(json.dumps(recorded))
    print(f"{target}: {len(recorded['cases'])} cases of {recorded['commit']}")


def _kept(part):
    """The cases of a part as they are kept: the digest of each text, and the texts, packed, by their digests."""
    found, packed = {}, {}
    for name, (status, texts) in run_part(part).items():
        digests = {where: hashlib.sha256(text.encode()).hexdigest()[:20] for where, text in texts.items()}
        packed |= {digests[where]: _packed(text) for where, text in texts.items()}
        found[name] = [status, digests]
    return found, packed


def _packed(text):
    return base64.b85encode(zlib.compress(text.encode(), 1)).decode()


def _unpacked(packed):
    return zlib.decompress(base64.b85decode(packed)).decode()


def _commit():
    """The commit of the checkout that is run, and whether it has changes."""
    git = ["git", "-C", str(_package().parent)]
    told = [
        subprocess.run([*git, *rest], capture_output=True, text=True, check=False).stdout.strip() for rest in _ASKED
    ]
    return f"{told[0] or 'no commit'}{' with changes' if told[1] else ''}"


_ASKED = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])


def compare(old, new, but):
    """Print what differs between two records; the status is 1 where anything does."""
    one, other = (json.loads(path.read_text()) for path in (old, new))
    left_out = re.compile(but) if but else None
    names = [name for name in {**one["cases"], **other["cases"]} if not (left_out and left_out.search(name))]
    differing = 0
    for name in names:
        told = _difference(name, one, other)
        if told:
            differing += 1
            print(f"{name}\n{told}")
    print(f"{differing} of {len(names)} cases differ between {one['commit']} and {other['commit']}")
    return int(differing > 0 or not names)


def _difference(name, one, other):
    """How a case differs, in some lines; empty where it does not."""
    if name not in one["cases"] or name not in other["cases"]:
        return f"  only in {'the first' if name in one['cases'] else 'the second'}"
    (status, texts), (new_status, new_texts) = one["cases"][name], other["cases"][name]
    told = [f"  status {status} became {new_status}"] if status != new_status else []
    for where in {**texts, **new_texts}:
        if texts.get(where) != new_texts.get(where):
            before, after = (
                _unpacked(of["texts"][digest]).splitlines() if digest else ["(nothing)"]
                for of, digest in ((one, texts.get(where)), (other, new_texts.get(where)))
            )
            told.append(f"  {where}, {_first_difference(before, after)}")
    return "\n".join(told)


def _first_difference(before, after):
    lines = zip([*before, "(end)"], [*after, "(end)"], strict=False)
    number, (old, new) = next((at for at in enumerate(lines, 1) if at[1][0] != at[1][1]), (0, ("", "")))
    start = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    cut = slice(max(0, start - 60), start + 100)
    return f"line {number}, from column {cut.start + 1}\n    - {old[cut]}\n    + {new[cut]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write what every case gives")
    recording.add_argument("target", type=Path, help="the file to write")
    recording.add_argument("extras", type=Path, nargs="*", help="further reports")
    recording.add_argument("--only", default="", help="only reports and parts whose name holds this")
    recording.add_argument("--jobs", type=int, default=2, help="processes side by side")
    comparing = commands.add_parser("compare", help="print what differs between two records")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--but", default="", help="leave out cases that this regular expression finds")
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.old, given.new, given.but)
    parts = every_part(given.extras)
    record(given.target, [part for part in parts if given.only in part[0]], given.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
