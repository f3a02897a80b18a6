"""The notebook docs/tour.ipynb, whose outputs are what running it gives.

``python tests/support/tour.py`` runs it and writes its outputs anew.
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

TOUR = Path(__file__).parents[2] / "docs" / "tour.ipynb"


def kept():
    return nbformat.reads(TOUR.read_text(), as_version=4)


def run(notebook):
    """The notebook with the outputs of running it where it lies, without what differs from run to run."""
    notebook = nbformat.from_dict(notebook)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(TOUR.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
    notebook.metadata.pop("language_info", None)
    return notebook


if __name__ == "__main__":
    TOUR.write_text(nbformat.writes(run(kept())) + "\n")
