"""Python functions: whose they are, what passes a call on, and how they are shown."""

import polars as pl
import pytest

from kanalyze.analyses.host._thread_names import called_by_program, roles


def role_of(name):
    return roles(pl.Series([name], dtype=pl.Categorical)).select("role", pl.col("shown").cast(pl.String)).row(0)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("train.py(31): step", "program"),
        ("mine/data/loader.py(5): __getitem__", "program"),
        ("transformers/trainer.py(5): train", "program"),
        ("/home/me/work/train.py(5): main", "program"),
        ("C:/Users/me/train.py(5): main", "program"),
        ("<ipython-input-3-ab>(5): <module>", "program"),
        ("<stdin>(1): <module>", "program"),
        ("profile.py(3): main", "program"),  # Python has a module of that name
        ("train.py(5): wrapper", "program"),
        ("torch/_tensor.py(576): backward", "library"),
        ("contextlib.py(132): __enter__", "library"),
        ("json/decoder.py(1): decode", "library"),
        ("<frozen os>(12): fspath", "library"),
        ("<string>(1): __init__", "library"),
        ("<eval_with_key>.16(3): forward", "library"),
        ("/var/torchinductor_me/ys/cys3.py(23): call", "library"),
        ("/usr/lib/python3.10/threading.py(1): run", "library"),
        ("<built-in function sleep>", "library"),
        ("<built-in method append of MyList object>", "library"),
        ("<built-in function isinstance>", "passing"),
        ("<built-in method append of list object>", "passing"),
        ("torch/nn/modules/module.py(1783): _call_impl", "passing"),
        ("torch/utils/_contextlib.py(120): decorate_context", "passing"),
        ("nn.Module: Linear_0", "module"),
        ("Python GC", "module"),
        (None, "library"),
    ],
)
def test_roles(name, role):
    assert role_of(name) == (role, name)


@pytest.mark.parametrize(
    ("name", "role", "shown"),
    [
        (
            "<built-in method item of Tensor object at 0x7f6f8d0ff8e0>",
            "library",
            "<built-in method item of Tensor object>",
        ),
        ("<built-in method get of dict object at 0x7f6f>", "passing", "<built-in method get of dict object>"),
        ("/opt/lib/python3.10/site-packages/torch/x.py(5): f", "library", "torch/x.py(5): f"),
        ("/opt/lib/python3.10/site-packages/mine/x.py(5): f", "program", "mine/x.py(5): f"),
    ],
)
def test_what_differs_between_runs_is_not_shown(name, role, shown):
    assert role_of(name) == (role, shown)


def test_what_the_program_called_also_through_what_passes_calls_on():
    rows = [
        (10, None, "program"),
        (11, 10, "library"),  # called by the program
        (12, 11, "library"),  # by a library
        (13, 10, "passing"),
        (14, 13, "passing"),
        (15, 14, "library"),  # through two that pass it on
        (16, None, "passing"),
        (17, 16, "library"),  # by nobody known
        (18, 99, "library"),  # by what is not in the trace
        (19, 10, "program"),
    ]
    functions = pl.DataFrame(rows, schema=["event_id", "parent_id", "role"], orient="row")
    called = functions.filter(called_by_program(functions)).get_column("event_id").to_list()
    assert called == [11, 15]
