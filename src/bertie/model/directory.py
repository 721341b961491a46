"""A model directory: `config.json`, the tokenizer's files and a card. The weights beside them: weights.py."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertie.base.errors import ModelError
from bertie.base.files import read_json, write_json, write_text
from bertie.model.config import BertConfig
from bertie.text.tokenizer import Tokenizer

# What the labels of a text are, under the names of `transformers`' config.json.
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
SEQUENCE_CLASSIFIER = "BertForSequenceClassification"
OWN_KEYS = ("null_threshold", "max_seq_length")  # in config.json; `transformers` keeps them


@dataclass(frozen=True)
class Description:
    """What a model directory says of its weights.

    config        the network's shape
    architecture  the `transformers` class that the weights belong to, which names the head
    labels        the classifier's labels, in the order of its logits; empty without a classifier
    tokenizer     its vocabulary and casing
    problem_type  what the labels of a text are
    null_threshold  a question has no answer where the null score exceeds the best answer's by more
                  (Section 4.3's τ, chosen on dev); None where every question has one
    max_seq_length  in fine-tuning; None where that is not known
    """

    config: BertConfig
    architecture: str
    labels: tuple[str, ...]
    tokenizer: Tokenizer
    problem_type: ProblemType = "single_label_classification"
    null_threshold: float | None = None
    max_seq_length: int | None = None


def check_vocabulary(vocabulary_size: int, config: BertConfig, where: str) -> None:
    """Raises ModelError where the tokenizer can give ids that the model has no embedding for."""
    if vocabulary_size > config.vocab_size:
        raise ModelError(
            f"{where}: the tokenizer has {vocabulary_size:,} entries, but the model has embeddings for "
            f"{config.vocab_size:,}; use the tokenizer that the model was trained with"
        )


def write_description(path: Path, description: Description, card: str) -> None:
    """Write all of a model directory but its weights; `transformers` reads it as it is."""
    values = {
        "architectures": [description.architecture],
        "model_type": "bert",
        **description.config.model_dump(),
        "pad_token_id": description.tokenizer.vocabulary.pad_id,
        "tie_word_embeddings": True,
    }
    # `transformers` takes the number of outputs from the names: a regression has one.
    labels = description.labels or ("LABEL_0",) * (description.problem_type == "regression")
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if description.architecture == SEQUENCE_CLASSIFIER:
        values["problem_type"] = description.problem_type
    for key in OWN_KEYS:
        if (value := getattr(description, key)) is not None:
            values[key] = value
    write_json(path / "config.json", values)
    description.tokenizer.save(path, description.config.max_position_embeddings)
    write_text(path / "README.md", card)


def read_description(path: Path) -> Description:
    """Read what `write_description` or `transformers` wrote.

    Raises:
        ModelError: the directory is absent or not a model's, or its tokenizer does not fit the model.
    """
    if not path.is_dir():
        raise ModelError(f"{path}: no such model directory")
    if not (path / "config.json").is_file():
        raise ModelError(f"{path}: not a model directory: it has no config.json")
    config = BertConfig.load(path / "config.json")
    values = read_json(path / "config.json")
    architecture = (values.get("architectures") or ["BertModel"])[0]
    labels = _labels(architecture, values)
    # What `transformers` takes where the file does not say.
    usual: ProblemType = "regression" if len(labels) == 1 else "single_label_classification"
    tokenizer = Tokenizer.load(path)
    check_vocabulary(len(tokenizer.vocabulary), config, str(path))
    problem_type = values.get("problem_type") or usual
    own = {key: values.get(key) for key in OWN_KEYS}
    return Description(config, architecture, labels, tokenizer, problem_type, **own)


def _labels(architecture: str, values: dict[str, Any]) -> tuple[str, ...]:
    """A classifier's labels; `transformers` does not write them where they are two without names."""
    if architecture not in (SEQUENCE_CLASSIFIER, "BertForTokenClassification"):
        return ()
    names = values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    return tuple(names[number] for number in sorted(names, key=int))
