"""Read weights in the formats of Hugging Face's libraries since 2018.

Files are safetensors or pickles, whole or in shards; the weights in them may have TensorFlow's
names for layer norms, another prefix or none, and buffers among them. All weights are returned
under the names that the libraries use today.
"""

import re
import shlex
import zipfile
from collections.abc import Collection
from pathlib import Path

import pydantic
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertie.base.errors import ModelError
from bertie.base.files import read_json_object, utf8_path
from bertie.base.schemas import Foreign, read_foreign, shorten
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER, find_config_file

WEIGHTS_FILE, PICKLE_FILE = "model.safetensors", "pytorch_model.bin"
# Files of other formats that can hold the weights of a BERT, and advice for each.
UNSUPPORTED_FILES = {
    "tf_model.h5": "load it in transformers 4 with from_tf=True and save it with save_pretrained",
    "flax_model.msgpack": "load it in transformers 4 with from_flax=True and save it with save_pretrained",
    "*.index": "make a model directory of it with `bertie convert`",
    "*.data-00000-of-*": "download its *.index file too, and run `bertie convert`",
    "model.onnx": "an exported model is only for prediction, embedding and evaluation; for anything else "
    "use the model that it was exported from",
}

LFS_POINTER = b"version https://git-lfs"

WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
# Of the encoder: under a head, bare, or in a wrapper, such as torch's DataParallel (module).
PREFIXES = ("bert.", "", "model.", "model.bert.", "module.", "module.bert.")
ENCODER_MODULES = ("embeddings", "encoder", "pooler")
NORM_PARAMETERS = {"gamma": "weight", "beta": "bias"}  # TensorFlow's names, written until 2019
BUFFERS = ("position_ids", "token_type_ids")  # written by transformers 2.8 to 4.30
# Stored copies of tied weights, and their originals.
TIED_WEIGHTS = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# Values of `finetuning_task`, which run_glue.py wrote to config.json before it held architectures.
GLUE_TASKS = ("cola", "mnli", "mnli-mm", "mrpc", "sst-2", "sts-b", "qqp", "qnli", "rte", "wnli")


class WeightIndex(Foreign):
    """The content of model.safetensors.index.json."""

    weight_map: dict[str, str]

    @pydantic.field_validator("weight_map")
    @classmethod
    def _name_files(cls, weight_map: dict[str, str]) -> dict[str, str]:
        for file in {*weight_map.values()}:
            if Path(file).name != file or "\0" in file:
                raise ValueError(f"{shorten(file)} is not the name of a file in the same folder")
        return weight_map


def read_weights(path: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Read all weights of a model, in the dtype in which they are stored.

    Args:
        path: a model directory, or one safetensors file.
        allow_pickle: also read `pytorch_model.bin`. Only tensors are unpickled.

    Returns:
        Weights by the Hugging Face names of weight_names.py, and any others that are stored, such
        as a copy of the tied decoder.

    Raises:
        DataError: the index of the shards is not JSON.
        ModelError: the weights are missing or damaged, in a pickle without `allow_pickle`, in an
            unsupported format, or not the weights of a BERT.
    """
    stored: dict[str, Tensor] = {}
    for file in find_weight_files(path):
        if file.suffix == ".bin" and not allow_pickle:
            raise ModelError(
                f"{file}: a pickle, which may run code when it is loaded; if you trust its source, convert "
                f"it: bertie convert {shlex.quote(str(path))} OUT --to bertie --allow-pickle"
            )
        _reject_lfs_pointer(file)
        stored |= _read_pickle(file) if file.suffix == ".bin" else _read_safetensors(file)
    return _normalize_names(stored, path)


def find_weight_files(path: Path) -> list[Path]:
    """Return the files with the weights of a model directory.

    If `path` is not a directory, it is the only weight file.

    Raises:
        DataError: the index of the shards is not JSON.
        ModelError: there are no weights in a supported format, or the index does not name files.
    """
    if not path.is_dir():
        return [path]
    for name in (WEIGHTS_FILE, PICKLE_FILE):
        if (path / name).is_file():
            return [path / name]
        if (index := path / f"{name}.index.json").exists():
            files = sorted({*read_foreign(WeightIndex, index).weight_map.values()})
            return [path / file for file in files]
    for pattern, advice in UNSUPPORTED_FILES.items():
        for file in path.glob(pattern):
            raise ModelError(f"{file}: unsupported weight format; {advice}")
    raise ModelError(f"{path / WEIGHTS_FILE}: no such file; download the weights too")


def merge_tied_weights(stored: dict[str, Tensor], path: Path) -> None:
    """Remove the copies of tied weights from `stored`.

    Each copy must equal its original. A copy without an original becomes the original: the
    decoder's bias is often stored only as `cls.predictions.decoder.bias`.

    Raises:
        ModelError: a copy differs, so the masked-LM decoder is not the word embeddings.
    """
    for name, original in TIED_WEIGHTS.items():
        copy = stored.pop(name, None)
        if copy is not None and not torch.equal(copy, stored.setdefault(original, copy)):
            raise ModelError(f"{path}: {name} differs from {original}; bertie supports only tied decoders")


def infer_architecture(stored: Collection[str], path: Path) -> str:
    """Infer the class of `transformers` that weights belong to.

    Models saved until 2019 need this, because their config.json does not name the class.

    Args:
        stored: the Hugging Face names of the weights.
        path: the folder with the config; its `finetuning_task` identifies a classifier of GLUE.

    Raises:
        DataError: the config is not JSON.
        ModelError: the weights fit several classes.
    """
    if "cls.predictions.bias" in stored:
        return "BertForPreTraining" if "cls.seq_relationship.weight" in stored else "BertForMaskedLM"
    if "cls.seq_relationship.weight" in stored:
        return "BertForNextSentencePrediction"
    if "qa_outputs.weight" in stored:
        return "BertForQuestionAnswering"
    if "classifier.weight" not in stored:
        return "BertModel"
    file = find_config_file(path)
    if read_json_object(file).get("finetuning_task") in GLUE_TASKS:
        return SEQUENCE_CLASSIFIER
    raise ModelError(
        f'{file}: no "architectures", and the weights fit several classifiers; add "num_labels" and '
        f'"architectures": ["{SEQUENCE_CLASSIFIER}"] (or BertForTokenClassification or BertForMultipleChoice)'
    )


def _reject_lfs_pointer(path: Path) -> None:
    """Raise ModelError if a file is the pointer that a clone without Git LFS contains."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ModelError(f"{path}: a Git LFS pointer, not the weights; download them: git lfs pull")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with utf8_path(path) as name, safe_open(name, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; the model is incomplete without it") from None
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged safetensors file ({error}); download it again") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        # torch has written zip archives since 1.6, but does not verify the checksums in them.
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged:
                raise zipfile.BadZipFile(damaged)
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; the model is incomplete without it") from None
    except Exception as error:  # a damaged pickle can run any instruction and raise any exception
        if forbidden := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise ModelError(
                f"{path}: not loaded: it calls {forbidden[1]}, which no weights need; get the weights from "
                f"a source that you trust"
            ) from None
        raise ModelError(f"{path}: damaged ({type(error).__name__}); download it again") from None
    if not isinstance(stored, dict) or not all(isinstance(weight, Tensor) for weight in stored.values()):
        raise ModelError(f"{path}: not a dictionary of weights; save the model with save_pretrained")
    return stored


def _normalize_names(stored: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the weights under the current Hugging Face names, without buffers."""
    prefixes = [name.removesuffix(WORD_EMBEDDINGS) for name in stored if name.endswith(WORD_EMBEDDINGS)]
    (prefix,) = prefixes if len(prefixes) == 1 else PREFIXES[:1]
    if prefix not in PREFIXES:
        architecture = prefix.removesuffix(".")
        raise ModelError(f"{path}: weights of {architecture!r}, not of a BERT; use `transformers` for them")
    normalized = {}
    for stored_name, weight in stored.items():
        name = re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda m: NORM_PARAMETERS[m[0]], stored_name)
        suffix = name.removeprefix(prefix)
        if name.startswith(prefix) and suffix.split(".")[0] in ENCODER_MODULES:
            name = f"bert.{suffix}"
        else:
            name = name.removeprefix(prefix.removesuffix("bert."))
        if name.split(".")[-1] not in BUFFERS:
            normalized[name] = weight
    return normalized
