"""Weights in and out of `model.safetensors`, under Hugging Face's names. Never a pickle."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertie.base.errors import ModelError
from bertie.base.files import atomic_directory, atomic_file
from bertie.model.directory import Description, read_description, write_description
from bertie.model.heads import ClassificationModel, Model, PreTrainingModel
from bertie.model.weight_names import their_names

WEIGHTS_FILE = "model.safetensors"


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
        path: the safetensors file.
        model: its weights are replaced.
        only: the prefix of those to replace (`bert.` leaves the heads as they are).

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
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if not name.startswith(only):
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


def save_model(path: Path, model: Model, description: Description, card: str) -> None:
    """Write a whole model directory, in place of what stood there."""
    with atomic_directory(path) as temporary:
        write_description(temporary, description, card)
        save_weights(temporary / WEIGHTS_FILE, model)


def load_model(path: Path) -> tuple[Model, Description]:
    """Read a model directory; the model is in evaluation mode.

    Raises:
        ModelError: it is absent, damaged, or has a head that bertie does not know.
    """
    description = read_description(path)
    model: Model
    if description.architecture == PreTrainingModel.architecture:
        model = PreTrainingModel(description.config)
    elif description.architecture == ClassificationModel.architecture:
        model = ClassificationModel(description.config, len(description.labels))
    else:
        known = f"{PreTrainingModel.architecture}, {ClassificationModel.architecture}"
        raise ModelError(f"{path}: architecture {description.architecture!r} is not one of {known}")
    load_weights(path / WEIGHTS_FILE, model)
    return model.eval(), description
