"""A tiny model and a tiny corpus for the tests of the Python API."""

from pathlib import Path

import pytest
import torch

import bertie
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import PreTrainingModel
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
WORDS = ["film", "the", "was", "good", "bad", ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model with random weights."""
    directory = tmp_path_factory.mktemp("models") / "model"
    tokenizer = bertie.Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]))
    config = bertie.BertConfig(vocab_size=len(tokenizer.vocabulary), max_position_embeddings=128, **SIZES)
    torch.manual_seed(0)
    metadata = ModelMetadata(config, PreTrainingModel.architecture, (), tokenizer)
    save_model(directory, PreTrainingModel(config), metadata, "card")
    return directory


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 30 short documents."""
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "text").mkdir()
    for number in range(30):
        lines = [f"Line {line} of document {number} says that all is well." for line in range(8)]
        (folder / "text" / f"{number}.txt").write_text("\n".join(lines))
    bertie.learn_vocabulary(folder / "text", folder / "tokenizer", size=120, workers=1)
    bertie.prepare(
        folder / "text", tokenizer=folder / "tokenizer", out=folder / "corpus", held_out=0.1, workers=1
    )
    return folder / "corpus"


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test in an empty directory."""
    monkeypatch.chdir(tmp_path)
