"""The feature-based approach to NER (Section 5.3): a BiLSTM over frozen vectors.

Each word is represented by the vector of its first token, with the document as context, as in
fine-tuning (tasks/ner.py). The vectors of all layers are computed once; each row of Table 7, a kind
of features, selects among them. The BiLSTM (`FeatureTagger` in model/bilstm.py) reads one sentence
at a time. There is no CRF.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pydantic
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.base.arrays import Float32s
from bertie.base.random import permutation, stream_key
from bertie.base.settings import Settings
from bertie.inference.features import LayerSelection, compute_features, encode_sentences
from bertie.model.batch import PackedBatch, pack_selected
from bertie.model.bilstm import FeatureTagger
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import load_torch_engine
from bertie.model.sequences import batch_by_token_budget
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.ner import NER, WordWindows
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


def select_layers(kind: FeatureKind, num_hidden_layers: int) -> LayerSelection:
    """Return the layers that a row of Table 7 reads, for a model with L layers.

    With fewer than four layers, the last four are all of them. Layers of a weighted sum stay
    separate here, because the tagger learns their weights.
    """
    last_four = range(-min(4, num_hidden_layers), 0)
    selections: dict[FeatureKind, LayerSelection] = {
        "embeddings": LayerSelection([0]),
        "second-to-last": LayerSelection([-2]),
        "last": LayerSelection([-1]),
        "weighted-sum-last-four": LayerSelection(last_four),
        "concat-last-four": LayerSelection(last_four, "concat"),
        "weighted-sum-all": LayerSelection(range(1, num_hidden_layers + 1)),
    }
    return selections[kind].resolve(num_hidden_layers)


class FeatureTaggerSettings(Settings):
    """Settings of the tagger. Section 5.3 gives two layers and a hidden size of 768.

    The other defaults come from AllenNLP's tagger for ELMo, on which this tagger is modelled
    (allennlp-models, training_config/tagging/ner_elmo.jsonnet). Unlike in
    AllenNLP, the number of epochs is fixed and the learning rate decays.
    """

    seed: int = 0  # of the weights, dropout and the order of the sentences
    hidden_size: int = pydantic.Field(768, gt=0)  # of each direction
    num_layers: int = pydantic.Field(2, gt=0)
    dropout: float = pydantic.Field(0.5, ge=0, lt=1)
    batch_size: int = pydantic.Field(64, gt=0)  # sentences per step
    epochs: int = pydantic.Field(20, gt=0)
    learning_rate: float = 1e-3  # of Adam; decays linearly to 0
    max_gradient_norm: float = 5.0
    max_seq_length: int = pydantic.Field(512, gt=2)  # of the windows over a document
    # Train on this many sentences, the same for every seed; 0 means all.
    max_training_examples: int = pydantic.Field(0, ge=0)
    device: str = "auto"


class FrozenFeatures(NamedTuple):
    """Tagged sentences of W words, and a frozen model's vectors of these words.

    Attributes:
        examples: the sentences.
        vectors: float32 (L + 1, W, H), the output of the embeddings, then of every layer.
    """

    examples: TaggedSentences
    vectors: Float32s


def train_feature_tagger(
    model_directory: Path, data: Path, kind: FeatureKind, settings: FeatureTaggerSettings
) -> Scores:
    """Train a tagger over one kind of features, and score it on the dev part.

    Args:
        model_directory: any model; its head is ignored.
        data: folder with the files train and dev in CoNLL columns.
        kind: the model's layers that the tagger reads.
        settings: settings of the tagger.

    Returns:
        conlleval's scores on dev after the last epoch.

    Raises:
        DataError: a file is missing or cannot be read.
        ModelError: the model directory cannot be read.
        SettingsError: the model does not have these layers, or the device does not exist.
    """
    hardware = Hardware(device=settings.device, precision="float32").resolved()
    training, dev = compute_frozen_features(model_directory, data, settings.max_seq_length, hardware)
    task = NER.fitted(training.examples)
    selection = select_layers(kind, len(training.vectors) - 1)
    torch.manual_seed(int(stream_key(settings.seed)))
    tagger = FeatureTagger(
        len(selection.columns),
        selection.vector_size(training.vectors.shape[2]),
        len(task.labels),
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        dropout=settings.dropout,
    )
    tagger.to(hardware.device)
    _train(tagger, task.labels, training, selection, settings)
    inputs = _sentence_inputs(dev.examples)
    logits = _compute_logits(tagger, inputs, dev, selection, hardware)
    return task.score(dev.examples, task.decode(dev.examples, inputs, logits))


@lru_cache(maxsize=1)  # cells of a table that share a model differ only in kind and seed
def compute_frozen_features(
    model_directory: Path, data: Path, max_seq_length: int, hardware: Hardware
) -> tuple[FrozenFeatures, FrozenFeatures]:
    """Compute the features of train and dev, for `train_feature_tagger`."""
    engine, metadata = load_torch_engine(model_directory, hardware)
    config = metadata.config
    length = min(max_seq_length, config.max_position_embeddings)
    all_layers = LayerSelection(range(config.num_hidden_layers + 1))
    parts = []
    for part in ("train", "dev"):
        examples = NER.read(NER.file(data, part), labelled=True)
        encoded = encode_sentences(examples, metadata.tokenizer, length)
        parts.append(FrozenFeatures(examples, compute_features(engine, encoded, all_layers, config).vectors))
    return parts[0], parts[1]


def _train(
    tagger: FeatureTagger,
    labels: Sequence[str],
    training: FrozenFeatures,
    selection: LayerSelection,
    settings: FeatureTaggerSettings,
) -> None:
    """Train `tagger` in place.

    This is not `training.loop.train`, because that loop seeds dropout at every step, which would
    change the published scores, and writes a run directory, which the tagger does not need.
    """
    device = next(tagger.parameters()).device
    inputs = _sentence_inputs(training.examples, labels)
    optimizer = torch.optim.Adam(tagger.parameters())
    sentences = np.sort(permutation(len(inputs), 0)[: settings.max_training_examples or None])
    steps_per_epoch = -(-len(sentences) // settings.batch_size)
    total_steps = settings.epochs * steps_per_epoch
    tagger.train()
    for step in range(total_steps):
        epoch, step_in_epoch = divmod(step, steps_per_epoch)
        order = sentences[permutation(len(sentences), settings.seed, epoch)]
        indices = order[step_in_epoch * settings.batch_size : (step_in_epoch + 1) * settings.batch_size]
        batch = pack_selected(
            inputs.input_ids, inputs.token_type_ids, inputs.bounds, indices, token_labels=inputs.labels
        )
        vectors = _select_vectors(batch, training, selection).to(device)
        batch = batch.to(device)
        assert batch.labels is not None
        loss = F.cross_entropy(tagger(vectors, batch), batch.labels)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * warmup_then_linear_decay(step, total_steps, 0)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(tagger.parameters(), settings.max_gradient_norm)
        optimizer.step()


@torch.inference_mode()
def _compute_logits(
    tagger: FeatureTagger,
    inputs: WordWindows,
    features: FrozenFeatures,
    selection: LayerSelection,
    hardware: Hardware,
) -> Float32s:
    """Return the tagger's logits for each word: float32 (W, labels)."""
    tagger.eval()
    logits = np.empty((inputs.bounds[-1], tagger.classifier.out_features), np.float32)
    for indices in batch_by_token_budget(inputs.bounds, hardware.inference_batch_tokens):
        batch = pack_selected(inputs.input_ids, inputs.token_type_ids, inputs.bounds, indices)
        vectors = _select_vectors(batch, features, selection).to(hardware.device)
        batch_logits = tagger(vectors, batch.to(torch.device(hardware.device)))
        logits[batch.input_ids.numpy()] = batch_logits.cpu().numpy()
    return logits


def _sentence_inputs(examples: TaggedSentences, labels: Sequence[str] | None = None) -> WordWindows:
    """Make a sequence of each sentence; token ids are indices into `FrozenFeatures`.

    Args:
        examples: the sentences.
        labels: the tags in the order of the logits, to label the words; None adds no labels.
    """
    word_indices = np.arange(examples.bounds[-1])
    tags = None
    if labels is not None:
        assert examples.tags is not None
        label_ids = {label: i for i, label in enumerate(labels)}
        tags = np.array([label_ids[tag] for tag in chain.from_iterable(examples.tags)], dtype=np.int64)
    ids = word_indices.astype(np.int32)
    return WordWindows(
        ids,
        np.zeros_like(ids),
        examples.bounds,
        tags,
        word_positions=word_indices,
        num_sentences=len(examples),
    )


def _select_vectors(batch: PackedBatch, features: FrozenFeatures, selection: LayerSelection) -> Tensor:
    """Return the vectors of a batch's words that the tagger reads: (columns, T, W)."""
    words = batch.input_ids.numpy()
    return torch.from_numpy(selection.apply([features.vectors[layer][words] for layer in selection.layers]))
