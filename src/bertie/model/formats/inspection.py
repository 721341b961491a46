"""What a model directory holds, and whether it fits together."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bertie.base.errors import ModelError
from bertie.base.files import read_json_object
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine
from bertie.model.formats import tensorflow
from bertie.model.formats.conversion import is_tensorflow
from bertie.model.formats.directory import ModelMetadata, config_file, fit_tokenizer, read_metadata
from bertie.model.formats.huggingface import TIED, check_tied, weight_files
from bertie.model.formats.sentence_transformers import transformer_folder
from bertie.model.formats.weights import POOLER, empty_model, named_weights, read_parts
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS

MAX_NAMED = 3  # weights in a finding
SIZES = (  # of BertConfig; the paper's L, H, A and 4H come first
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "is_decoder",
)
EMBEDDINGS = "_embeddings.weight"  # how the names of the three tables end


class Check(NamedTuple):
    """Something that should be so, whether it is, and what was found."""

    name: str
    passed: bool
    found: str


class Inspection(NamedTuple):
    """Facts under the names of config.json where it has them, and checks."""

    facts: dict[str, Any]
    checks: list[Check]


def inspect_model(path: Path, allow_pickle: bool = False) -> Inspection:
    """Look at a model in any layout; what does not fit together is found, not raised.

    Raises:
        ModelError: it cannot be read at all.
    """
    stored: dict[str, Tensor] | None = None  # of an exported graph, whose weights have other names
    if is_tensorflow(path):
        model, metadata = tensorflow.load_model(path)
        stored = named_weights(model)
        folder = path if path.is_dir() else path.parent
        layout, files = "TensorFlow", sorted(folder.glob("*.index")) + sorted(folder.glob("*.data-*"))
    elif (path / ONNX_FILE).exists():
        metadata = read_metadata(path, fit=False)
        engine = OnnxEngine(path, metadata)
        model = empty_model(metadata, path, pooler="pooler_output" in engine.outputs)
        folder, layout, files = path, "ONNX", [path / ONNX_FILE]
    else:
        metadata, stored = read_parts(path, allow_pickle, fit=False)
        folder = transformer_folder(path)
        model = empty_model(metadata, path, pooler=POOLER in stored)
        layout = "sentence-transformers" if metadata.embedding else "Hugging Face"
        files = weight_files(folder)
    expected = named_weights(model)
    sizes = {name: weight.numel() for name, weight in expected.items()}
    embeddings = sum(size for name, size in sizes.items() if name.endswith(EMBEDDINGS))
    facts = {
        "layout": layout,
        **_written_by(folder),
        "files": {file.name: file.stat().st_size for file in files},
        **_dtypes(stored),
        "architecture": metadata.architecture,
        **_head(metadata),
        **{name: getattr(metadata.config, name) for name in SIZES},
        "parameters": sum(sizes.values()),
        "parameters_without_embeddings": sum(sizes.values()) - embeddings,
        **_vocabulary(metadata.tokenizer),
    }
    checks = [_fits(metadata), _casing(metadata.tokenizer)]
    if stored is not None:
        checks += _weight_checks(expected, stored, path)
    return Inspection(facts, checks)


def _dtypes(stored: dict[str, Tensor] | None) -> dict[str, list[str]]:
    if stored is None:
        return {}
    return {"dtype": sorted({str(weight.dtype).removeprefix("torch.") for weight in stored.values()})}


def _written_by(folder: Path) -> dict[str, str]:
    version = read_json_object(config_file(folder)).get("transformers_version")
    return {"written_by": f"transformers {version}"} if version else {}


def _head(metadata: ModelMetadata) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if metadata.labels:
        facts |= {"labels": list(metadata.labels), "problem_type": metadata.problem_type}
    if metadata.embedding:
        facts["embedding"] = metadata.embedding._asdict()
    for key in ("null_threshold", "max_seq_length"):
        if (value := getattr(metadata, key)) is not None:
            facts[key] = value
    return facts


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    tokens = tokenizer.vocabulary.tokens
    return {
        "vocabulary": len(tokens),
        "casing": "lower-cased" if tokenizer.lowercase else "cased",
        "special_tokens": {token: tokenizer.vocabulary.ids[token] for token in SPECIAL_TOKENS},
        "added_tokens": {token: tokenizer.vocabulary.ids[token] for token in tokenizer.added_tokens},
        "unused_slots": sum(token.startswith("[unused") for token in tokens),
    }


def _fits(metadata: ModelMetadata) -> Check:
    """Entries that no text has need no embeddings: the model loads without them."""
    tokenizer, config = metadata.tokenizer, metadata.config
    found = f"{len(tokenizer.vocabulary):,} entries, {config.vocab_size:,} embeddings"
    try:
        fit_tokenizer(tokenizer, config, "")
    except ModelError:
        return Check("vocabulary fits the embeddings", False, found)
    return Check("vocabulary fits the embeddings", True, found)


def _weight_checks(expected: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> list[Check]:
    missing = [name for name in expected if name not in stored]
    misfits = [
        f"{name} {tuple(stored[name].shape)}, not {tuple(weight.shape)}"
        for name, weight in expected.items()
        if name in stored and stored[name].shape != weight.shape
    ]
    left_over = [name for name in stored if name not in expected and name not in TIED]
    infinite = [name for name, weight in stored.items() if not weight.isfinite().all()]
    return [
        _none("weights complete", [*missing, *misfits], f"{len(expected):,}"),
        _none("no weights left over", left_over),
        _tied(stored, path),
        _none("weights finite", infinite),
    ]


def _none(name: str, names: list[str], otherwise: str = "") -> Check:
    """A check that passes where there are no names; the first ones are its finding."""
    more = f", … ({len(names)})" if len(names) > MAX_NAMED else ""
    return Check(name, not names, ", ".join(names[:MAX_NAMED]) + more if names else otherwise)


def _casing(tokenizer: Tokenizer) -> Check:
    """A cased vocabulary lower-cased, or the other way round, is the commonest slip of a copied directory."""
    has = "has" if tokenizer.vocabulary.is_cased else "has no"
    passed = tokenizer.vocabulary.is_cased != tokenizer.lowercase
    return Check("casing is the vocabulary's", passed, f"the vocabulary {has} upper-case letters")


def _tied(stored: dict[str, Tensor], path: Path) -> Check:
    try:
        check_tied(dict(stored), path)
    except ModelError as error:
        return Check("decoder tied", False, str(error).removeprefix(f"{path}: "))
    return Check("decoder tied", True, "")
