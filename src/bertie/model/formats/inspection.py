"""Inspect a model: collect facts about it, and check that its files fit together."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bertie.base.checksums import weights_verified
from bertie.base.errors import ModelError
from bertie.base.files import read_json_object
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine
from bertie.model.formats import tensorflow
from bertie.model.formats.conversion import is_tensorflow_checkpoint
from bertie.model.formats.directory import (
    BERTIE_KEYS,
    ModelMetadata,
    find_config_file,
    read_metadata,
    trim_tokenizer,
)
from bertie.model.formats.huggingface import TIED_WEIGHTS, find_weight_files, merge_tied_weights
from bertie.model.formats.sentence_transformers import find_transformer_folder
from bertie.model.formats.weights import (
    POOLER_WEIGHT,
    SUPPORTED_DTYPES,
    build_meta_model,
    dtype_name,
    named_weights,
    read_metadata_and_weights,
)
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, has_upper_case

MAX_LISTED_WEIGHTS = 3  # in the details of a check
CONFIG_KEYS = (  # of BertConfig; the paper's L, H, A and 4H come first
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "is_decoder",
)
EMBEDDINGS_SUFFIX = "_embeddings.weight"  # of the names of the three embedding tables


class Check(NamedTuple):
    """The result of checking one property that a model should have.

    Attributes:
        name: the property
        passed: whether the model has it
        found: details: sizes, or the first few faults
    """

    name: str
    passed: bool
    found: str


class Inspection(NamedTuple):
    """The result of `inspect_model`.

    Attributes:
        facts: values by name; facts that config.json also records have the same keys as there
        checks: the checks, in the order of the output
    """

    facts: dict[str, Any]
    checks: list[Check]


class _Contents(NamedTuple):
    """The contents of a model directory.

    Attributes:
        layout: the name of its layout
        folder: the folder of its config
        files: the files with the weights
        metadata: the metadata, with the whole stored vocabulary
        expected: weights by Hugging Face name, as the metadata describe them; they may be on the
            meta device, without values
        stored: the stored weights, by the same names; None for an ONNX graph, which has other names
    """

    layout: str
    folder: Path
    files: list[Path]
    metadata: ModelMetadata
    expected: dict[str, Tensor]
    stored: dict[str, Tensor] | None


def inspect_model(path: Path, allow_pickle: bool = False) -> Inspection:
    """Inspect a model in any layout.

    Files that do not fit together make a check fail; they do not raise an error.

    Args:
        path: a model directory, or the prefix of a TensorFlow checkpoint.
        allow_pickle: also read `pytorch_model.bin`; see `read_weights`.

    Raises:
        ModelError: the model cannot be read at all.
    """
    with weights_verified(path):
        contents = _read_contents(path, allow_pickle)
    metadata, stored = contents.metadata, contents.stored
    sizes = {name: weight.numel() for name, weight in contents.expected.items()}
    embeddings = sum(size for name, size in sizes.items() if name.endswith(EMBEDDINGS_SUFFIX))
    facts = {
        "layout": contents.layout,
        **_writer_facts(contents.folder),
        "files": {file.name: file.stat().st_size for file in contents.files},
        **_dtype_facts(stored),
        "architecture": metadata.architecture,
        **_head_facts(metadata),
        **{key: getattr(metadata.config, key) for key in CONFIG_KEYS},
        "parameters": sum(sizes.values()),
        "parameters_without_embeddings": sum(sizes.values()) - embeddings,
        **_vocabulary_facts(metadata.tokenizer),
    }
    checks = [_check_vocabulary_size(metadata), _check_casing(metadata.tokenizer)]
    if stored is not None:
        checks += _check_weights(contents.expected, stored, path)
    return Inspection(facts, checks)


def _read_contents(path: Path, allow_pickle: bool) -> _Contents:
    if is_tensorflow_checkpoint(path):
        model, metadata = tensorflow.load_model(path)
        weights = named_weights(model)
        folder = path if path.is_dir() else path.parent
        files = sorted(folder.glob("*.index")) + sorted(folder.glob("*.data-*"))
        return _Contents("TensorFlow", folder, files, metadata, weights, weights)
    if (path / ONNX_FILE).exists():
        metadata = read_metadata(path, trim_vocabulary=False)
        engine = OnnxEngine(path, metadata)
        model = build_meta_model(metadata, path, pooler="pooler_output" in engine.outputs)
        return _Contents("ONNX", path, [path / ONNX_FILE], metadata, named_weights(model), None)
    metadata, stored = read_metadata_and_weights(path, allow_pickle, trim_vocabulary=False)
    folder = find_transformer_folder(path)
    model = build_meta_model(metadata, path, pooler=POOLER_WEIGHT in stored)
    layout = "sentence-transformers" if metadata.embedding else "Hugging Face"
    return _Contents(layout, folder, find_weight_files(folder), metadata, named_weights(model), stored)


def _writer_facts(folder: Path) -> dict[str, str]:
    version = read_json_object(find_config_file(folder)).get("transformers_version")
    return {"written_by": f"transformers {version}"} if version else {}


def _dtype_facts(stored: dict[str, Tensor] | None) -> dict[str, list[str]]:
    if stored is None:
        return {}
    return {"dtype": sorted(set(map(dtype_name, stored.values())))}


def _head_facts(metadata: ModelMetadata) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if metadata.labels:
        facts |= {"labels": list(metadata.labels), "problem_type": metadata.problem_type}
    if metadata.classifier_pooling != "pooler":
        facts["classifier_pooling"] = metadata.classifier_pooling
    if metadata.embedding:
        facts["embedding"] = metadata.embedding._asdict()
    for key in BERTIE_KEYS:
        if (value := getattr(metadata, key)) is not None:
            facts[key] = value
    return facts


def _vocabulary_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    tokens, ids = tokenizer.vocabulary.tokens, tokenizer.vocabulary.ids
    return {
        "vocabulary": len(tokens),
        "casing": "lower-cased" if tokenizer.lowercase else "cased",
        "special_tokens": {token: ids[token] for token in SPECIAL_TOKENS},
        "added_tokens": {token.content: ids[token.content] for token in tokenizer.added_tokens},
        "unused_slots": sum(token.startswith("[unused") for token in tokens),
    }


def _check_vocabulary_size(metadata: ModelMetadata) -> Check:
    """Check that every vocabulary entry that loading keeps has an embedding."""
    tokenizer, config = metadata.tokenizer, metadata.config
    found = f"{len(tokenizer.vocabulary):,} entries, {config.vocab_size:,} embeddings"
    try:
        trim_tokenizer(tokenizer, config, "")
    except ModelError:
        return Check("vocabulary fits the embeddings", False, found)
    return Check("vocabulary fits the embeddings", True, found)


def _check_casing(tokenizer: Tokenizer) -> Check:
    """Check that the tokenizer lower-cases text unless the vocabulary is cased.

    A mismatch is the most common fault of a copied directory.
    """
    added = {token.content for token in tokenizer.added_tokens}  # @USER does not make a vocabulary cased
    is_cased = has_upper_case(token for token in tokenizer.vocabulary.tokens if token not in added)
    found = f"the vocabulary has {'' if is_cased else 'no '}upper-case letters"
    return Check("casing matches the vocabulary", is_cased != tokenizer.lowercase, found)


def _check_weights(expected: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> list[Check]:
    missing = [name for name in expected if name not in stored]
    mismatched = [
        f"{name} {tuple(stored[name].shape)}, not {tuple(weight.shape)}"
        for name, weight in expected.items()
        if name in stored and stored[name].shape != weight.shape
    ]
    unexpected = [name for name in stored if name not in expected and name not in TIED_WEIGHTS]
    supported = {name: weight for name, weight in stored.items() if weight.dtype in SUPPORTED_DTYPES}
    quantized = [
        f"{name} {dtype_name(weight)}"
        for name, weight in stored.items()
        if name in expected and name not in supported
    ]
    not_finite = [name for name, weight in supported.items() if not weight.isfinite().all()]
    return [
        _check_no_faults("weights complete", [*missing, *mismatched, *quantized], f"{len(expected):,}"),
        _check_no_faults("no unexpected weights", unexpected),
        _check_tied(stored, path),
        _check_no_faults("weights finite", not_finite),
    ]


def _check_no_faults(name: str, faults: list[str], success: str = "") -> Check:
    """Return a check that passes if there are no faults, and lists the first few."""
    more = f", … ({len(faults)})" if len(faults) > MAX_LISTED_WEIGHTS else ""
    return Check(name, not faults, ", ".join(faults[:MAX_LISTED_WEIGHTS]) + more if faults else success)


def _check_tied(stored: dict[str, Tensor], path: Path) -> Check:
    try:
        merge_tied_weights(dict(stored), path)
    except ModelError as error:
        return Check("decoder tied", False, str(error).removeprefix(f"{path}: "))
    return Check("decoder tied", True, "")
