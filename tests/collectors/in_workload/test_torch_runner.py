"""The runner as it is started: its command line, its recipes, the workload's fate, and its files, without torch."""

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from kanalyze.collectors.in_workload import torch_runner, torch_script
from kanalyze.collectors.in_workload.hooks import Part
from kanalyze.collectors.in_workload.torch_run import parse
from kanalyze.collectors.in_workload.torch_script import rank
from kanalyze.collectors.in_workload.torch_sessions import CYCLE, RECIPES, Settings

RUNNER = Path(torch_runner.__file__).resolve()
#: What runs inside the workload's Python.
INSIDE = sorted(path.stem for path in RUNNER.parent.glob("*.py"))


@pytest.mark.parametrize("name", INSIDE)
def test_what_runs_in_the_workloads_python_is_python_3_9_and_alone(name):
    tree = ast.parse(RUNNER.with_name(f"{name}.py").read_text(), feature_version=(3, 9))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            roots.add(node.module.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "") in {"", *INSIDE}
    assert roots <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"]  # of 3.10


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_a_command_line_with_everything(script):
    line = (
        "--out o --recipe schedule --activities cuda,cpu --no-record-shapes --with-stack --profile-memory --wait 2 "
        f"--active 3 --repeat 4 --step-on models.net:Net.step --caches user --no-key-averages -- {script} --out x -- -m"
    )
    assert parse(line.split(), {"RANK": "3", "WORLD_SIZE": "4"}) == Settings(
        out=Path("o"),
        recipe=RECIPES["schedule"].with_changes(
            {"record_shapes": False, "with_stack": True, "profile_memory": True, "wait": 2, "active": 3, "repeat": 4}
        ),
        workload=(script, "--out", "x", "--", "-m"),
        activities=("cpu", "cuda"),
        step=Part("function", "models.net:Net.step"),
        left_out=Part("optimizer"),
        fresh=False,
        key_averages=False,
        rank=3,
    )


def test_a_command_line_with_nothing(script):
    assert parse(["--out", "o", "--", script], {}) == Settings(Path("o"), RECIPES["plain"], (script,))


@pytest.mark.parametrize(
    "options",
    [
        "--recipe schedule --step-range step* --active 2 --skip-first 3",
        "--recipe toggle-cpu-off --leave-out opt*",
        "--recipe toggle --leave-out-call __main__:validate",
        "--recipe events --step-on forward --caches user",
        "--recipe plain --activities cpu --with-flops --no-key-averages",
    ],
)
def test_settings_give_a_command_line_that_gives_the_settings(options, script, tmp_path):
    settings = parse(["--out", str(tmp_path), *options.split(), "--", script, "a b", "'"], {})
    assert parse(settings.arguments(), {}) == settings


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--out o", "no workload: give SCRIPT or -m MODULE after --"),
        ("--out o -- -m", "no workload: give SCRIPT or -m MODULE after --"),
        ("--out o -- gone.py", "gone.py: no such script"),
        ("-- {script}", "the following arguments are required: --out"),
        ("--out o --recipe plane -- {script}", "argument --recipe: invalid choice: 'plane'"),
        ("--out o --active 2 -- {script}", "recipe plain has no steps, so it takes no active"),
        ("--out o --recipe schedule --active 0 -- {script}", "active is 1 or more"),
        ("--out o --step-on step -- {script}", "'step' is neither optimizer, forward nor MODULE:FUNCTION"),
        ("--out o --step-on m:a-b -- {script}", "'m:a-b' is neither optimizer, forward nor MODULE:FUNCTION"),
        ("--out o --step-on forward --step-range x -- {script}", "not allowed with argument"),
        ("--out o --activities gpu -- {script}", "'gpu' is not cpu, cuda or both"),
        ("--out o --leave-out opt -- {script}", "recipe plain leaves nothing out: choose a toggle recipe"),
        ("--out o --with-stac -- {script}", "unrecognized arguments: --with-stac"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(line, why, script, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(line.format(script=script).split(), {})
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ("", None),
        ("RANK=0 WORLD_SIZE=1", 0),
        ("RANK=5 WORLD_SIZE=8", 5),
        ("RANK=5", None),
        ("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4", 2),
        ("SLURM_PROCID=0 SLURM_NTASKS=1", None),
        ("SLURM_PROCID=1 SLURM_NTASKS=2", 1),
        ("RANK=-1 WORLD_SIZE=x", None),
    ],
)
def test_ranks_of_launchers(variables, number):
    assert rank(dict(variable.split("=") for variable in variables.split())) == number


def output_of(command, **more):
    return subprocess.run(  # noqa: S603 - a script of the test
        command, check=False, capture_output=True, text=True, timeout=60, **more
    )


def test_without_torch_it_says_so_and_runs_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    # -S: no installed packages, so no torch, whatever this Python has
    done = output_of([sys.executable, "-S", RUNNER, "--out", tmp_path / "o", "--", script])
    assert (done.returncode, done.stdout) == (120, "")
    assert "the workload cannot be profiled: ModuleNotFoundError: No module named 'torch'" in done.stderr
    document = json.loads((tmp_path / "o" / "torch-run.json").read_text())
    assert document["failures"] == ["the workload cannot be profiled: ModuleNotFoundError: No module named 'torch'"]
    assert document["workload"]["ended"] == "unknown"


def run_script(tmp_path, text, *arguments, wrappers="{}", before="", name="work load.py"):
    """What a script prints and ends with when torch_script runs it as its only business."""
    script = tmp_path / name
    script.write_text(textwrap.dedent(text))
    program = (
        f"import sys\nfrom kanalyze.collectors.in_workload import torch_script\nsys.path.remove('')\n{before}\n"
        f"torch_script.run({[str(script), *arguments]!r}, {wrappers})"
    )
    return run_program(tmp_path, program)


def run_program(tmp_path, program):
    """What a program prints and ends with in a Python that finds what this one finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return output_of([sys.executable, "-c", program], env=environment, cwd=tmp_path)


WHO = """
    '''What it is.'''
    import sys
    print(sys.argv[1:], __name__, __doc__, sys.path[0], __file__, __spec__, __package__)
    print(sys.modules['__main__'].__dict__ is globals(), [name for name in dir() if name[:2] != '__'])
"""


def test_a_script_is_main_as_python_itself_runs_it(tmp_path):
    told = run_script(tmp_path, WHO, "a b", "'", "--x")
    alone = output_of([sys.executable, tmp_path / "work load.py", "a b", "'", "--x"])
    assert (told.stdout, told.returncode) == (alone.stdout, 0)
    assert f"['a b', \"'\", '--x'] __main__ What it is. {tmp_path} {tmp_path}/work load.py None None" in told.stdout


def test_a_script_is_still_main_when_the_program_ends(tmp_path):
    last = "atexit.register(lambda: print(sys.modules['__main__'].x, type(pickle.loads(pickle.dumps(A()))) is A))"
    assert run_script(tmp_path, f"import atexit, pickle, sys\nx = 5\nclass A: pass\n{last}").stdout == "5 True\n"


def test_a_spawned_process_finds_the_script_and_not_us(tmp_path):
    told = run_script(
        tmp_path,
        """
        import multiprocessing, sys
        def work(n): print(n, sys.argv, __name__, flush=True)
        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=work, args=(3,))
            process.start(); process.join()
        """,
        "x",
    )
    assert told.stdout == f"3 ['{tmp_path}/work load.py', 'x'] __mp_main__\n"


@pytest.mark.slow
def test_a_module_and_a_folder_run_too(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import sys; print(sys.argv[1:], __name__)")
    (tmp_path / "package" / "__init__.py").write_text("")
    run_as = "from kanalyze.collectors.in_workload.torch_script import run; run({}, {{}})"
    for target in (["-m", "package", "1"], ["package", "1"]):
        told = run_program(tmp_path, run_as.format(target))
        assert told.stdout == "['1'] __main__\n", told.stderr


def test_functions_of_the_script_are_wrapped_and_lines_stay(tmp_path):
    told = run_script(
        tmp_path,
        """
        import functools
        class Net:
            @functools.cache
            def step(self):
                return "net"
            def __init__(self):
                def step(): return "inner"
                print(step())
        def step():
            raise ValueError("here")
        print(Net().step())
        step()
        """,
        before="told = lambda f: lambda *a: (print('in'), f(*a), print('out'))[1]",
        wrappers="{'step': told, 'Net.step': told}",
    )
    assert told.stdout == "inner\nin\nout\nnet\nin\n", told.stderr
    assert "line 11, in step" in told.stderr


def test_a_traceback_begins_in_the_workload(tmp_path, monkeypatch):
    script = tmp_path / "bad.py"
    script.write_text("def f():\n    return 1 / 0\nf()\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    torch_script.hide_runner()
    with pytest.raises(ZeroDivisionError) as raised:
        torch_script.run([str(script)], {})
    sys.excepthook(raised.type, raised.value, raised.value.__traceback__.tb_next)
    ((_, _, frame),) = shown
    assert (frame.tb_frame.f_code.co_filename, frame.tb_lineno) == (str(script), 3)


@example({"wait": 0, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 0})  # the least of each
@given(st.fixed_dictionaries({name: st.integers(-2, 3) for name in CYCLE}))
def test_a_cycle_has_an_active_step_and_no_negative_count(counts):
    possible = counts["active"] >= 1 and min(counts.values()) >= 0
    if possible:
        assert RECIPES["schedule"].with_changes(counts).cycle == counts
    else:
        with pytest.raises(ValueError, match="active is 1 or more"):
            RECIPES["schedule"].with_changes(counts)
