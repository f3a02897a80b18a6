"""One folder for the extensions that workloads build, so that a session builds each once and leaves nothing behind."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def build_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extensions")
    before = os.environ.get("TORCH_EXTENSIONS_DIR")
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["TORCH_EXTENSIONS_DIR"]
    else:
        os.environ["TORCH_EXTENSIONS_DIR"] = before
