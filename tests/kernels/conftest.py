"""One folder for the extensions that workloads build, so that a session builds each once and leaves nothing behind."""

import os
from contextlib import suppress

import pytest

with suppress(ImportError):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before a test imports Triton, of which sums and maxima are kernels, too


@pytest.fixture(scope="session", autouse=True)
def _build_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield
