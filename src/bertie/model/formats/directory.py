"""A model directory: `config.json`, the tokenizer's files and a card. The weights beside them: weights.py."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertie.base.errors import ModelError
from bertie.base.files import read_json_object, write_json, write_text
from bertie.base.settings import Settings
from bertie.model.config import BERTIE_MODEL_TYPE, BertConfig, ProblemType, read_section
from bertie.model.formats.sentence_transformers import (
    USE_FILE,
    Embedding,
    read_embedding,
    transformer_folder,
    write_embedding,
)
from bertie.text.tokenizer import Tokenizer
from bertie.text.trie import SUFFIX
from bertie.text.vocabulary import Vocabulary
from bertie.text.wordpiece import split_words

SEQUENCE_CLASSIFIER = "BertForSequenceClassification"
# Architectures that read one token of a sequence: in `transformers` the first one always.
POOLED = (
    "BertModel",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    SEQUENCE_CLASSIFIER,
    "BertForMultipleChoice",
)
# Of BertConfig: what training reads and a network does not.
TRAINING_ONLY_KEYS = {
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "position_initializer_range",
}
BERTIE_KEYS = ("null_threshold", "max_seq_length")  # in config.json; `transformers` keeps them


class HeadConfig(Settings):
    """What config.json says beside BertConfig, under its keys; the last three are our own."""

    architectures: tuple[str, ...] | None = None
    model_type: str = "bert"
    num_labels: int = 2  # a key until 2020
    id2label: dict[int, Any] | None = None
    problem_type: ProblemType | None = None
    null_threshold: float | None = None
    max_seq_length: int | None = None
    bilstm: bool = False


@dataclass(frozen=True)
class ModelMetadata:
    """What a model directory says of its weights.

    config        the network's shape
    architecture  the `transformers` class that the weights belong to, which names the head
    labels        the classifier's labels, in the order of its logits; empty without a classifier
    tokenizer     its vocabulary and casing
    problem_type  what the labels of a text are
    null_threshold  a question has no answer where the null score exceeds the best answer's by more
                  (Section 4.3's τ, chosen on dev); None where every question has one
    max_seq_length  in fine-tuning; None where that is not known
    embedding     how sentence-transformers embeds with it; None where the directory does not say
    bilstm        whether a BiLSTM stands between the encoder and the head
    embedding_use  what sentence-transformers says of it to users, such as prompts and the similarity: it goes
                  out as it came in
    """

    config: BertConfig
    architecture: str
    labels: tuple[str, ...]
    tokenizer: Tokenizer
    problem_type: ProblemType = "single_label_classification"
    null_threshold: float | None = None
    max_seq_length: int | None = None
    embedding: Embedding | None = None
    bilstm: bool = False
    embedding_use: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """That of `transformers`' config.json; our own where `transformers` would compute something else.

        It knows no BiLSTM, and pools [CLS] of a left-to-right model too, which has seen nothing but itself.
        """
        unknown = self.bilstm or (self.config.is_decoder and self.architecture in POOLED)
        return BERTIE_MODEL_TYPE if unknown else "bert"


def check_vocabulary(vocabulary_size: int, config: BertConfig, where: str) -> None:
    """Raises ModelError where the tokenizer can give ids that the model has no embedding for."""
    if vocabulary_size > config.vocab_size:
        raise ModelError(
            f"{where}: the tokenizer has {vocabulary_size:,} entries, but the model has embeddings for "
            f"{config.vocab_size:,}; use the tokenizer that the model was trained with"
        )


def check_same_network(path: Path, config: BertConfig, tokenizer: Tokenizer) -> None:
    """Raises ModelError where the model in `path` reads other ids, or is another network than a run's."""
    theirs = read_metadata(path)
    whole = Tokenizer.load(transformer_folder(path))  # with what no text has and it has no embeddings for
    if tokenizer.fingerprint not in (theirs.tokenizer.fingerprint, whole.fingerprint):
        raise ModelError(
            f"{path}: its tokenizer is not the one that the corpus was prepared with; prepare the corpus "
            f"with --tokenizer {path}"
        )
    ours = config.model_dump()
    values = theirs.config.model_dump(exclude=TRAINING_ONLY_KEYS)
    other = {key: value for key, value in values.items() if value != ours[key]}
    if other:
        told = ", ".join(f"{key} is {value!r} there and {ours[key]!r} here" for key, value in other.items())
        advice = " ".join(f"--set model.{key}={value}" for key, value in other.items())
        raise ModelError(f"{path}: not the network of this run's settings: {told}; give {advice}")


def write_metadata(path: Path, metadata: ModelMetadata, card: str) -> None:
    """Write all of a model directory but its weights; `transformers` reads it as it is."""
    values = {
        "architectures": [metadata.architecture],
        "model_type": metadata.model_type,
        **metadata.config.model_dump(exclude_none=True),
        "pad_token_id": metadata.tokenizer.vocabulary.pad_id,
        "tie_word_embeddings": True,
    }
    # `transformers` takes the number of outputs from the names: a regression has one.
    labels = metadata.labels or ("LABEL_0",) * (metadata.problem_type == "regression")
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if metadata.architecture == SEQUENCE_CLASSIFIER:
        values["problem_type"] = metadata.problem_type
    for key in BERTIE_KEYS:
        if (value := getattr(metadata, key)) is not None:
            values[key] = value
    if metadata.bilstm:
        values["bilstm"] = True
    write_json(path / "config.json", values)
    metadata.tokenizer.save(path, metadata.config.max_position_embeddings)
    if metadata.embedding:
        write_embedding(path, metadata.embedding, metadata.config.hidden_size)
    if metadata.embedding_use:
        write_json(path / USE_FILE, metadata.embedding_use)
    write_text(path / "README.md", card)


def read_metadata(path: Path, architecture: str | None = None, fit: bool = True) -> ModelMetadata:
    """Read what `write_metadata`, `transformers` or sentence-transformers wrote.

    Args:
        path: the directory.
        architecture: what to take for one where config.json names none; BertModel if not given.
        fit: whether the tokenizer is to fit the model; see `fit_tokenizer`.

    Raises:
        ModelError: the directory is absent or not a model's, or its tokenizer does not fit the model.
    """
    if not path.is_dir():
        found = "a file, not a" if path.exists() else "no such"
        raise ModelError(f"{path}: {found} model directory{'' if path.exists() else _download(path)}")
    folder = transformer_folder(path)
    file = config_file(folder)
    if not file.is_file():
        run = path / "model"
        advice = f"; the model of this run is {run}" if run.is_dir() else ""
        raise ModelError(f"{folder}: not a model directory: it has no config.json{advice}")
    config, head = BertConfig.load(file), read_section(HeadConfig, file)
    tokenizer = Tokenizer.load(folder)
    architecture = (head.architectures or [architecture or "BertModel"])[0]
    labels = _labels(architecture, head)
    # What `transformers` takes where the file does not say.
    usual: ProblemType = "regression" if len(labels) == 1 else "single_label_classification"
    problem_type = head.problem_type or usual
    if architecture == SEQUENCE_CLASSIFIER and problem_type == "regression" and len(labels) > 1:
        raise ModelError(
            f"{file}: a regression with {len(labels)} outputs, but bertie knows one number for a text; use "
            f"`transformers` for this model"
        )
    metadata = ModelMetadata(
        config,
        architecture,
        labels,
        fit_tokenizer(tokenizer, config, str(folder)) if fit else tokenizer,
        problem_type,
        head.null_threshold,
        head.max_seq_length,
        read_embedding(path, config.max_position_embeddings),
        head.bilstm,
        read_json_object(path / USE_FILE),
    )
    if head.model_type != metadata.model_type:
        raise ModelError(
            f"{file}: a left-to-right {architecture} that reads [CLS], which has seen no "
            f"other token; here the last one is read: fine-tune the model with `bertie finetune`"
        )
    return metadata


def config_file(folder: Path) -> Path:
    """The file of BertConfig; pytorch-pretrained-bert called it as google does until 2019."""
    file = folder / "bert_config.json"
    return file if file.exists() and not (folder / "config.json").exists() else folder / "config.json"


def names_architecture(folder: Path) -> bool:
    """Whether a folder's config says what the model is, as it does since 2019."""
    return bool(read_json_object(config_file(folder)).get("architectures"))


def _download(path: Path) -> str:
    """What to do where a path that is not there could be a name on the Hugging Face Hub."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", str(path)):
        return ""
    return f"; if it is one on the Hugging Face Hub: hf download {path} --local-dir {path}"


def fit_tokenizer(tokenizer: Tokenizer, config: BertConfig, where: str) -> Tokenizer:
    """The tokenizer, less what it has beyond the model's embeddings, if no text has it.

    Cut vocabularies of lower-casing models end in upper-case letters, for example.

    Raises:
        ModelError: a text has some of it.
    """
    tokens = tokenizer.vocabulary.tokens
    surplus = [token.removeprefix(SUFFIX) for token in tokens[config.vocab_size :]]
    if not surplus:
        return tokenizer
    codes, bounds = split_words(surplus, tokenizer.lowercase)
    words = {"".join(map(chr, codes[first:last])) for first, last in pairwise(bounds.tolist())}
    if words & {*surplus} or {*tokenizer.added_tokens} & {*surplus}:
        check_vocabulary(len(tokens), config, where)
    vocabulary = Vocabulary(tokens[: config.vocab_size], where)
    return Tokenizer(vocabulary, tokenizer.lowercase, tokenizer.max_word_characters, tokenizer.added_tokens)


def _labels(architecture: str, head: HeadConfig) -> tuple[str, ...]:
    """A classifier's labels; `transformers` does not write them where they are two without names."""
    if architecture not in (SEQUENCE_CLASSIFIER, "BertForTokenClassification"):
        return ()
    names = head.id2label or {number: f"LABEL_{number}" for number in range(head.num_labels)}
    return tuple(str(names[number]) for number in sorted(names))
