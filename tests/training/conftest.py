"""A small prepared corpus, and settings that pre-train on it within a second."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.training.letters import make_initial_model

from bertie.base.settings import resolve
from bertie.corpus.preparation import PreparationOptions, prepare
from bertie.corpus.word_counts import count_words
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary
from bertie.text.wordpiece_trainer import learn_vocabulary
from bertie.training.finetuning import InitialModel
from bertie.training.pretraining_settings import PretrainingSettings

TINY = {
    "batch_size": 16,
    "warmup_steps": 2,
    "log_every": 3,
    "evaluate_every": 5,
    "save_every": 4,
    "held_out_examples": 32,
    "device": "cpu",
    "precision": "float32",  # on any CPU: many tests compare to the last digit
    "phases": [{"steps": 12, "max_seq_length": 32}],
    "model": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "optimizer": {"learning_rate": 1e-3},
}


@pytest.fixture(scope="session")
def tiny_settings() -> Callable[..., PretrainingSettings]:
    """A function that returns the settings above with changes."""
    return lambda **changes: resolve(PretrainingSettings, TINY, changes)


def write_documents(folder: Path) -> None:
    """Write sixty documents of twelve sentences, with four nouns in each document."""
    rng = random.Random(0)
    nouns = ["cat", "dog", "house", "river", "mountain", "garden", "window", "table", "letter", "song"]
    prepositions = ["behind", "above", "under", "near", "inside"]
    folder.mkdir()
    for number in range(60):
        own = rng.sample(nouns, 4)
        sentences = [
            f"The {rng.choice(own)} is {rng.choice(prepositions)} the {rng.choice(own)} number {number}."
            for _ in range(12)
        ]
        (folder / f"{number:02}.txt").write_text("\n".join(sentences))


@pytest.fixture(scope="session")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_documents(folder / "text")
    files = sorted((folder / "text").iterdir())
    words, counts = count_words(files, lowercase=True, workers=1)
    Tokenizer(Vocabulary(learn_vocabulary(words, counts, 200))).save(folder / "tokenizer")
    prepare(files, folder / "tokenizer", folder / "corpus", 1, PreparationOptions(held_out=0.1))
    return folder / "corpus"


@pytest.fixture(scope="session")
def initial_model(tmp_path_factory: pytest.TempPathFactory) -> InitialModel:
    """The encoder that fine-tuning starts from."""
    return make_initial_model(tmp_path_factory.mktemp("models") / "pre-trained")
