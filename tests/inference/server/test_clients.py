"""LangChain and LlamaIndex get the vectors of the model; `make test-clients` installs them."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make test-clients installs the clients")
@pytest.mark.parametrize("client", ["langchain", "llama_index_openai", "llama_index_tei"])
def test_clients_get_the_models_vectors(several, predictors, client):
    texts = ["the cat", "paris", "the mat in paris"] * 12  # more than a request may have
    command = [PYTHON, ROOT / "tests" / "clients" / "embed.py", several.url, client, *texts]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    expected = predictors["encoder"].embed(texts, normalize=True)
    np.testing.assert_allclose(json.loads(found.stdout), expected, atol=1e-5)
