"""One server with several models, for the tests of the APIs."""

import pytest
from tests.inference.server.serving import serving
from tests.inference.small_models import save_small

import bertie

KINDS = ("encoder", "classifier", "regression", "pre-training", "tagger")


@pytest.fixture(scope="session")
def predictors(tmp_path_factory):
    """Return small models by kind."""
    directory = tmp_path_factory.mktemp("served")
    config = {"prompts": {"query": "the "}}
    metadata = {"encoder": {"sentence_transformers_config": config}}
    return {kind: bertie.load(save_small(directory, kind, **metadata.get(kind, {}))) for kind in KINDS}


@pytest.fixture(scope="session")
def several(predictors):
    """Serve all of them; the encoder comes first."""
    with serving(*predictors.values()) as served:
        yield served
