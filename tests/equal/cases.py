"""The command lines whose output is recorded: every command, table and option that there is, and what is refused."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Line = list[str]

COMMANDS = (
    *("collect", "doctor", "name", "redact", "roofline", "show", "source"),
    *("summarize", "tables", "tree", "verify", "workloads"),
)
WORKLOADS = (
    *("add", "add_extension", "add_parallel", "cdist", "gelu", "launch_bound", "matmul", "mlp_train"),
    *("square", "square_inline", "square_triton", "streams"),
)

#: Where a case may write; what is there is recorded, too.
OUT = "out"

#: Reports of each format, whose tables are asked for in every form on the command line.
LEADERS = (
    "tests/reports/add_um.sqlite",
    "tests/reports/nvtx.sqlite",
    "tests/reports/nvtx.parquetdir",
    "tests/reports/graph_node.sqlite",
    "tests/reports/two_processes.sqlite",
    "tests/reports/torch/with_modules.json.gz",
    "sample_reports/mlp_train/torch.json.gz",
    "sample_reports/gelu",
    "sample_reports/add_parallel/ncu.ncu-rep",
    "tests/reports/ncu/add.details.csv",
)

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

#: Parts of a report that every page is asked for, and that those of leaders are.
_PARTS = ("--window +0.1ms..+50ms", "--window steps", "--device 1 --format json")
_FURTHER_PARTS = (
    "--window +1ms..+2ms",
    "--window ..+10ms --format markdown",
    "--window 100s..200s",
    "--window step#*",
    "--window step#2 --format json",
    "--window step:5",
    "--window nosuch",
    "--device 0",
    "--process 1",
    "--device 0 --window +0.1ms..+50ms",
    "--top 2 --no-cache",
    f"-o {OUT}/page.txt",
)

#: Tables that every report is asked for on the command line; the library is asked for all of them.
_TABLES = ("kernels", "gaps", "health", "counters")


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
    """Every page of a report, in all formats and of several parts."""
    for form in ("terminal", "markdown", "json"):
        yield ["summarize", report, "--format", form]
    for words in (*_PARTS, *(_FURTHER_PARTS if report in LEADERS else ())):
        yield ["summarize", report, *words.split()]
    for form in ("terminal", "csv", "json"):
        yield ["verify", report, "--all", "--format", form]
    yield ["verify", report]
    yield ["tree", report]
    yield ["tree", report, "--by", "host", "--min-share", "0%"]
    yield ["tree", report, "--by", "device", "--depth", "3", "--window", "steps"]
    yield ["tree", report, "--format", "json"]
    yield ["roofline", report]
    yield ["roofline", report, "--plot", f"{OUT}/roof.html"]
    for how in ([], ["--sass"], ["--ptx"], ["--format", "json"]):
        yield ["source", report, "", *how]
    yield ["source", report, "0"]
    yield ["source", report, "nosuchkernel"]
    yield ["redact", report, "--check"]
    yield ["redact", report, "-o", f"{OUT}/{report.rpartition('/')[2]}", "--remove", "step"]


def named(report, ranges, kernels):
    """What is asked with names that the report itself has: of ranges, which are windows, and of kernels."""
    for name in ranges if report in LEADERS else ranges[:1]:
        for window in (name, f"{name}#*", f"{name}#2"):
            yield ["summarize", report, "--window", window]
        yield ["show", "kernels", report, "--window", f"{name}#*", "--format", "csv"]
    if kernels:
        yield ["name", "--", *kernels]
        yield ["name", "--format", "json", "--", *kernels]
        yield ["source", report, kernels[0]]


def tables(report, declared, *, every):
    """Tables of a report in all forms on the command line: a few of most reports, all of :data:`LEADERS` or if told."""
    if report not in LEADERS and not every:
        yield from (["show", name, report, "--format", "csv"] for name in _TABLES)
        return
    for table in declared:
        name = table["table"]
        for form in ("terminal", "csv", "json"):
            yield ["show", name, report, "--format", form]
        yield ["show", name, report, "--format", "parquet", "-o", f"{OUT}/table.parquet"]
        for options in forms(table):
            words = [word for option, value in options.items() for word in _words(option, value)]
            for form in ("csv", "json"):
                yield ["show", name, report, *words, "--format", form]
        yield ["show", name, report, "--window", "+0.1ms..+50ms", "--top", "20", "--format", "csv", "--no-formulas"]


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
    """What takes several reports."""
    for form in ("terminal", "markdown", "json"):
        yield ["summarize", *paths, "--format", form]
    yield ["summarize", *paths, "--window", "+0.1ms..+50ms"]
    yield ["verify", *paths]
    yield ["verify", *paths, "--all", "--format", "json"]
    yield ["roofline", *paths]
    for table in ("joined", "gains", "agreement", "variants", "kernels"):
        yield ["show", table, *paths, "--format", "csv"]


def of_none(declared):
    """What takes no report: help, declarations, reference workloads, plans of captures."""
    yield from ([], ["--help"], ["-h"], ["--version"], ["--nosuch"], ["sumarize"])
    for command in COMMANDS:
        yield from ([command, "--help"], [command, "--nosuch"], [command])
    for form in ("terminal", "markdown", "json"):
        yield ["tables", "--format", form]
        yield from (["tables", table["table"], "--format", form] for table in declared)
    for name in (*WORKLOADS, "nosuch"):
        yield ["workloads", name]
        yield ["collect", "--dry-run", name]
        yield ["collect", "--dry-run", "--with", "nsys", "--repeat", "3", "--kernels", "2", "--range", "step", name]
        yield ["collect", "--dry-run", "--with", "torch", "--recipe", "schedule", "--recipe-flag", "--wait=2", name]
    yield ["collect", "--dry-run", "--with", "nosuch", "add"]
    yield ["collect", "--dry-run", "--nvcc", "'unclosed", "add"]


def refused():
    """Bad input and use: missing files, files that are no reports, wrong options, places that cannot be written."""
    add = "tests/reports/add.sqlite"
    for path in ("gone.sqlite", "tests/reports/ad.sqlite", "empty.sqlite", "text.json", "folder", "cut.sqlite", ""):
        yield ["summarize", path]
        yield ["show", "kernels", path]
        yield ["verify", path]
        yield ["tree", path]
        yield ["roofline", path]
        yield ["source", path, "0"]
        if path:  # else it is all that is in this folder
            yield ["redact", path, "-o", f"{OUT}/copy"]
            yield ["redact", path, "--check"]
    for line in ("nosuch", "kernel", "Kernels", ""):
        yield ["show", line, add]
        yield ["tables", line]
    show = ["show", "kernels", add]
    for words in _WRONG:
        yield [*show, *words.split()]
    for window in ("", "1ms", "2ms..1ms", "..", "1..2", "step:x", "#*", "x#0", "+5ms..+1ms", "\x1b[31m"):
        yield ["summarize", add, "--window", window]
    yield ["show", "gaps", add, "--threshold", "lots"]
    yield ["show", "utilisation", "tests/reports/two_gpus.sqlite", "--threshold", "5us"]
    yield ["summarize", "own.sqlite", "-o", "own.sqlite"]
    yield ["summarize", add, "-o", "gone/page.txt"]
    yield ["roofline", "tests/reports/ncu/add.details.csv", "--plot", f"{OUT}/roof.pdf"]
    yield ["redact", add]
    yield ["redact", add, "--check", "-o", f"{OUT}/copy"]
    yield ["redact", add, "-o", "text.json"]
    yield ["tree", "tests/reports/torch/ddp.json.gz", "--min-share", "many"]
    yield ["name"]


_WRONG = (
    "--by nosuch",
    "--by device",
    "--sort nosuch",
    "--sort -total_ns",
    "--top 0",
    "--top x",
    "--format xml",
    "--format parquet",
    "--chunks 3",
    "--chunks 0",
    "--trace",
    "--as-nsys",
    "--as-torch",
    "--threshold 10us",
    "--device 9",
    "--device x",
    "--process 99",
    "tests/reports/nvtx.sqlite",
    "-o out",
    "-o gone/file.csv",
)
