"""Weights in and out of `model.safetensors`, under Hugging Face's names. Never a pickle."""

from pathlib import Path
from typing import get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertie.base.errors import ModelError
from bertie.base.files import atomic_directory, atomic_file
from bertie.model.directory import Description, read_description, write_description
from bertie.model.heads import (
    ClassificationModel,
    EncoderModel,
    MaskedLMModel,
    Model,
    MultipleChoiceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.model.weight_names import their_names

WEIGHTS_FILE = "model.safetensors"
POOLER = "bert.pooler.dense.weight"


def save_weights(path: Path, model: nn.Module) -> None:
    """Write weights under Hugging Face's names, atomically. The tied decoder is not stored twice."""
    theirs: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        names = their_names(name)
        for their_name, part in zip(names, weight.chunk(len(names)), strict=True):
            theirs[their_name] = part.detach().cpu().contiguous()
    with atomic_file(path) as temporary:
        save_file(theirs, temporary, metadata={"format": "pt"})


def load_weights(path: Path, model: nn.Module, only: str = "") -> None:
    """Fill a model from a file that `save_weights` or `transformers` wrote.

    Args:
        path: the safetensors file; what it holds in 16 bits becomes float32.
        model: its weights are replaced.
        only: the prefix of those to replace. `bert.` leaves the heads as they are, and the pooler too where
            the file has none.

    Raises:
        ModelError: the file is absent, damaged, lacks a weight, or has one of another shape.
    """
    try:
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged safetensors file ({error})") from None
    if not any(name.startswith("bert.") for name in stored):  # BertModel alone has no prefix
        stored = {f"bert.{name}": value for name, value in stored.items()}
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if not name.startswith(only):
                continue
            if only and name.startswith("bert.pooler.") and POOLER not in stored:
                continue
            missing = [n for n in their_names(name) if n not in stored]
            if missing:
                raise ModelError(f"{path}: the weight {missing[0]!r} is missing")
            value = torch.cat([stored[n] for n in their_names(name)])
            if value.shape != weight.shape:
                raise ModelError(
                    f"{path}: {their_names(name)[0]} has the shape {tuple(value.shape)}, "
                    f"but config.json makes it {tuple(weight.shape)}"
                )
            weight.copy_(value)


def save_model(path: Path, model: Model | EncoderModel, description: Description, card: str) -> None:
    """Write a whole model directory, in place of what stood there."""
    with atomic_directory(path) as temporary:
        write_description(temporary, description, card)
        save_weights(temporary / WEIGHTS_FILE, model)


def load_model(path: Path) -> tuple[Model | EncoderModel, Description]:
    """Read a model directory; the model is in evaluation mode.

    A bare encoder's pooler stays random where the file has none.

    Raises:
        ModelError: it is absent, damaged, or has a head that bertie does not know.
    """
    description = read_description(path)
    model = _new_model(description, path)
    load_weights(path / WEIGHTS_FILE, model, only="bert." if isinstance(model, EncoderModel) else "")
    return model.eval(), description


def _new_model(description: Description, path: Path) -> Model | EncoderModel:
    """A model of the architecture described, its weights random."""
    config, num_labels = description.config, len(description.labels)
    match description.architecture:
        case EncoderModel.architecture:
            return EncoderModel(config)
        case PreTrainingModel.architecture:
            return PreTrainingModel(config)
        case MaskedLMModel.architecture:
            return MaskedLMModel(config)
        case ClassificationModel.architecture:
            return ClassificationModel(config, num_labels, description.problem_type)
        case MultipleChoiceModel.architecture:
            return MultipleChoiceModel(config)
        case TokenClassificationModel.architecture:
            return TokenClassificationModel(config, num_labels)
        case QuestionAnsweringModel.architecture:
            return QuestionAnsweringModel(config)
        case unknown:
            known = ", ".join(model.architecture for model in get_args(Model | EncoderModel))
            raise ModelError(f"{path / 'config.json'}: architecture {unknown!r} is not one of {known}")
