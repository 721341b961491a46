"""Save and load whole models: a directory and the weights in it.

Weights are written to `model.safetensors` under Hugging Face's names, and read in every format that
huggingface.py supports.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bertie.base.checksums import weights_verified, write_sums
from bertie.base.errors import ModelError
from bertie.base.files import atomic_directory, atomic_file
from bertie.model.bert import add_bilstm
from bertie.model.formats.directory import ModelMetadata, has_architecture, read_metadata, write_metadata
from bertie.model.formats.huggingface import (
    TIED_WEIGHTS,
    WEIGHTS_FILE,
    infer_architecture,
    merge_tied_weights,
    read_weights,
)
from bertie.model.formats.sentence_transformers import find_transformer_folder
from bertie.model.formats.weight_names import BILSTM_PREFIX, hugging_face_names
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

OPTIONAL_PREFIXES = ("bert.pooler.", BILSTM_PREFIX)  # parts of an encoder that other models may lack
# Parts of a pre-training model that the model it starts from may lack, by the prefix of their weights.
PRETRAINING_PARTS = {
    "cls.predictions.": "the masked-LM head",
    "cls.seq_relationship.": "the next-sentence head",
    "bert.pooler.": "the pooler",
}
POOLER_WEIGHT = "bert.pooler.dense.weight"
WORD_EMBEDDINGS = "bert.embeddings.word_embeddings.weight"
SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DECODER_BIAS = "cls.predictions.bias"  # in every model that has a masked-LM decoder


def save_model(
    path: Path, model: Model | EncoderModel | Mapping[str, Tensor], metadata: ModelMetadata, card: str
) -> None:
    """Write a model directory atomically, replacing `path` if it exists.

    Args:
        path: the directory.
        model: the model, or its `state_dict`, on any device.
        metadata: the config, the labels, the tokenizer and other settings.
        card: the text of its README.md.
    """
    with atomic_directory(path) as temporary:
        write_metadata(temporary, metadata, card)
        save_weights(temporary / WEIGHTS_FILE, model if isinstance(model, Mapping) else model.state_dict())
        write_sums(temporary)


def load_model(path: Path, allow_pickle: bool = False) -> tuple[Model | EncoderModel, ModelMetadata]:
    """Load a model directory.

    bertie, `transformers` or sentence-transformers may have written it. The model is in evaluation
    mode, on the CPU and in float32. An encoder has a pooler if the weights do.

    Args:
        path: the directory.
        allow_pickle: also read `pytorch_model.bin`; see `read_weights`.

    Raises:
        DataError: a JSON file is damaged.
        ModelError: the directory is missing or damaged, or its model is not supported.
    """
    with weights_verified(path):
        return _load_model(path, allow_pickle)


def _load_model(path: Path, allow_pickle: bool) -> tuple[Model | EncoderModel, ModelMetadata]:
    metadata, stored = read_metadata_and_weights(path, allow_pickle)
    model = build_meta_model(metadata, path, pooler=POOLER_WEIGHT in stored)
    _check_shapes(named_weights(model), stored, path)  # before anything of these sizes is allocated
    # `to_empty` would make torch import its shape functions in Python, which takes seconds.
    uninitialized = {name: torch.empty(weight.shape) for name, weight in model.state_dict().items()}
    model.load_state_dict(uninitialized, assign=True)
    _copy_weights(named_weights(model), stored, path)
    return model.eval(), metadata


def save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write the weights of a model atomically, under Hugging Face's names.

    `state` is its `state_dict`. The tied decoder is not stored a second time.
    """
    weights = {name: weight.cpu().contiguous() for name, weight in _rename_weights(state).items()}
    with atomic_file(path) as temporary:
        save_tensors(temporary, weights)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the permissions of any new file.

    safetensors 0.8 makes a file that only its owner can read, but a server may run as another user.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)


def load_weights(path: Path, model: nn.Module, prefix: str = "") -> None:
    """Replace the weights of a model by stored ones; 16-bit weights become float32.

    Args:
        path: a model directory or a safetensors file.
        model: the model whose weights are replaced.
        prefix: replace only weights with this prefix in their Hugging Face names. With `bert.` the
            heads keep their weights, and so do a pooler and a BiLSTM that are not stored.

    Raises:
        ModelError: the file is missing, damaged or a pickle, a weight is missing or has another
            shape, or the stored encoder has weights that the model lacks.
    """
    with weights_verified(path):
        stored = read_weights(find_transformer_folder(path))
        weights = {
            name: weight
            for name, weight in named_weights(model).items()
            if name.startswith(prefix)
            and (not prefix or name in stored or not name.startswith(OPTIONAL_PREFIXES))
        }
        _copy_weights(weights, stored, path)


def load_initial_weights(
    path: Path, model: nn.Module, new_entries: Mapping[int, Sequence[int]] | None = None
) -> list[str]:
    """Initialize a model for pre-training with the weights of another model.

    The other model may have any head. Heads that are not stored, and a pooler that is not stored, keep their
    random weights.

    Args:
        path: the directory of the other model.
        model: the model whose weights are replaced.
        new_entries: for the id of each entry of the vocabulary that the stored model lacks, the ids
            of some tokens. The entry starts as the mean of their embeddings and decoder weights.

    Returns:
        The names of the parts that keep their random weights.

    Raises:
        ModelError: as `load_weights`; a head of which only some weights are stored is damaged.
    """
    with weights_verified(path):
        return _load_initial_weights(path, model, new_entries)


def _load_initial_weights(
    path: Path, model: nn.Module, new_entries: Mapping[int, Sequence[int]] | None
) -> list[str]:
    stored = read_weights(find_transformer_folder(path))
    weights = named_weights(model)
    if new_entries:
        size = len(weights[WORD_EMBEDDINGS])
        _grow_vocabulary(stored, read_metadata(path).config.vocab_size, size, new_entries)
    new = [
        prefix
        for prefix in PRETRAINING_PARTS
        if any(name.startswith(prefix) for name in weights)
        and not any(name.startswith(prefix) for name in stored)
    ]
    kept = {name: weight for name, weight in weights.items() if not name.startswith(tuple(new))}
    _copy_weights(kept, stored, path)
    return [PRETRAINING_PARTS[prefix] for prefix in new]


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights, without copying them, by their Hugging Face names."""
    return _rename_weights(model.state_dict())


def _rename_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for name, weight in state.items():
        names = hugging_face_names(name)
        weights |= zip(names, weight.chunk(len(names)), strict=True)
    return weights


def read_metadata_and_weights(
    path: Path, allow_pickle: bool = False, trim_vocabulary: bool = True
) -> tuple[ModelMetadata, dict[str, Tensor]]:
    """Read the metadata and the weights of a model directory.

    If config.json names no architecture, it is inferred from the weights. See `read_metadata` and
    `read_weights` for the arguments and the errors.
    """
    # The metadata come first: only their errors name an unsupported model as the cause.
    metadata = read_metadata(path, trim_vocabulary=trim_vocabulary)
    folder = find_transformer_folder(path)
    stored = read_weights(folder, allow_pickle)
    if not has_architecture(folder):
        metadata = read_metadata(path, infer_architecture(stored, folder), trim_vocabulary)
    return metadata, stored


def build_meta_model(metadata: ModelMetadata, path: Path, pooler: bool) -> Model | EncoderModel:
    """Build a model on the meta device, where its weights have shapes but no values.

    Args:
        metadata: the config, the architecture and the labels of the model.
        path: the model's directory, for messages.
        pooler: whether a model without a head has a pooler.

    Raises:
        ModelError: bertie does not have the architecture.
    """
    with torch.device("meta"), _SkipInitialization():
        model = _build_model(metadata, path, pooler)
        if metadata.bilstm:
            add_bilstm(model.bert, metadata.config)
    return model


class _SkipInitialization(TorchFunctionMode):
    """Skip the operators that draw initial weights.

    On the meta device these operators make torch import its shape functions in Python, which takes
    seconds. Some of them do so only before torch 2.13.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.erfinv_, Tensor.clamp_):  # trunc_normal_ calls the last two
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _build_model(metadata: ModelMetadata, path: Path, pooler: bool) -> Model | EncoderModel:
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
            return ClassificationModel(config, num_labels, metadata.problem_type, metadata.classifier_pooling)
        case MultipleChoiceModel.architecture:
            return MultipleChoiceModel(config)
        case TokenClassificationModel.architecture:
            return TokenClassificationModel(config, num_labels)
        case QuestionAnsweringModel.architecture:
            return QuestionAnsweringModel(config)
        case architecture:
            supported = ", ".join(dict.fromkeys(m.architecture for m in get_args(Model | EncoderModel)))
            raise ModelError(
                f"{path / 'config.json'}: unsupported architecture {architecture!r}; bertie supports "
                f"{supported}"
            )


def _grow_vocabulary(
    stored: dict[str, Tensor], old_size: int, size: int, new_entries: Mapping[int, Sequence[int]]
) -> None:
    """Give stored word embeddings and decoder weights `size` rows.

    They have `old_size` rows.
    """
    for name in (WORD_EMBEDDINGS, DECODER_BIAS, *TIED_WEIGHTS):
        old = stored.get(name)
        if old is None or len(old) != old_size:  # the latter is damaged; `_copy_weights` reports its shape
            continue
        old = old.float()
        stored[name] = torch.cat([old, old.new_zeros(size - old_size, *old.shape[1:])])
        for entry, tokens in new_entries.items():
            stored[name][entry] = old[list(tokens)].mean(dim=0)


def _copy_weights(weights: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Copy stored weights into a model's `weights`; both have Hugging Face's names.

    Raises:
        ModelError: as `_check_shapes`, or a weight is NaN or infinite.
    """
    _check_shapes(weights, stored, path)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(stored[name])
            # The sum is ten times as fast as checking each number, and keeps NaN and infinity.
            if not weight.sum().isfinite() and not weight.isfinite().all():
                raise ModelError(
                    f"{path}: {name} has NaN or infinite numbers; the training diverged or the file is "
                    f"damaged, so use an earlier model or copy it again"
                )


def dtype_name(weight: Tensor) -> str:
    """Return the name of a weight's type, such as "float32"."""
    return str(weight.dtype).removeprefix("torch.")


def _check_shapes(weights: Mapping[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    """Check that stored weights fit a model's `weights`.

    Both have Hugging Face's names.

    Raises:
        ModelError: a weight is missing or has another shape or an unsupported type, the stored encoder
            has more weights, or the stored decoder is not tied.
    """
    if DECODER_BIAS in weights:
        merge_tied_weights(stored, path)
    for name in stored:
        if name.startswith("bert.") and not name.startswith(OPTIONAL_PREFIXES) and name not in weights:
            raise ModelError(f"{path}: unexpected weight {name}; check that config.json is the right one")
    for name, weight in weights.items():
        if name not in stored:
            raise ModelError(f"{path}: weight {name} is missing; check that config.json is the right one")
        if stored[name].dtype not in SUPPORTED_DTYPES:
            raise ModelError(
                f"{path}: {name} has the type {dtype_name(stored[name])}, as in a quantized model; use the "
                f"model in float16, bfloat16, float32 or float64"
            )
        if stored[name].shape != weight.shape:
            raise ModelError(
                f"{path}: {name} has shape {tuple(stored[name].shape)}, but config.json makes it "
                f"{tuple(weight.shape)}; check that config.json is the right one"
            )
