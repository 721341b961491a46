"""Model directories: `config.json`, the files of the tokenizer and a model card.

weights.py reads and writes the weights beside them.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pydantic

from bertie.base.checksums import verify
from bertie.base.errors import ModelError
from bertie.base.files import exists, read_json_object, suggest_download, write_json, write_text
from bertie.base.settings import Settings
from bertie.model.config import BertConfig, ClassifierPooling, ProblemType
from bertie.model.formats.config import BERTIE_MODEL_TYPE, read_config, read_section
from bertie.model.formats.sentence_transformers import (
    SENTENCE_TRANSFORMERS_CONFIG_FILE,
    EmbeddingConfig,
    find_transformer_folder,
    read_embedding_config,
    write_embedding_config,
)
from bertie.text.tokenizer import Tokenizer
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.vocabulary import Vocabulary
from bertie.text.vocabulary_extension import find_new_ids, split_entry
from bertie.text.wordpiece import split_words

SEQUENCE_CLASSIFIER = "BertForSequenceClassification"
# Architectures with a vector for a whole sequence. `transformers` always takes it from the first token.
POOLED_ARCHITECTURES = (
    "BertModel",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    SEQUENCE_CLASSIFIER,
    "BertForMultipleChoice",
)
MAX_LABELS = 1_000_000  # far beyond every classifier; a damaged file must not fill the memory with labels
# Keys of BertConfig that only training reads: two models that differ in them are the same network.
TRAINING_ONLY_KEYS = {
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "position_initializer_range",
}
# In config.json; `transformers` preserves them.
BERTIE_KEYS = ("null_threshold", "max_seq_length", "decision_thresholds", "temperature", "label_separator")


class LongTexts(Settings):
    """How a classifier reads texts that are longer than `max_seq_length`.

    method   truncate   the first tokens
             head-tail  the first and the last tokens (Sun et al., arXiv:1905.05583, Section 5.3.1)
             windows    all tokens, in several sequences whose logits are pooled
    stride   tokens from the start of a window to the start of the next one; 0 is a whole window, so that
             windows do not overlap
    pooling  how the logits of a text's windows are combined
    """

    method: Literal["truncate", "head-tail", "windows"] = "truncate"
    stride: int = pydantic.Field(0, ge=0)
    pooling: Literal["mean", "max"] = "mean"


TRUNCATE = LongTexts()


class HeadConfig(Settings):
    """The keys of config.json that describe the head; the last ten are bertie's own."""

    architectures: tuple[str, ...] | None = None
    model_type: str = "bert"
    num_labels: int = pydantic.Field(2, gt=0, le=MAX_LABELS)  # written until 2020
    id2label: dict[int, str | int | float | bool | None] | None = None
    problem_type: ProblemType | None = None
    null_threshold: float | None = None
    max_seq_length: int | None = None
    bilstm: bool = False
    input_columns: dict[str, str] = pydantic.Field(default_factory=dict)
    label_columns: dict[str, str] = pydantic.Field(default_factory=dict)
    label_separator: str | None = pydantic.Field(None, min_length=1)
    decision_thresholds: tuple[float, ...] | None = None
    temperature: float | None = pydantic.Field(None, gt=0)
    long_texts: LongTexts = TRUNCATE
    classifier_pooling: ClassifierPooling = "pooler"


@dataclass(frozen=True)
class ModelMetadata:
    """Everything in a model directory except the weights.

    Attributes:
        config: the network's shape
        architecture: the class of `transformers` with the same weights; it determines the head
        labels: a classifier's labels, in the order of its logits; empty without a classifier
        tokenizer: the tokenizer, with its vocabulary and casing
        problem_type: the kind of a text's label: one class, several labels or a number
        null_threshold: how much the null score must exceed the score of the best span for a
            question to count as unanswerable (τ in Section 4.3, tuned on dev); None if every
            question has an answer
        max_seq_length: the maximum length in fine-tuning, in tokens; None if unknown
        embedding: how sentence-transformers embeds texts with the model; None for directories in
            other layouts
        bilstm: whether there is a BiLSTM between the encoder and the head
    sentence_transformers_config
                    prompts, similarity function and other settings of sentence-transformers, which
                    bertie preserves; the server uses the prompts
    input_columns   the columns of the texts in fine-tuning by their role, such as {"text": "review"};
                    empty if unknown
    label_columns   likewise the columns that only labelled data have, such as {"label": "stars"}
    label_separator
                    the separator of several labels in one string, in fine-tuning; None without one
    decision_thresholds
                    the probability above which a classifier predicts each of several labels, or, a single
                    one, the second of two classes; None for 0.5
    temperature     the number by which a classifier's logits are divided before the softmax or sigmoid;
                    None for 1
    long_texts      how a classifier reads texts that are longer than `max_seq_length`
    classifier_pooling
                    input of the classifier: "pooler", or "mean", the mean over the tokens, scaled to
                    length 1
    """

    config: BertConfig
    architecture: str
    labels: tuple[str, ...]
    tokenizer: Tokenizer
    problem_type: ProblemType = "single_label_classification"
    null_threshold: float | None = None
    max_seq_length: int | None = None
    embedding: EmbeddingConfig | None = None
    bilstm: bool = False
    sentence_transformers_config: Mapping[str, Any] = field(default_factory=dict)
    input_columns: Mapping[str, str] = field(default_factory=dict)
    label_columns: Mapping[str, str] = field(default_factory=dict)
    label_separator: str | None = None
    decision_thresholds: tuple[float, ...] | None = None
    temperature: float | None = None
    long_texts: LongTexts = TRUNCATE
    classifier_pooling: ClassifierPooling = "pooler"

    @property
    def model_type(self) -> str:
        """The `model_type` of config.json: "bert", or "bertie".

        `transformers` refuses to load "bertie", so this type marks the models that it would compute
        incorrectly: `transformers` has no BiLSTM, no classifier over the mean of the tokens, and it pools
        [CLS] even in a left-to-right model, where [CLS] attends to no other token.
        """
        is_unknown = (
            self.bilstm
            or self.classifier_pooling == "mean"
            or (self.config.is_decoder and self.architecture in POOLED_ARCHITECTURES)
        )
        return BERTIE_MODEL_TYPE if is_unknown else "bert"


def write_metadata(path: Path, metadata: ModelMetadata, card: str) -> None:
    """Write a model directory except its weights. `transformers` reads it as it is."""
    values = {
        "architectures": [metadata.architecture],
        "model_type": metadata.model_type,
        **metadata.config.model_dump(exclude_none=True),
        "pad_token_id": metadata.tokenizer.vocabulary.pad_id,
        "tie_word_embeddings": True,
    }
    # `transformers` takes the number of outputs from the number of labels: a regression has one.
    is_classifier = metadata.architecture == SEQUENCE_CLASSIFIER
    labels = metadata.labels or ("LABEL_0",) * (is_classifier and metadata.problem_type == "regression")
    if labels:
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    if is_classifier:
        values["problem_type"] = metadata.problem_type
    for key in BERTIE_KEYS:
        if (value := getattr(metadata, key)) is not None:
            values[key] = value
    if metadata.long_texts.method != "truncate":
        values["long_texts"] = metadata.long_texts.model_dump(exclude_defaults=True)
    if metadata.bilstm:
        values["bilstm"] = True
    if metadata.classifier_pooling != "pooler":
        values["classifier_pooling"] = metadata.classifier_pooling
    if metadata.input_columns:
        values["input_columns"] = dict(metadata.input_columns)
    if metadata.label_columns:
        values["label_columns"] = dict(metadata.label_columns)
    write_json(path / "config.json", values)
    metadata.tokenizer.save(path, metadata.config.max_position_embeddings)
    if metadata.embedding:
        write_embedding_config(path, metadata.embedding, metadata.config.hidden_size)
    if metadata.sentence_transformers_config:
        write_json(path / SENTENCE_TRANSFORMERS_CONFIG_FILE, metadata.sentence_transformers_config)
    write_text(path / "README.md", card)


def read_metadata(
    path: Path, default_architecture: str = "BertModel", trim_vocabulary: bool = True
) -> ModelMetadata:
    """Read the metadata of a model directory: everything except its weights.

    Args:
        path: a directory that `write_metadata`, `transformers` or sentence-transformers wrote.
        default_architecture: the architecture if config.json names none.
        trim_vocabulary: whether the tokenizer must fit the model, and drops unreachable entries
            that have no embeddings; see `trim_tokenizer`.

    Raises:
        DataError: a JSON file is damaged.
        ModelError: the directory is missing or not a model directory, a file differs from SHA256SUMS, its
            model is not supported, or its tokenizer does not fit the model.
    """
    if path.is_dir():
        verify(path)
    folder = _require_model_folder(path)
    file = find_config_file(folder)
    config, head = read_config(file), read_section(HeadConfig, file)
    tokenizer = Tokenizer.load(folder)
    architecture = (head.architectures or [default_architecture])[0]
    labels = _read_labels(architecture, head)
    problem_type = head.problem_type or _default_problem_type(labels)
    if architecture == SEQUENCE_CLASSIFIER and problem_type == "regression" and len(labels) > 1:
        raise ModelError(
            f"{file}: a regression with {len(labels)} outputs; bertie supports one output, so use "
            f"`transformers` for this model"
        )
    _check_thresholds(file, head.decision_thresholds, labels, problem_type)
    metadata = ModelMetadata(
        config=config,
        architecture=architecture,
        labels=labels,
        tokenizer=trim_tokenizer(tokenizer, config, str(folder)) if trim_vocabulary else tokenizer,
        problem_type=problem_type,
        null_threshold=head.null_threshold,
        max_seq_length=head.max_seq_length,
        embedding=read_embedding_config(path, config.max_position_embeddings),
        bilstm=head.bilstm,
        sentence_transformers_config=read_json_object(path / SENTENCE_TRANSFORMERS_CONFIG_FILE),
        input_columns=head.input_columns,
        label_columns=head.label_columns,
        label_separator=head.label_separator,
        decision_thresholds=head.decision_thresholds,
        temperature=head.temperature,
        long_texts=head.long_texts,
        classifier_pooling=head.classifier_pooling,
    )
    if head.model_type != metadata.model_type:
        raise _wrong_model_type(file, head, metadata)
    return metadata


def _wrong_model_type(file: Path, head: HeadConfig, metadata: ModelMetadata) -> ModelError:
    """Return the error about a `model_type` that does not fit the other keys."""
    pools_cls = head.classifier_pooling == "pooler" and metadata.architecture in POOLED_ARCHITECTURES
    if metadata.config.is_decoder and pools_cls and not head.bilstm:
        return ModelError(
            f"{file}: a left-to-right {metadata.architecture} that pools [CLS], which attends to no other "
            f"token; bertie pools the last token, so fine-tune the model again with `bertie finetune`"
        )
    return ModelError(
        f"{file}: model_type is {head.model_type!r}, but the other keys describe a model of the type "
        f"{metadata.model_type!r}; correct it"
    )


def read_labelled_columns(path: Path) -> Mapping[str, str]:
    """Return the columns of texts and of labels in a model's fine-tuning.

    See `ModelMetadata`.

    With them is the separator of labels, as "separator", if there is one.

    Raises:
        DataError: config.json is damaged.
        ModelError: the directory is missing or not a model directory.
    """
    head = read_section(HeadConfig, find_config_file(_require_model_folder(path)))
    separator = {"separator": head.label_separator} if head.label_separator else {}
    return head.input_columns | head.label_columns | separator


def find_new_entries(path: Path, tokenizer: Tokenizer) -> dict[int, list[int]]:
    """Find the entries that the tokenizer of a corpus adds to a model's.

    The model is the initial one, in `path`.

    Returns:
        For the id of each new entry, the ids of the tokens into which the model's tokenizer splits
        it. Empty if the tokenizers are equal.

    Raises:
        ModelError: the tokenizer of the corpus neither equals nor extends the model's.
    """
    folder, metadata = find_transformer_folder(path), read_metadata(path)
    whole = Tokenizer.load(folder)
    if tokenizer.fingerprint in (metadata.tokenizer.fingerprint, whole.fingerprint):
        return {}
    extended = (find_new_ids(old, tokenizer) for old in (metadata.tokenizer, whole))
    new_ids = next((ids for ids in extended if ids is not None), None)
    if new_ids is None:
        raise ModelError(
            f"{path}: the corpus was prepared with a different tokenizer, which does not extend the model's; "
            f"prepare it again with the model's: bertie prepare … --tokenizer {shlex.quote(str(folder))}"
        )
    tokens = tokenizer.vocabulary.tokens
    new_ids = sorted({*new_ids, *range(metadata.config.vocab_size, len(tokens))})
    return {i: split_entry(tokens[i], metadata.tokenizer.vocabulary) for i in new_ids}


def check_network(path: Path, config: BertConfig, may_grow: bool = False) -> None:
    """Check that the initial model in `path` has the network of a run's settings.

    Dropout and initialization may differ, and with `may_grow` the vocabulary may be larger.

    Raises:
        ModelError: a setting contradicts the model.
    """
    settings = config.model_dump()
    values = read_metadata(path).config.model_dump(exclude=TRAINING_ONLY_KEYS)
    if may_grow:
        values["vocab_size"] = max(values["vocab_size"], config.vocab_size)
    mismatches = {key: value for key, value in values.items() if value != settings[key]}
    if mismatches:
        differences = ", ".join(
            f"model.{key} is {value!r} in the model and {settings[key]!r} in the settings"
            for key, value in mismatches.items()
        )
        raise ModelError(
            f"{path}: the settings contradict the initial model: {differences}; leave out "
            f"{' and '.join(f'model.{key}' for key in mismatches)}"
        )


def find_config_file(folder: Path) -> Path:
    """Return `config.json`, or `bert_config.json` if only the latter exists.

    pytorch-pretrained-bert used google's name, `bert_config.json`, until 2019.
    """
    file = folder / "bert_config.json"
    return file if file.exists() and not (folder / "config.json").exists() else folder / "config.json"


def has_architecture(folder: Path) -> bool:
    """Return whether a folder's config names the architecture.

    `transformers` has written it since 2019.
    """
    return bool(read_json_object(find_config_file(folder)).get("architectures"))


USE_ITS_TOKENIZER = "use the tokenizer that the model was trained with"


def trim_tokenizer(
    tokenizer: Tokenizer, config: BertConfig, location: str, remedy: str = USE_ITS_TOKENIZER
) -> Tokenizer:
    """Drop vocabulary entries that have no embedding and that no text can produce.

    For example, the vocabularies of some lower-casing models end in upper-case letters without
    embeddings.

    Raises:
        ModelError: a text can produce one of these entries. The message begins with `location` and ends
            with `remedy`.
    """
    tokens = tokenizer.vocabulary.tokens
    surplus = [token.removeprefix(CONTINUATION_PREFIX) for token in tokens[config.vocab_size :]]
    if not surplus:
        return tokenizer
    # A text can contain a token only if splitting (and lower-casing) the token itself reproduces it.
    codes, bounds, _ = split_words(surplus, tokenizer.unicode_tables)
    words = {"".join(map(chr, codes[start:stop])) for start, stop in pairwise(bounds.tolist())}
    words |= {*tokenizer.never_split, *(token.content for token in tokenizer.added_tokens)}
    if words & {*surplus}:
        check_vocabulary_size(len(tokens), config, location, remedy)
    return tokenizer.replace(Vocabulary(tokens[: config.vocab_size], location))


def check_vocabulary_size(
    vocabulary_size: int, config: BertConfig, location: str, remedy: str = USE_ITS_TOKENIZER
) -> None:
    """Check that the model has an embedding for each entry of the vocabulary.

    Raises:
        ModelError: it has fewer. The message begins with `location` and ends with `remedy`.
    """
    if vocabulary_size > config.vocab_size:
        raise ModelError(
            f"{location}: the tokenizer has {vocabulary_size:,} entries, but the model has embeddings for "
            f"{config.vocab_size:,}; {remedy}"
        )


def _require_model_folder(path: Path) -> Path:
    """Return the folder with a model's config, or raise ModelError if there is none."""
    if not exists(path):
        if re.match(r"[a-z][a-z0-9+.-]*:/", str(path)):
            url = str(path).replace(":/", "://", 1)
            raise ModelError(f"{url}: models are loaded from local directories; download this one first")
        raise ModelError(f"{path}: no such model directory{suggest_download(path)}")
    if not path.is_dir():
        raise ModelError(f"{path}: a file, not a model directory; name the directory that contains it")
    folder = find_transformer_folder(path)
    if not find_config_file(folder).is_file():
        run_model = path / "model"
        advice = f"; the model of this run is {run_model}" if run_model.is_dir() else ""
        raise ModelError(f"{folder}: not a model directory: it has no config.json{advice}")
    return folder


def _read_labels(architecture: str, head: HeadConfig) -> tuple[str, ...]:
    """Return a classifier's labels, by default LABEL_0, LABEL_1, …

    `transformers` does not write the labels if they are LABEL_0 and LABEL_1.
    """
    if architecture not in (SEQUENCE_CLASSIFIER, "BertForTokenClassification"):
        return ()
    labels = head.id2label or {index: f"LABEL_{index}" for index in range(head.num_labels)}
    return tuple(str(labels[index]) for index in sorted(labels))


def _check_thresholds(
    file: Path, thresholds: tuple[float, ...] | None, labels: tuple[str, ...], problem_type: ProblemType
) -> None:
    """Raise ModelError if the number of thresholds is wrong.

    There is one for each of several labels, or one for two classes.
    """
    if thresholds is None:
        return
    expected = len(labels) if problem_type == "multi_label_classification" else int(len(labels) == 2)
    if len(thresholds) != expected:
        raise ModelError(
            f"{file}: decision_thresholds has {len(thresholds)} numbers, but this model takes {expected}; "
            f"correct or delete it"
        )


def _default_problem_type(labels: tuple[str, ...]) -> ProblemType:
    """Return the problem type that `transformers` assumes if config.json has none."""
    return "regression" if len(labels) == 1 else "single_label_classification"
