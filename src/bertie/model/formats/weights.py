"""A model in and out of its directory. Weights are written as `model.safetensors` alone."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bertie.base.errors import ModelError
from bertie.base.files import atomic_directory, atomic_file
from bertie.model.bert import add_bilstm
from bertie.model.formats.directory import ModelMetadata, names_architecture, read_metadata, write_metadata
from bertie.model.formats.huggingface import WEIGHTS_FILE, check_tied, read_weights, tell_architecture
from bertie.model.formats.sentence_transformers import transformer_folder
from bertie.model.formats.weight_names import BILSTM, their_names
from bertie.model.heads import (
    ClassificationModel,
    EncoderModel,
    LanguageModel,
    MaskedLMModel,
    Model,
    MultipleChoiceModel,
    NextSentenceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)

OPTIONAL = ("bert.pooler.", BILSTM)
POOLER = "bert.pooler.dense.weight"
DECODER_BIAS = "cls.predictions.bias"  # of a model that has the masked-LM decoder


def save_weights(path: Path, model: nn.Module) -> None:
    """Write weights under Hugging Face's names, atomically. The tied decoder is not stored twice."""
    theirs = {name: weight.cpu().contiguous() for name, weight in named_weights(model).items()}
    with atomic_file(path) as temporary:
        save_file(theirs, temporary, metadata={"format": "pt"})


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights themselves, by Hugging Face's names."""
    theirs: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        names = their_names(name)
        theirs |= zip(names, weight.chunk(len(names)), strict=True)
    return theirs


def load_weights(path: Path, model: nn.Module, only: str = "") -> None:
    """Fill a model from what `save_weights` or a library of Hugging Face wrote.

    Args:
        path: a model directory, or a safetensors file; what it holds in 16 bits becomes float32.
        model: its weights are replaced.
        only: the prefix of those to replace. `bert.` leaves the heads as they are, and the pooler and a
            BiLSTM too where the file has none.

    Raises:
        ModelError: the weights are absent, damaged or a pickle, one is missing or has another shape, or the
            encoder has more than the model.
    """
    stored = read_weights(transformer_folder(path))
    weights = {
        name: weight
        for name, weight in named_weights(model).items()
        if name.startswith(only) and (not only or name in stored or not name.startswith(OPTIONAL))
    }
    _fill(weights, stored, path)


def _fill(weights: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Replace a model's weights; both by the names of Hugging Face."""
    if DECODER_BIAS in weights:
        check_tied(stored, path)
    for name in stored:
        if name.startswith("bert.") and not name.startswith(OPTIONAL) and name not in weights:
            raise ModelError(f"{path}: {name} has no place in the network that config.json describes")
    with torch.no_grad():
        for name, weight in weights.items():
            if name not in stored:
                raise ModelError(f"{path}: the weight {name!r} is missing")
            if stored[name].shape != weight.shape:
                raise ModelError(
                    f"{path}: {name} has the shape {tuple(stored[name].shape)}, but config.json makes it "
                    f"{tuple(weight.shape)}"
                )
            weight.copy_(stored[name])


def save_model(path: Path, model: Model | EncoderModel, metadata: ModelMetadata, card: str) -> None:
    """Write a whole model directory, in place of what stood there."""
    with atomic_directory(path) as temporary:
        write_metadata(temporary, metadata, card)
        save_weights(temporary / WEIGHTS_FILE, model)


def load_model(path: Path, allow_pickle: bool = False) -> tuple[Model | EncoderModel, ModelMetadata]:
    """Read a model directory; the model is in evaluation mode. A bare encoder may have no pooler.

    Args:
        path: a directory that bertie, `transformers` or sentence-transformers wrote.
        allow_pickle: see `read_weights`.

    Raises:
        ModelError: it is absent, damaged, or has a head that bertie does not know.
    """
    metadata, stored = read_parts(path, allow_pickle)
    model = empty_model(metadata, path, pooler=POOLER in stored)
    # Not `to_empty`, for which torch imports what computes shapes in Python, a matter of seconds.
    unset = {name: torch.empty(weight.shape) for name, weight in model.state_dict().items()}
    model.load_state_dict(unset, assign=True)
    _fill(named_weights(model), stored, path)
    return model.eval(), metadata


def read_parts(
    path: Path, allow_pickle: bool = False, fit: bool = True
) -> tuple[ModelMetadata, dict[str, Tensor]]:
    """What a model directory says, and all the weights in it; see `read_metadata` and `read_weights`."""
    # First of all: it refuses what is no BERT by its own name, not by its weights'.
    metadata = read_metadata(path, fit=fit)
    folder = transformer_folder(path)
    stored = read_weights(folder, allow_pickle)
    if not names_architecture(folder):
        metadata = read_metadata(path, tell_architecture(stored, folder), fit)
    return metadata, stored


class _NoNormal(TorchFunctionMode):
    """Nothing is drawn: on the meta device torch, or torch before 2.13, would import the same for that."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.erfinv_, Tensor.clamp_):  # the last two of trunc_normal_
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def empty_model(metadata: ModelMetadata, path: Path, pooler: bool) -> Model | EncoderModel:
    """A model as described, its weights on the meta device: shapes alone. `pooler` is for an encoder.

    Raises:
        ModelError: bertie has not the architecture, which `path` names.
    """
    with torch.device("meta"), _NoNormal():
        model = _new_head(metadata, path, pooler)
        if metadata.bilstm:
            add_bilstm(model.bert, metadata.config)
    return model


def _new_head(metadata: ModelMetadata, path: Path, pooler: bool) -> Model | EncoderModel:
    config, num_labels = metadata.config, len(metadata.labels)
    match metadata.architecture:
        case EncoderModel.architecture:
            return EncoderModel(config, pooler)
        case PreTrainingModel.architecture:
            return PreTrainingModel(config)
        case MaskedLMModel.architecture:
            return MaskedLMModel(config)
        case LanguageModel.architecture:
            return LanguageModel(config)
        case NextSentenceModel.architecture:
            return NextSentenceModel(config)
        case ClassificationModel.architecture:
            return ClassificationModel(config, num_labels, metadata.problem_type)
        case MultipleChoiceModel.architecture:
            return MultipleChoiceModel(config)
        case TokenClassificationModel.architecture:
            return TokenClassificationModel(config, num_labels)
        case QuestionAnsweringModel.architecture:
            return QuestionAnsweringModel(config)
        case unknown:
            known = ", ".join(model.architecture for model in get_args(Model | EncoderModel))
            raise ModelError(f"{path / 'config.json'}: architecture {unknown!r} is not one of {known}")
