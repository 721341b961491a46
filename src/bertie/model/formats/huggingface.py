"""Weights in any layout that Hugging Face's libraries have written since 2018, under the names of today."""

import re
import zipfile
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertie.base.errors import ModelError
from bertie.base.files import read_json_object
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER, config_file

WEIGHTS_FILE, PICKLE_FILE = "model.safetensors", "pytorch_model.bin"
# What else has held the weights of a BERT, and what makes a model directory of it.
FOREIGN = {
    "tf_model.h5": "load it in transformers 4 with from_tf=True and save it with save_pretrained",
    "flax_model.msgpack": "load it in transformers 4 with from_flax=True and save it with save_pretrained",
    "*.index": "make a model directory of it with `bertie convert`",
    "*.data-00000-of-*": "the file *.index beside it is missing; fetch it too",
    "model.onnx": "it predicts, embeds and evaluates; all else needs the model that it was exported from",
}

LFS_POINTER = b"version https://git-lfs"

WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
PREFIXES = ("bert.", "", "model.", "model.bert.")  # of the encoder: a model with a head, bare, wrapped
ENCODER_PARTS = ("embeddings", "encoder", "pooler")
GAMMA_BETA = {"gamma": "weight", "beta": "bias"}  # the norms' names until 2019, which are TensorFlow's
BUFFERS = ("position_ids", "token_type_ids")  # stored by transformers 2.8 to 4.30
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# `finetuning_task` of a config.json that run_glue.py wrote before there were architectures in it.
GLUE_TASKS = ("cola", "mnli", "mnli-mm", "mrpc", "sst-2", "sts-b", "qqp", "qnli", "rte", "wnli")


def read_weights(path: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Read all weights of a model, in the dtype in which they are stored.

    Args:
        path: a model directory, or a safetensors file alone.
        allow_pickle: also read `pytorch_model.bin`. Nothing but tensors is taken from it.

    Returns:
        Weights by the names of `weight_names`, and whatever else is stored, such as a tied decoder.

    Raises:
        ModelError: there are no weights, or they are damaged, a pickle, or of another architecture.
    """
    stored: dict[str, Tensor] = {}
    for file in weight_files(path):
        if file.suffix == ".bin" and not allow_pickle:
            raise ModelError(
                f"{file}: a pickle, which may run code as it is read; if you trust its source: "
                f"bertie convert {path} OUT --to bertie --allow-pickle"
            )
        _refuse_pointer(file)
        stored |= _read_pickle(file) if file.suffix == ".bin" else _read_safetensors(file)
    return _renamed(stored, path)


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights of a model directory; of a file itself.

    Raises:
        DataError: the index of several files is not JSON.
        ModelError: there are none that bertie reads, or the index does not name them.
    """
    if not path.is_dir():
        return [path]
    for name in (WEIGHTS_FILE, PICKLE_FILE):
        if (path / name).is_file():
            return [path / name]
        if (index := path / f"{name}.index.json").exists():
            files = read_json_object(index).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
                raise ModelError(f"{index}: its weight_map names no files; fetch it once more")
            return [path / file for file in sorted({*files.values()})]
    for pattern, advice in FOREIGN.items():
        for file in path.glob(pattern):
            raise ModelError(f"{file}: weights for another library alone; {advice}")
    raise ModelError(f"{path / WEIGHTS_FILE}: no such file; fetch the weights too")


def check_tied(stored: dict[str, Tensor], path: Path) -> None:
    """Take the masked-LM decoder from what is stored; it is to be the word embeddings once more.

    Raises:
        ModelError: it is not.
    """
    for name, own in TIED.items():
        copy = stored.pop(name, None)
        if copy is not None and not torch.equal(copy, stored.setdefault(own, copy)):
            raise ModelError(f"{path}: {name} is not {own}; bertie has no untied decoder")


def tell_architecture(stored: Collection[str], path: Path) -> str:
    """The `transformers` class that weights belong to, where config.json names none, as until 2019.

    Raises:
        ModelError: it may be several.
    """
    if "cls.predictions.bias" in stored:
        return "BertForPreTraining" if "cls.seq_relationship.weight" in stored else "BertForMaskedLM"
    if "cls.seq_relationship.weight" in stored:
        return "BertForNextSentencePrediction"
    if "qa_outputs.weight" in stored:
        return "BertForQuestionAnswering"
    if "classifier.weight" not in stored:
        return "BertModel"
    file = config_file(path)
    if read_json_object(file).get("finetuning_task") in GLUE_TASKS:
        return SEQUENCE_CLASSIFIER
    raise ModelError(
        f'{file}: names no architecture; add "num_labels" and "architectures": ["{SEQUENCE_CLASSIFIER}"], or '
        f"BertForTokenClassification or BertForMultipleChoice, whichever this classifier is"
    )


def _refuse_pointer(path: Path) -> None:
    """What a clone without Git LFS has in place of a large file is refused by what it is."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise ModelError(f"{path}: a pointer of Git LFS; fetch what it points to with `git lfs pull`")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged safetensors file ({error})") from None


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        if zipfile.is_zipfile(path):  # as since torch 1.6; torch itself does not look at the checksums in it
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged:
                raise zipfile.BadZipFile(damaged)
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except Exception as error:  # damaged bytes are instructions too, and fail in any way
        if named := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise ModelError(f"{path}: not read: it calls {named[1]}, which no weights need") from None
        raise ModelError(f"{path}: damaged ({type(error).__name__}); fetch it again") from None
    if not isinstance(stored, dict) or not all(isinstance(weight, Tensor) for weight in stored.values()):
        raise ModelError(f"{path}: not a table of weights; save the model with save_pretrained")
    return stored


def _renamed(stored: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Weights under today's names, without buffers."""
    found = [name.removesuffix(WORD_EMBEDDINGS) for name in stored if name.endswith(WORD_EMBEDDINGS)]
    (prefix,) = found if len(found) == 1 else PREFIXES[:1]
    if prefix not in PREFIXES:
        raise ModelError(f"{path}: the weights are those of {prefix.removesuffix('.')!r}, not of a BERT")
    renamed = {}
    for stored_name, weight in stored.items():
        name = re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda m: GAMMA_BETA[m[0]], stored_name)
        part = name.removeprefix(prefix)
        if name.startswith(prefix) and part.split(".")[0] in ENCODER_PARTS:
            name = f"bert.{part}"
        else:
            name = name.removeprefix(prefix.removesuffix("bert."))
        if name.split(".")[-1] not in BUFFERS:
            renamed[name] = weight
    return renamed
