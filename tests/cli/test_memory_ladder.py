"""Whatever a command lacks memory for, and however little there is: it answers, or the error is `out-of-memory`."""

import resource
import subprocess

import pytest

from support.command import ADD, SAMPLES, TORCH, command_line, environment

LINES = (
    *("summarize {0}", "html {0} -o {1}/page.html", "show kernels {0}", "tree {3}", "compare {2} {2}"),
    *("compare --noise {0} {0}", "compare {0} --save {1}/x.kz", "ranks {0} {3}", "reduce {0} {2} -o {1}/reduced"),
    *("export {0} --to csv -o {1}/tables", "export {0} --to perfetto -o {1}/trace.json", "sql {0} SELECT"),
    *("plot {0} ledger -o {1}/p.svg", "whatif {0}", "verify {2}", "roofline {2}", "redact {0} -o {1}/copy.sqlite"),
    *("tables", "name gemm", "explain launch-bound"),
)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:24])
@pytest.mark.parametrize("limit_mb", [200, 400, 700, 800, 1400])
def test_out_of_memory_is_said(tmp_path, line, limit_mb):
    entry = "from kanalyze.cli import entry; entry()"
    words = [word.format(ADD, tmp_path, SAMPLES / "add", TORCH) for word in line.split()]
    ended = subprocess.run(  # noqa: S603 - it starts this very package
        [command_line()[0], "-c", entry, *words],
        capture_output=True,
        env=environment(),
        timeout=100,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_mb * 10**6,) * 2),
    )
    assert b"Traceback" not in ended.stderr
    assert b"OpenBLAS" not in ended.stderr
    answered = ended.returncode == 0 or (ended.returncode == 1 and line.startswith("verify"))
    slugs = (b"[out-of-memory]", b"[cannot-tell]", b"[bad-sql]", b"[not-comparable]", b"[unknown-name]", b"[no-job]")
    assert answered or (ended.returncode == 2 and any(slug in ended.stderr for slug in slugs)), ended
