"""Both libraries that multiply float32 matrices on a CPU, whichever is faster on this machine."""

import pytest
import torch

from bertie.model import products


@pytest.fixture(params=["MKL", "OpenBLAS"])
def library(request, monkeypatch):
    """Multiply in torch's library, and then in numpy's."""
    if request.param == "OpenBLAS" and products._openblas() is None:
        pytest.skip("numpy has another library")
    monkeypatch.setattr(
        "bertie.model.products.multiplies_in_numpy",
        lambda matrix: request.param == "OpenBLAS" and matrix.dtype == torch.float32,
    )
