"""The feature-based approach to named entities (Section 5.3, Table 7): a BiLSTM over a frozen BERT's vectors.

A word is given by its first piece, seen with its document around it as in fine-tuning (ner.py). The vectors
of all layers are computed once; a kind of features is a choice among them. The BiLSTM reads sentence by
sentence; there is no CRF.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pydantic
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.base.random import permutation, stream_key
from bertie.base.settings import Settings
from bertie.inference.features import LayerChoice, compute_features, read_sentences
from bertie.model.batch import PackedBatch, pack_selected
from bertie.model.bilstm import FeatureTagger
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import load_torch
from bertie.model.sequences import token_budget_batches
from bertie.tasks.ner import NER, TaggedSentences, WordWindows
from bertie.tasks.task import Scores
from bertie.training.schedules import warmup_then_linear_decay

FeatureKind = Literal[
    "embeddings",
    "second-to-last",
    "last",
    "weighted-sum-last-four",
    "concat-last-four",
    "weighted-sum-all",
]


def layers_of(kind: FeatureKind, num_hidden_layers: int) -> LayerChoice:
    """The layers of a row of Table 7; of a model with less than four, the last four are all of them.

    The weighted sums stay apart here: their weights are learnt.
    """
    last_four = range(-min(4, num_hidden_layers), 0)
    choices: dict[FeatureKind, LayerChoice] = {
        "embeddings": LayerChoice([0]),
        "second-to-last": LayerChoice([-2]),
        "last": LayerChoice([-1]),
        "weighted-sum-last-four": LayerChoice(last_four),
        "concat-last-four": LayerChoice(last_four, "concat"),
        "weighted-sum-all": LayerChoice(range(1, num_hidden_layers + 1)),
    }
    return choices[kind].of(num_hidden_layers)


class FeatureTaggerSettings(Settings):
    """Section 5.3 says two layers and 768. The rest is as in AllenNLP's tagger for ELMo, which it follows.

    allennlp-models, training_config/tagging/ner_elmo.jsonnet; the epochs are fixed here, and the rate decays.
    """

    seed: int = 0  # of the weights, the dropout and the order of the sentences
    hidden_size: int = pydantic.Field(768, gt=0)  # of each direction
    num_layers: int = pydantic.Field(2, gt=0)
    dropout: float = pydantic.Field(0.5, ge=0, lt=1)
    batch_size: int = pydantic.Field(64, gt=0)  # sentences in a step
    epochs: int = pydantic.Field(20, gt=0)
    learning_rate: float = 1e-3  # of Adam, decaying to 0
    max_gradient_norm: float = 5.0
    max_seq_length: int = pydantic.Field(512, gt=2)  # of the windows over a document
    device: str = "auto"


class Frozen(NamedTuple):
    """Tagged sentences with W words, and what a model makes of these."""

    examples: TaggedSentences
    vectors: npt.NDArray[np.float32]  # (L + 1, W, H), of the embeddings and every layer


def train_feature_tagger(
    model_directory: Path, data: Path, kind: FeatureKind, settings: FeatureTaggerSettings
) -> Scores:
    """One cell of Table 7: train a tagger over one kind of features with one seed, and score it on dev.

    Args:
        model_directory: of any model; its head is ignored.
        data: a folder with train and dev in CoNLL columns.
        kind: which of the model's layers the tagger is given.
        settings: of the tagger.

    Returns:
        conlleval's scores of the dev part after the last epoch.

    Raises:
        DataError: a file is missing or cannot be read.
        ModelError: the model's directory cannot be read.
        SettingsError: the model has no such layers, or there is no such device.
    """
    hardware = Hardware(device=settings.device, precision="float32").resolved()
    training, dev = frozen_parts(model_directory, data, settings.max_seq_length, hardware)
    task = NER.fitted(training.examples)
    choice = layers_of(kind, len(training.vectors) - 1)
    torch.manual_seed(int(stream_key(settings.seed)))
    hidden_size = training.vectors.shape[2]
    model = FeatureTagger(
        len(choice.columns),
        choice.width(hidden_size),
        len(task.labels),
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        dropout=settings.dropout,
    )
    model.to(hardware.device)
    _train(model, task.labels, training, choice, settings)
    inputs = _sentences(dev.examples)
    predictions = task.decode(dev.examples, inputs, _compute_logits(model, inputs, dev, choice, hardware))
    return task.score(dev.examples, predictions)


@lru_cache(maxsize=1)  # the cells of a table differ in kind and seed
def frozen_parts(
    model_directory: Path, data: Path, max_seq_length: int, hardware: Hardware
) -> tuple[Frozen, Frozen]:
    """The vectors of train and dev. Raises as `train_feature_tagger`."""
    engine, metadata = load_torch(model_directory, hardware)
    config = metadata.config
    length = min(max_seq_length, config.max_position_embeddings)
    every_layer = LayerChoice(range(config.num_hidden_layers + 1))
    frozen = []
    for part in ("train", "dev"):
        examples = NER.read(NER.file(data, part), labelled=True)
        reading = read_sentences(examples, metadata.tokenizer, length)
        features = compute_features(engine, reading, every_layer, config)
        frozen.append(Frozen(examples, features.vectors))
    return frozen[0], frozen[1]


def _train(
    model: FeatureTagger,
    labels: Sequence[str],
    training: Frozen,
    choice: LayerChoice,
    settings: FeatureTaggerSettings,
) -> None:
    device = next(model.parameters()).device
    inputs = _sentences(training.examples, labels)
    optimizer = torch.optim.Adam(model.parameters())
    steps_per_epoch = -(-len(inputs) // settings.batch_size)
    total_steps = settings.epochs * steps_per_epoch
    model.train()
    for step in range(total_steps):
        epoch, place = divmod(step, steps_per_epoch)
        order = permutation(len(inputs), settings.seed, epoch)
        chosen = order[place * settings.batch_size : (place + 1) * settings.batch_size]
        batch = pack_selected(
            inputs.input_ids, inputs.token_type_ids, inputs.bounds, chosen, token_labels=inputs.labels
        )
        vectors = _vectors_of(batch, training, choice).to(device)
        batch = batch.to(device)
        assert batch.labels is not None
        loss = F.cross_entropy(model(vectors, batch), batch.labels)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * warmup_then_linear_decay(step, total_steps, 0)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm)
        optimizer.step()


@torch.inference_mode()
def _compute_logits(
    model: FeatureTagger, inputs: WordWindows, frozen: Frozen, choice: LayerChoice, hardware: Hardware
) -> npt.NDArray[np.float32]:
    """What the tagger says of each word: float32 (W, labels)."""
    model.eval()
    logits = np.empty((inputs.bounds[-1], model.classifier.out_features), np.float32)
    for chosen in token_budget_batches(inputs.bounds, hardware.evaluation_tokens):
        batch = pack_selected(inputs.input_ids, inputs.token_type_ids, inputs.bounds, chosen)
        vectors = _vectors_of(batch, frozen, choice).to(hardware.device)
        answers = model(vectors, batch.to(torch.device(hardware.device)))
        logits[batch.input_ids.numpy()] = answers.cpu().numpy()
    return logits


def _sentences(examples: TaggedSentences, labels: Sequence[str] | None = None) -> WordWindows:
    """Each sentence alone. A word's id is its number, under which its vectors stand."""
    words = np.arange(examples.bounds[-1])
    tags = None
    if labels is not None:
        assert examples.tags is not None
        numbers = {label: number for number, label in enumerate(labels)}
        tags = np.array([numbers[tag] for tag in chain.from_iterable(examples.tags)], dtype=np.int64)
    ids = words.astype(np.int32)
    return WordWindows(ids, np.zeros_like(ids), examples.bounds, tags, word_tokens=words)


def _vectors_of(batch: PackedBatch, frozen: Frozen, choice: LayerChoice) -> Tensor:
    """What the tagger is given of a batch's words: (columns, T, W)."""
    words = batch.input_ids.numpy()
    return torch.from_numpy(choice.apply([frozen.vectors[number][words] for number in choice.numbers]))
