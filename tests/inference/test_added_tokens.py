"""Predictions use the added tokens of a model, and exports preserve them."""

from pathlib import Path

import numpy as np
from tests.inference.small_models import TOKENIZER, save_small

import bertie
from bertie.inference.export import export
from bertie.model.formats.onnx import Quantization
from bertie.text.added_tokens import AddedToken
from bertie.text.tokenizer import Tokenizer


def test_predictions_and_exports_find_added_tokens(tmp_path: Path) -> None:
    tokens = [AddedToken("paris"), AddedToken("cat", single_word=True, lstrip=True)]
    tokenizer = Tokenizer(TOKENIZER.vocabulary, added_tokens=tokens)
    directory = save_small(tmp_path, "encoder", tokenizer=tokenizer)
    export(directory, tmp_path / "exported", Quantization(layers=False, embeddings=False))
    for path in (directory, tmp_path / "exported"):
        model = bertie.load(path)
        assert model.tokenizer.added_tokens == tokenizer.added_tokens
        # The token cuts the word into three.
        vectors = model.embed(["xPARISy", "x paris y", "xparsy"])
        np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
        assert np.abs(vectors[0] - vectors[2]).max() > 1e-3
