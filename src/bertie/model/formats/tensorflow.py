"""Models in and out of google-research/bert's checkpoints, without TensorFlow.

A folder holds `bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001`, `bert_config.json` and
`vocab.txt`. One that bertie writes has `config.json` and the tokenizer's files too: google's do not say what
the labels are called, nor whether text is lower-cased.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from bertie.base.errors import ModelError
from bertie.base.files import atomic_directory, write_json
from bertie.model.config import BertConfig
from bertie.model.formats.directory import (
    SEQUENCE_CLASSIFIER,
    ModelMetadata,
    check_vocabulary,
    read_metadata,
    write_metadata,
)
from bertie.model.formats.huggingface import tell_architecture
from bertie.model.formats.tensor_bundle import Bundle, read_bundle, write_bundle
from bertie.model.formats.weight_names import NAMES, TENSORFLOW_NAMES, tensorflow_names
from bertie.model.formats.weights import empty_model
from bertie.model.heads import EncoderModel, Model
from bertie.text.tokenizer import CONFIG_FILE, Tokenizer

CHECKPOINT, CONFIG = "bert_model.ckpt", "bert_config.json"
POOLER = "bert/pooler/dense/kernel"
# Keys of BertConfig that google's code has not: its norms have the epsilon 1e-12, its layers see all tokens.
NOT_GOOGLE = ("layer_norm_eps", "is_decoder", "position_initializer_range")
# The last parts of the names of what an optimiser keeps: google's, LAMB, TensorFlow's own Adam.
SLOTS = {"adam_m", "adam_v", "lamb_m", "lamb_v", "Adam", "Adam_1"}
OPTIMIZER = SLOTS | {"global_step", "beta1_power", "beta2_power"}
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # tensorflow/python/checkpoint/base.py

CARD = """\
# {architecture}
A BERT for [google-research/bert](https://github.com/google-research/bert), written by bertie.

    --init_checkpoint={checkpoint} --bert_config_file={config}
    --vocab_file=vocab.txt --do_lower_case={lowercase}
"""


def load_model(path: Path) -> tuple[Model | EncoderModel, ModelMetadata]:
    """Read a checkpoint; the model is in evaluation mode.

    What the optimiser left in it, and a pooler or other weights that the head does not read, are left out,
    with a line on stderr. A classifier's labels are LABEL_0, LABEL_1, … where no config.json names them.
    Where no file says whether text is lower-cased, it is told from the folder's name, else from the
    vocabulary.

    Args:
        path: a folder, or `FOLDER/PREFIX` where it holds several checkpoints.

    Raises:
        ModelError: a file is absent or damaged, or the checkpoint is not of this BERT; it names the tensor.
    """
    prefix = find_checkpoint(path)
    bundle = read_bundle(prefix)
    if OBJECT_GRAPH in bundle.entries:
        raise ModelError(
            f"{prefix}: a checkpoint of TensorFlow 2's objects, not of names; take the model's TensorFlow 1 "
            "files, or use convert_bert_original_tf2_checkpoint_to_pytorch.py of transformers 4"
        )
    metadata = _describe(prefix, bundle)
    model = empty_model(metadata, prefix.parent, pooler=POOLER in bundle.entries)
    _tell_unread(bundle, metadata.architecture, model.state_dict())
    state = {name: _read_weight(bundle, name, weight.shape) for name, weight in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return model.eval(), metadata


def save_model(path: Path, model: Model | EncoderModel, metadata: ModelMetadata) -> None:
    """Write a folder that google-research/bert reads, and `load_model` too, in place of what stood there.

    Raises:
        ModelError: google's code has no such model.
    """
    if metadata.config.is_decoder or metadata.bilstm:
        raise ModelError(f"{path}: google-research/bert has no left-to-right models and no BiLSTM")
    weights = {}
    for name, weight in model.state_dict().items():
        names = tensorflow_names(name)
        for their_name, part in zip(names, weight.cpu().chunk(len(names)), strict=True):
            weights[their_name] = part.numpy().T if _transposed(their_name) else part.numpy()
    # google's code has one GELU, which it calls gelu.
    config = metadata.config.model_dump(exclude={*NOT_GOOGLE}) | {"hidden_act": "gelu"}
    card = CARD.format(
        architecture=metadata.architecture,
        checkpoint=CHECKPOINT,
        config=CONFIG,
        lowercase=metadata.tokenizer.lowercase,
    )
    with atomic_directory(path) as temporary:
        write_metadata(temporary, metadata, card)
        write_json(temporary / CONFIG, config)
        write_bundle(temporary / CHECKPOINT, weights)


def find_checkpoint(path: Path) -> Path:
    """The prefix of a checkpoint's files: `path` itself, or that of the only or the latest one in a folder.

    Raises:
        ModelError: the folder holds none, or several without the file `checkpoint`, which names the latest.
    """
    if not path.is_dir():
        return path
    prefixes = sorted(index.with_suffix("") for index in path.glob("*.index"))
    if (path / "checkpoint").is_file():
        text = (path / "checkpoint").read_text(encoding="utf-8", errors="replace")
        # A folder in it is the one of another machine, where the checkpoint was written.
        latest = re.match(r'model_checkpoint_path: "(?:.*/)?(.+)"', text)
        prefixes = [prefix for prefix in prefixes if latest and prefix.name == latest[1]] or prefixes
    if len(prefixes) != 1:
        found = ", ".join(prefix.name for prefix in prefixes) or "none"
        raise ModelError(f"{path}: name one checkpoint, {path / CHECKPOINT} for example; found: {found}")
    return prefixes[0]


def _describe(prefix: Path, bundle: Bundle) -> ModelMetadata:
    """What the files beside a checkpoint say; the names of its weights tell the head."""
    folder, entries = prefix.parent, bundle.entries
    stored = {NAMES[ours][0] for ours, (name, *_) in TENSORFLOW_NAMES.items() if name in entries}
    # run_classifier.py's, whose name others have taken for their heads.
    classifies = "classifier.weight" in stored
    architecture = SEQUENCE_CLASSIFIER if classifies else tell_architecture(stored, folder)
    lowercase = None if (folder / CONFIG_FILE).exists() else _told_by_name(folder)
    if (folder / "config.json").exists():
        metadata = read_metadata(folder, architecture)
        if lowercase is not None:
            metadata = replace(metadata, tokenizer=Tokenizer.load(folder, lowercase))
        return metadata
    if not (folder / CONFIG).exists():
        advice = "take it and vocab.txt from the model that was trained further"
        raise ModelError(f"{folder / CONFIG}: no such file; {advice}")
    config = BertConfig.load(folder / CONFIG)
    tokenizer = Tokenizer.load(folder, lowercase)
    check_vocabulary(len(tokenizer.vocabulary), config, str(folder))
    num_labels = entries["output_weights"].shape[0] if classifies else 0
    labels = tuple(f"LABEL_{number}" for number in range(num_labels))
    metadata = ModelMetadata(config, architecture, labels, tokenizer)
    return replace(metadata, problem_type="regression") if num_labels == 1 else metadata


def _told_by_name(folder: Path) -> bool | None:
    """Whether the name of a released model says that text is lower-cased (tokenization.py:28-75)."""
    name = folder.resolve().name
    if "uncased" in name or name.startswith(("chinese_L-", "multilingual_L-")):
        return True
    return False if "cased" in name else None


def _tell_unread(bundle: Bundle, architecture: str, weights: Iterable[str]) -> None:
    """Say on stderr what the model does not read.

    Raises:
        ModelError: the encoder would be another one without it.
    """
    read = {their_name for name in weights for their_name in tensorflow_names(name)}
    unread = [name for name in bundle.entries if name not in read]
    others = [name for name in unread if name.rpartition("/")[2] not in OPTIMIZER]
    for name in others:
        if name.startswith("bert/") and not name.startswith("bert/pooler/"):
            raise ModelError(f"{bundle.prefix}: {name} has no place in the network that {CONFIG} describes")
    if slots := len(unread) - len(others):
        print(f"{bundle.prefix}: {slots} tensors of the optimiser left out", file=sys.stderr)
    if others:
        print(f"{bundle.prefix}: {architecture} does not read {', '.join(others)}", file=sys.stderr)


def _read_weight(bundle: Bundle, name: str, shape: torch.Size) -> Tensor:
    """One of our weights, float32, from one tensor or from those that we stack."""
    names = tensorflow_names(name)
    expected = (shape[0] // len(names), *shape[1:])
    parts = []
    for their_name in names:
        if their_name not in bundle.entries:
            raise ModelError(f"{bundle.prefix}: {their_name} is missing; is it a BERT, and {CONFIG} its own?")
        theirs = bundle.entries[their_name].shape
        transposed = _transposed(their_name)
        if (theirs[::-1] if transposed else theirs) != expected:
            raise ModelError(
                f"{bundle.prefix}: {their_name} has the shape {theirs}, but {CONFIG} makes it "
                f"{expected[::-1] if transposed else expected}"
            )
        values = bundle.read(their_name)
        parts.append(torch.from_numpy(values.T if transposed else values).float())
    return torch.cat(parts).contiguous()


def _transposed(their_name: str) -> bool:
    """Whether TensorFlow has a weight's inputs first."""
    return their_name.endswith("/kernel")
