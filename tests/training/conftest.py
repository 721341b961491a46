"""A small corpus made by the real commands' functions, and settings that train on it in a second."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bertie.base.settings import resolve
from bertie.corpus.preparation import prepare
from bertie.corpus.word_counts import count_words
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary
from bertie.text.wordpiece_trainer import learn_vocabulary
from bertie.training.pretraining import PretrainingSettings

TINY = {
    "batch_size": 16,
    "warmup_steps": 2,
    "log_every": 3,
    "evaluate_every": 5,
    "save_every": 4,
    "held_out_examples": 32,
    "device": "cpu",
    "precision": "float32",  # whatever the processor is made for: many tests compare to its last digits
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
    """A function: the settings above, with changes."""
    return lambda **changes: resolve(PretrainingSettings, TINY, changes)


def write_text(folder: Path) -> None:
    """Sixty documents about things that stand in places, each in words of its own."""
    chance = random.Random(0)
    things = ["cat", "dog", "house", "river", "mountain", "garden", "window", "table", "letter", "song"]
    places = ["behind", "above", "under", "near", "inside"]
    folder.mkdir()
    for number in range(60):
        own = chance.sample(things, 4)
        sentences = [
            f"The {chance.choice(own)} is {chance.choice(places)} the {chance.choice(own)} number {number}."
            for _ in range(12)
        ]
        (folder / f"{number:02}.txt").write_text("\n".join(sentences))


@pytest.fixture(scope="session")
def corpus_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_text(folder / "text")
    files = sorted((folder / "text").iterdir())
    words, counts = count_words(files, lowercase=True, workers=1)
    Tokenizer(Vocabulary(learn_vocabulary(words, counts, 200))).save(folder / "tokenizer")
    prepare(files, folder / "tokenizer", folder / "corpus", workers=1, held_out=0.1)
    return folder / "corpus"
