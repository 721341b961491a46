"""Save and load google-research/bert's checkpoints, without TensorFlow.

A folder holds `bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001`, `bert_config.json`
and `vocab.txt`. Folders that bertie writes also hold `config.json` and the files of the tokenizer,
because google's files record neither the names of labels nor whether text is lower-cased.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertie.base.checksums import verify, write_sums
from bertie.base.errors import ModelError
from bertie.base.files import atomic_directory, write_json
from bertie.model.formats.config import read_config
from bertie.model.formats.directory import (
    MAX_LABELS,
    SEQUENCE_CLASSIFIER,
    ModelMetadata,
    check_vocabulary_size,
    read_metadata,
    write_metadata,
)
from bertie.model.formats.huggingface import infer_architecture
from bertie.model.formats.tensor_bundle import Bundle, read_bundle, write_bundle
from bertie.model.formats.weight_names import HUGGING_FACE_NAMES, TENSORFLOW_NAMES, tensorflow_names
from bertie.model.formats.weights import build_meta_model
from bertie.model.heads import EncoderModel, Model
from bertie.text.tokenizer import Tokenizer
from bertie.text.tokenizer_files import CONFIG_FILE as TOKENIZER_CONFIG_FILE

CHECKPOINT_NAME, BERT_CONFIG_FILE = "bert_model.ckpt", "bert_config.json"
POOLER_TENSOR = "bert/pooler/dense/kernel"
# Keys of BertConfig that google's code lacks: its layer norms always have epsilon 1e-12, and its attention
# is never causal.
NON_GOOGLE_KEYS = ("layer_norm_eps", "is_decoder", "position_initializer_range")
# Last parts of the names of an optimizer's tensors: google's AdamW, LAMB and TensorFlow's Adam.
OPTIMIZER_SLOTS = {"adam_m", "adam_v", "lamb_m", "lamb_v", "Adam", "Adam_1"}
OPTIMIZER_TENSORS = OPTIMIZER_SLOTS | {"global_step", "beta1_power", "beta2_power"}
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # tensorflow/python/checkpoint/base.py

CARD = """\
# {architecture}
A BERT for [google-research/bert](https://github.com/google-research/bert), written by bertie.

    --init_checkpoint={checkpoint} --bert_config_file={config}
    --vocab_file=vocab.txt --do_lower_case={lowercase}
"""


def save_model(path: Path, model: Model | EncoderModel, metadata: ModelMetadata) -> None:
    """Write a folder that google-research/bert and `load_model` read.

    The folder is written atomically and replaces `path` if it exists.

    Raises:
        ModelError: google's code does not support the model (left-to-right, with a BiLSTM, or a classifier
            over the mean of the tokens) or an option of its tokenizer.
    """
    tokenizer = metadata.tokenizer
    if (
        tokenizer.strip_accents != tokenizer.lowercase
        or not tokenizer.tokenize_chinese_chars
        or tokenizer.never_split
        or tokenizer.added_tokens
    ):
        raise ModelError(
            f"{path}: the tokenizer of google-research/bert has no strip_accents, tokenize_chinese_chars, "
            "never_split and added tokens; choose another layout"
        )
    if metadata.config.is_decoder or metadata.bilstm:
        raise ModelError(
            f"{path}: google-research/bert has no left-to-right models and no BiLSTM; choose another layout"
        )
    if metadata.classifier_pooling == "mean":
        raise ModelError(
            f"{path}: the classifiers of google-research/bert read [CLS], not the mean of the tokens; choose "
            f"another layout"
        )
    tensors = {}
    for name, weight in model.state_dict().items():
        names = tensorflow_names(name)
        for tensor_name, part in zip(names, weight.cpu().chunk(len(names)), strict=True):
            tensors[tensor_name] = part.numpy().T if _is_transposed(tensor_name) else part.numpy()
    config = metadata.config.model_dump(exclude={*NON_GOOGLE_KEYS})
    if config["hidden_act"] == "gelu_new":
        config["hidden_act"] = "gelu"  # google's code has one GELU, under this name
    card = CARD.format(
        architecture=metadata.architecture,
        checkpoint=CHECKPOINT_NAME,
        config=BERT_CONFIG_FILE,
        lowercase=tokenizer.lowercase,
    )
    with atomic_directory(path) as temporary:
        write_metadata(temporary, metadata, card)
        write_json(temporary / BERT_CONFIG_FILE, config)
        write_bundle(temporary / CHECKPOINT_NAME, tensors)
        write_sums(temporary)


def load_model(path: Path) -> tuple[Model | EncoderModel, ModelMetadata]:
    """Load a checkpoint; the model is in evaluation mode, on the CPU and in float32.

    Optimizer tensors, and weights that the head does not use (often a pooler), are skipped with a
    line on stderr. Without a config.json, a classifier's labels are LABEL_0, LABEL_1, … Whether
    text is lower-cased is read from tokenizer_config.json, otherwise inferred from the folder's
    name, otherwise from the vocabulary.

    Args:
        path: a folder, or `FOLDER/PREFIX` if the folder holds several checkpoints.

    Raises:
        ModelError: a file is missing or damaged, or the checkpoint does not fit bert_config.json.
            The message names the tensor.
    """
    prefix = find_checkpoint(path)
    verify(prefix.parent)  # `read_bundle` checks the checksums of the tensors
    bundle = read_bundle(prefix)
    if OBJECT_GRAPH in bundle.entries:
        raise ModelError(
            f"{prefix}: an object-based TensorFlow 2 checkpoint; use the model's TensorFlow 1 files, or "
            f"convert it with convert_bert_original_tf2_checkpoint_to_pytorch.py of transformers 4"
        )
    metadata = _read_metadata(prefix, bundle)
    model = build_meta_model(metadata, prefix.parent, pooler=POOLER_TENSOR in bundle.entries)
    _report_unused(bundle, metadata.architecture, model.state_dict())
    state = {name: _read_weight(bundle, name, weight.shape) for name, weight in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return model.eval(), metadata


def find_checkpoint(path: Path) -> Path:
    """Return the prefix of a checkpoint's files.

    A `path` that is not a folder is returned as the prefix. In a folder with several checkpoints,
    the file `checkpoint` names the latest one.

    Raises:
        ModelError: the folder holds no checkpoint, or several and does not say which is the latest.
    """
    if not path.is_dir():
        return path
    prefixes = sorted(index.with_suffix("") for index in path.glob("*.index"))
    if (path / "checkpoint").is_file():
        text = (path / "checkpoint").read_text(encoding="utf-8", errors="replace")
        # The folder in this path is ignored: it often exists only on the machine that wrote the checkpoint.
        latest = re.match(r'model_checkpoint_path: "(?:.*/)?(.+)"', text)
        prefixes = [prefix for prefix in prefixes if latest and prefix.name == latest[1]] or prefixes
    if len(prefixes) != 1:
        names = ", ".join(prefix.name for prefix in prefixes) or "none"
        raise ModelError(
            f"{path}: expected one checkpoint, found {names}; name one, such as {path / CHECKPOINT_NAME}"
        )
    return prefixes[0]


def _read_metadata(prefix: Path, bundle: Bundle) -> ModelMetadata:
    """Read the files next to a checkpoint, and infer the head from its tensors."""
    folder, entries = prefix.parent, bundle.entries
    stored = {
        HUGGING_FACE_NAMES[name][0] for name, (first, *_) in TENSORFLOW_NAMES.items() if first in entries
    }
    # Assume that a classifier is run_classifier.py's; other code uses the same names for other heads.
    is_classifier = "classifier.weight" in stored
    architecture = SEQUENCE_CLASSIFIER if is_classifier else infer_architecture(stored, folder)
    lowercase = None if (folder / TOKENIZER_CONFIG_FILE).exists() else _infer_lowercase(folder)
    if (folder / "config.json").exists():
        metadata = read_metadata(folder, architecture)
        if lowercase is not None:
            metadata = replace(metadata, tokenizer=Tokenizer.load(folder, lowercase))
        return metadata
    if not (folder / BERT_CONFIG_FILE).exists():
        raise ModelError(
            f"{folder / BERT_CONFIG_FILE}: no such file; copy it and vocab.txt from the pre-trained model"
        )
    config = read_config(folder / BERT_CONFIG_FILE)
    if is_classifier and POOLER_TENSOR not in entries:
        raise ModelError(
            f"{prefix}: a classifier without a pooler, such as a tagger; to name its head, copy "
            f'{BERT_CONFIG_FILE} to config.json and add "architectures": ["BertForTokenClassification"] and '
            f'"id2label"'
        )
    tokenizer = Tokenizer.load(folder, lowercase)
    check_vocabulary_size(len(tokenizer.vocabulary), config, str(folder))
    num_labels = _count_labels(prefix, bundle) if is_classifier else 0
    labels = tuple(f"LABEL_{index}" for index in range(num_labels))
    metadata = ModelMetadata(config, architecture, labels, tokenizer)
    return replace(metadata, problem_type="regression") if num_labels == 1 else metadata


def _count_labels(prefix: Path, bundle: Bundle) -> int:
    """Return the number of labels of run_classifier.py's classifier."""
    shape = bundle.entries["output_weights"].shape
    if len(shape) != 2 or not 0 < shape[0] <= MAX_LABELS:
        raise ModelError(f"{prefix}: output_weights has shape {shape}, which no classifier has")
    return shape[0]


def _infer_lowercase(folder: Path) -> bool | None:
    """Infer from the name of a released model whether it lower-cases text.

    Return None if the name does not say. Source: tokenization.py:28-75.
    """
    name = folder.resolve().name
    if "uncased" in name or name.startswith(("chinese_L-", "multilingual_L-")):
        return True
    return False if "cased" in name else None


def _report_unused(bundle: Bundle, architecture: str, weights: Iterable[str]) -> None:
    """Print on stderr which tensors of a checkpoint the model does not use.

    Raises:
        ModelError: a tensor of the encoder is among them.
    """
    used = {tensor_name for name in weights for tensor_name in tensorflow_names(name)}
    unused = [name for name in bundle.entries if name not in used]
    unused_weights = [name for name in unused if name.rpartition("/")[2] not in OPTIMIZER_TENSORS]
    for name in unused_weights:
        if name.startswith("bert/") and not name.startswith("bert/pooler/"):
            raise ModelError(
                f"{bundle.prefix}: unexpected tensor {name}; check that {BERT_CONFIG_FILE} belongs to this "
                f"checkpoint"
            )
    if optimizer_tensors := len(unused) - len(unused_weights):
        print(f"{bundle.prefix}: skipped {optimizer_tensors} optimizer tensors", file=sys.stderr)
    if unused_weights:
        names = ", ".join(unused_weights)
        print(f"{bundle.prefix}: skipped tensors that {architecture} does not use: {names}", file=sys.stderr)


def _read_weight(bundle: Bundle, name: str, shape: torch.Size) -> Tensor:
    """Read one of bertie's weights, in float32; concatenate three tensors for `qkv`."""
    tensor_names = tensorflow_names(name)
    part_shape = (shape[0] // len(tensor_names), *shape[1:])
    parts = []
    for tensor_name in tensor_names:
        if tensor_name not in bundle.entries:
            raise ModelError(
                f"{bundle.prefix}: tensor {tensor_name} is missing; check that this is a BERT and that "
                f"{BERT_CONFIG_FILE} belongs to it"
            )
        is_transposed = _is_transposed(tensor_name)
        stored_shape = bundle.entries[tensor_name].shape
        expected_shape = part_shape[::-1] if is_transposed else part_shape
        if stored_shape != expected_shape:
            raise ModelError(
                f"{bundle.prefix}: {tensor_name} has shape {stored_shape}, but {BERT_CONFIG_FILE} makes it "
                f"{expected_shape}; check that {BERT_CONFIG_FILE} belongs to this checkpoint"
            )
        values = bundle.read(tensor_name)
        if not np.isfinite(values).all():
            raise ModelError(
                f"{bundle.prefix}: {tensor_name} has NaN or infinite numbers; the training diverged, so use "
                f"an earlier checkpoint"
            )
        parts.append(torch.from_numpy(values.T if is_transposed else values).float())
    return torch.cat(parts)


def _is_transposed(tensor_name: str) -> bool:
    """Return whether TensorFlow stores a weight as (in, out)."""
    return tensor_name.endswith("/kernel")
