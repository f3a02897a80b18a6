"""The command lines whose output is recorded: every command, table and option that there is, and what is refused.

Lines stand as they are typed; `out` is the folder where a case may write: what is there is recorded, too.
"""

from itertools import product

_COMMANDS = "collect|compare|doctor|explain|export|html|plot|ranks|redact|reduce|show|sql|summarize|verify|whatif"
_WORKLOADS = (
    "add|add_extension|add_parallel|cdist|gelu|launch_bound|matmul|mlp_train|nosuch|square|square_inline|square_triton|"
    "streams"
)

#: Reports of each format, whose tables are asked for in every form on the command line.
LEADERS = (
    "tests/reports/add_um.sqlite", "tests/reports/nvtx.sqlite", "tests/reports/nvtx.parquetdir",
    "tests/reports/graph_node.sqlite", "tests/reports/two_processes.sqlite",
    "tests/reports/torch/with_modules.json.gz", "sample_reports/mlp_train/torch.json.gz", "sample_reports/gelu",
    "sample_reports/add_parallel/ncu.ncu-rep", "tests/reports/ncu/add.details.csv",
)  # fmt: skip

#: Reports that are asked for together.
PAIRS = (
    ("tests/reports/add.sqlite", "tests/reports/ncu/add.details.csv"),
    ("tests/reports/two_gpus.sqlite", "tests/reports/two_processes.sqlite"),
    ("tests/reports/torch/ddp.json.gz", "tests/reports/torch/fsdp.json.gz"),
    ("sample_reports/square", "sample_reports/gelu"),
    ("sample_reports/mlp_train/nsys.sqlite", "sample_reports/mlp_train/torch.json.gz"),
    ("sample_reports/square/ncu.raw.csv", "sample_reports/gelu/ncu.details.csv"),
    ("tests/reports/add.sqlite", "tests/reports/add.sqlite"),
    ("sample_reports/add/nsys.sqlite", "gone.sqlite"),
)

#: What every report is asked, in all formats and of several parts.
_PAGES = """
    summarize {} --format terminal|markdown|json
    summarize {} --window +0.1ms..+50ms|steps
    summarize {} --device 1 --format json
    verify {} --all --format terminal|csv|json
    verify {}
    show tree {}
    show tree {} --by host --min-share 0%
    show tree {} --by device --depth 3 --window steps
    show tree {} --format json
    show roofline {}
    plot roofline {} -o out/roof.svg
    show source {} 0|nosuchkernel
    redact {} --check
"""

#: The same of leaders, besides.
_FURTHER_PARTS = """
    summarize {} --window +1ms..+2ms|100s..200s|step#*|step:5|nosuch
    summarize {} --window ..+10ms --format markdown
    summarize {} --window step#2 --format json
    summarize {} --device 0
    summarize {} --process 1
    summarize {} --device 0 --window +0.1ms..+50ms
    summarize {} --top 2 --no-cache
    summarize {} -o out/page.txt
"""

_TOGETHER = """
    summarize {} --format terminal|markdown|json
    summarize {} --window +0.1ms..+50ms
    verify {}
    verify {} --all --format json
    show roofline {}
    show joined|gains|agreement|variants|kernels {} --format csv
"""

#: What takes no report: help, declarations, reference workloads, plans of captures.
_NONE = f"""
    -h|--help|--version|--nosuch|sumarize
    {_COMMANDS}
    {_COMMANDS} --help|--nosuch
    show --format terminal|markdown|json
    collect --list|--dry-run {_WORKLOADS}
    collect --dry-run --with nsys --repeat 3 --kernels 2 --range step {_WORKLOADS}
    collect --dry-run --with torch --recipe schedule --recipe-flag --wait=2 {_WORKLOADS}
    collect --dry-run --with nosuch add
    collect --dry-run --nvcc 'unclosed add
"""

#: Of what cannot be read: missing files, and files that are no reports.
_UNREADABLE = """
    summarize|verify {}
    show kernels|tree|roofline {}
    show source {} 0
    redact {} -o out/copy
    redact {} --check
"""

#: Wrong options, and places that cannot be written.
_WRONG = """
    show kernels {} --by nosuch|device
    show kernels {} --sort nosuch|-total_ns
    show kernels {} --top 0|x
    show kernels {} --format xml|parquet
    show kernels {} --chunks 3|0
    show kernels {} --trace|--as-nsys|--as-torch
    show kernels {} --threshold 10us
    show kernels {} --device 9|x
    show kernels {} --process 99
    show kernels {} tests/reports/nvtx.sqlite
    show kernels {} -o out|gone/file.csv
    show gaps {} --threshold lots
    show utilisation tests/reports/two_gpus.sqlite --threshold 5us
    summarize own.sqlite -o own.sqlite
    summarize {} -o gone/page.txt
    plot roofline tests/reports/ncu/add.details.csv -o out/roof.pdf
    redact {}
    redact {} --check -o out/copy
    redact {} -o text.json
    show tree tests/reports/torch/ddp.json.gz --min-share many
    explain
"""

#: Tables that every report is asked for on the command line; the library is asked for all of them.
_TABLES = ("kernels", "gaps", "health", "counters")


def _lines(texts, *words):
    """The command lines of a text, in which {} stands for some words, and | is between those of which each is meant."""
    for line in texts.strip().splitlines():
        for given in product(*(word.split("|") for word in line.split())):
            yield [one for word in given for one in (words if word == "{}" else [word])]


def reports(root):
    """Every report and capture below `root`, as paths from there."""
    found = set(root.glob("tests/reports/*.parquetdir")) | {file.parent for file in root.glob("**/manifest.json")}
    for pattern in ("*.sqlite", "*.json", "*.json.gz", "*.ncu-rep", "*.csv"):
        for folder in ("sample_reports", "tests/reports"):
            found |= set((root / folder).rglob(pattern))
    names = sorted(str(path.relative_to(root)) for path in found)
    return [name for name in names if name.startswith(("sample_reports/", "tests/reports/")) and not _other(name)]


def _other(name):
    """Whether a file is no report, or a page of ncu beside another, which are one report."""
    if name.endswith(".raw.csv"):
        return name.startswith("sample_reports/") or "/add." in name
    words = ("/expected", "/logs/", "key_averages", "manifest.", "-run.", "compiled.json", ".source.csv")
    return any(word in name for word in words)


def pages(report):
    yield from _lines(_PAGES + (_FURTHER_PARTS if report in LEADERS else ""), report)
    for how in ([], ["--sass"], ["--ptx"], ["--format", "json"]):
        yield ["show", "source", report, "", *how]
    yield ["redact", report, "-o", f"out/{report.rpartition('/')[2]}", "--remove", "step"]


def named(report, ranges, kernels):
    """What is asked with names that the report itself has: of ranges, which are windows, and of kernels."""
    for name in ranges if report in LEADERS else ranges[:1]:
        for window in (name, f"{name}#*", f"{name}#2"):
            yield ["summarize", report, "--window", window]
        yield ["show", "kernels", report, "--window", f"{name}#*", "--format", "csv"]
    for kernel in kernels:
        yield ["explain", "--", kernel]
        yield ["explain", "--format", "json", "--", kernel]
    yield from (["show", "source", report, kernel] for kernel in kernels[:1])


def tables(report, declared):
    """Tables of a report in all forms on the command line: a few of most reports, all of :data:`LEADERS`."""
    if report not in LEADERS:
        yield from (["show", name, report, "--format", "csv"] for name in _TABLES)
        return
    for table in declared:
        show = ["show", table["table"], report]
        for form in ("terminal", "csv", "json"):
            yield [*show, "--format", form]
        yield [*show, "--format", "parquet", "-o", "out/table.parquet"]
        for options in forms(table):
            words = [word for option, value in options.items() for word in _words(option, value)]
            for form in ("csv", "json"):
                yield [*show, *words, "--format", form]
        yield [*show, "--window", "+0.1ms..+50ms", "--top", "20", "--format", "csv", "--no-formulas"]


def _words(option, value):
    flag = "--threshold" if option.startswith("threshold") else f"--{option.replace('_', '-')}"
    if option.startswith("threshold"):
        return [flag, "50us" if option.endswith("ns") else "50%"]
    return [flag] if value is True else [flag, str(value)]


def forms(table):
    """The keywords that give a table's other forms: each grouping, each option, and groupings with options."""
    values = {
        "--chunks": {"chunks": 7},
        "--threshold": {"threshold_ns": 50_000} if table["table"] == "gaps" else {"threshold_share": 0.5},
    }
    groupings = [{"by": by} for by in table["by"]]
    options = [values.get(option, {option.removeprefix("--").replace("-", "_"): True}) for option in table["options"]]
    return [*groupings, *options, *({**by, **option} for by in groupings for option in options)]


def of_several(paths):
    yield from _lines(_TOGETHER, *paths)


def of_none(declared):
    yield []
    yield from _lines(_NONE)
    for table in declared:
        yield from _lines(f"show {table['table']} --format terminal|markdown|json")


def refused():
    """Bad input and use: missing files, files that are no reports, wrong options, places that cannot be written."""
    add = "tests/reports/add.sqlite"
    for path in ("gone.sqlite", "tests/reports/ad.sqlite", "empty.sqlite", "text.json", "folder", "cut.sqlite", ""):
        # nothing is redacted without a path: that would be all that is in this folder
        yield from (line for line in _lines(_UNREADABLE, path) if path or line[0] != "redact")
    for line in ("nosuch", "kernel", "Kernels", ""):
        yield ["show", line, add]
        yield ["show", line]
    yield from _lines(_WRONG, add)
    for window in ("", "1ms", "2ms..1ms", "..", "1..2", "step:x", "#*", "x#0", "+5ms..+1ms", "\x1b[31m"):
        yield ["summarize", add, "--window", window]
