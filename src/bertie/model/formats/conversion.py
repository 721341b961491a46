"""A model from any layout to any other."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from bertie.base.errors import SettingsError
from bertie.model.formats import tensorflow
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.sentence_transformers import Embedding
from bertie.model.formats.weights import load_model, save_model
from bertie.model.heads import EncoderModel, Model
from bertie.text.tokenizer import Tokenizer

Layout = Literal["bertie", "huggingface", "sentence-transformers", "tensorflow"]


def convert(
    source: Path, output: Path, layout: Layout, allow_pickle: bool = False, lowercase: bool | None = None
) -> ModelMetadata:
    """Write the model in `source` to `output`, which is whole or not there.

    Args:
        source: a model in any layout.
        output: the new directory.
        layout: what it is written as.
        allow_pickle: see `read_weights`.
        lowercase: whether text is lower-cased; as `source` says, or as it is told, if not given.

    Returns:
        What was written.

    Raises:
        ModelError: there is no model, or it cannot be read.
        SettingsError: `output` is there already.
    """
    if output.exists():
        raise SettingsError(f"{output}: already there; name another directory, or remove it")
    model, metadata = load_any(source, allow_pickle)
    if lowercase is not None:
        old = metadata.tokenizer
        tokenizer = Tokenizer(old.vocabulary, lowercase, old.max_word_characters, old.added_tokens)
        metadata = replace(metadata, tokenizer=tokenizer)
    if layout == "tensorflow":
        tensorflow.save_model(output, model, metadata)
        return metadata
    if layout == "sentence-transformers":
        model, metadata = _encoder(model, metadata)
    card = f"# {output.name}\n\nConverted by bertie from {source.name}.\n"
    if (readme := source / "README.md").is_file():
        card = readme.read_text(encoding="utf-8", errors="replace")
    save_model(output, model, metadata, card)
    return metadata


def load_any(source: Path, allow_pickle: bool = False) -> tuple[Model | EncoderModel, ModelMetadata]:
    """Read a model in any layout; see `load_model` and `tensorflow.load_model`."""
    if is_tensorflow(source):
        return tensorflow.load_model(source)
    return load_model(source, allow_pickle)


def is_tensorflow(path: Path) -> bool:
    """Whether a path is an original checkpoint: its folder, or the prefix of its files."""
    if path.is_dir():
        others = [*path.glob("*.safetensors"), *path.glob("*.bin")]
        return any(path.glob("*.index")) and not others
    return path.with_name(f"{path.name}.index").exists()


def _encoder(model: Model | EncoderModel, metadata: ModelMetadata) -> tuple[EncoderModel, ModelMetadata]:
    """The encoder alone, which embeds."""
    encoder = EncoderModel(metadata.config)
    encoder.bert = model.bert
    embedding = metadata.embedding or Embedding()
    return encoder, ModelMetadata(
        metadata.config,
        encoder.architecture,
        (),
        metadata.tokenizer,
        max_seq_length=metadata.max_seq_length,
        embedding=embedding._replace(max_seq_length=embedding.max_seq_length or metadata.max_seq_length),
        bilstm=metadata.bilstm,
        embedding_use=metadata.embedding_use,
    )
