"""The notebook runs, and shows what it holds."""

import pytest


@pytest.fixture
def tour():
    pytest.importorskip("nbclient")  # comes with `.[dev]` only
    from support import tour  # noqa: PLC0415 - needs nbclient

    return tour


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter's own modules
def test_the_notebook_runs_and_prints_what_it_shows(tour):
    assert tour.run(tour.kept()).cells == tour.kept().cells
