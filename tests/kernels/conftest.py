"""One folder for the extensions that workloads build, so that a session builds each once and leaves nothing behind."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _build_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield
