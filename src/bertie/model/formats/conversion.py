"""Convert models between the layouts of different libraries.

bertie and Hugging Face share a layout; sentence-transformers and google-research/bert have others.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bertie.base.checksums import SUMS_FILE, find_unlisted
from bertie.base.errors import SettingsError
from bertie.base.outputs import lock_output
from bertie.base.texts import escape_markdown
from bertie.model.formats import tensorflow
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.formats.weights import load_model, save_model
from bertie.model.heads import EncoderModel, Model

# Files by which `force` recognizes a model directory of any layout.
CONFIG_FILES = ("config.json", tensorflow.BERT_CONFIG_FILE)

Layout = Literal["bertie", "huggingface", "sentence-transformers", "tensorflow"]


def convert(
    source: Path,
    output: Path,
    layout: Layout,
    allow_pickle: bool = False,
    lowercase: bool | None = None,
    *,
    force: bool = False,
) -> ModelMetadata:
    """Write the model in `source` to `output`, atomically, in another layout.

    Args:
        source: a model in any layout.
        output: the new directory.
        layout: the layout of `output`. "bertie" and "huggingface" are the same;
            "sentence-transformers" and "tensorflow" are described in the modules of these names.
        allow_pickle: also read `pytorch_model.bin`; see `read_weights`.
        lowercase: whether the tokenizer lower-cases text; None keeps the setting of `source`.
        force: replace a model that is in `output` already.

    Returns:
        The metadata of the written model.

    Raises:
        DataError: a JSON file in `source` is damaged.
        ModelError: there is no model in `source`, it cannot be read, or `layout` cannot hold it.
        SettingsError: `output` exists and `force` is false, or it cannot be created.
        BertieError: another process writes to `output`.
    """
    with lock_model(output, source_files(source), force):
        return _convert(source, output, layout, allow_pickle, lowercase)


@contextmanager
def lock_model(output: Path, inputs: Iterable[Path], force: bool) -> Iterator[None]:
    """Make this process the only writer of a model directory.

    Args:
        output: the directory.
        inputs: files and directories that it must not replace.
        force: replace a model that is in `output` already, but not a directory with a file that is not in its
            SHA256SUMS.

    Raises:
        SettingsError: as in `check_output`, or there is such a file.
        BertieError: another process writes to `output`.
    """
    with lock_output(output, force=force, inputs=inputs, replaces=CONFIG_FILES):
        if output.is_dir() and (unlisted := find_unlisted(output)):
            raise SettingsError(
                f"{unlisted}: not in {output / SUMS_FILE}, so bertie did not write it, and --force does not "
                f"replace the folder; choose another name"
            )
        yield


def _convert(
    source: Path, output: Path, layout: Layout, allow_pickle: bool, lowercase: bool | None
) -> ModelMetadata:
    model, metadata = load_any(source, allow_pickle)
    if lowercase is not None:
        metadata = replace(metadata, tokenizer=metadata.tokenizer.replace(lowercase=lowercase))
    if layout == "tensorflow":
        tensorflow.save_model(output, model, metadata)
        return metadata
    if layout == "sentence-transformers":
        model, metadata = _remove_head(model, metadata)
    card = f"# {escape_markdown(output.name)}\n\nConverted by bertie from {escape_markdown(source.name)}.\n"
    if (readme := source / "README.md").is_file():
        card = readme.read_text(encoding="utf-8", errors="replace")
    save_model(output, model, metadata, card)
    return metadata


def load_any(source: Path, allow_pickle: bool = False) -> tuple[Model | EncoderModel, ModelMetadata]:
    """Load a model in any layout.

    See `weights.load_model` and `tensorflow.load_model`.
    """
    if is_tensorflow_checkpoint(source):
        return tensorflow.load_model(source)
    return load_model(source, allow_pickle)


def source_files(source: Path) -> list[Path]:
    """Return the paths that an output must not replace.

    They are a directory, or the files of a checkpoint.
    """
    return [source, Path(f"{source}.index")]


def is_tensorflow_checkpoint(path: Path) -> bool:
    """Return whether a path is a checkpoint of google-research/bert.

    Such a path is the checkpoint's folder, or the prefix of its files.
    """
    if path.is_dir():
        has_other_weights = any(path.glob("*.safetensors")) or any(path.glob("*.bin"))
        return any(path.glob("*.index")) and not has_other_weights
    return Path(f"{path}.index").exists()


def _remove_head(model: Model | EncoderModel, metadata: ModelMetadata) -> tuple[EncoderModel, ModelMetadata]:
    """Return a model's encoder and its metadata, for embedding texts."""
    encoder = EncoderModel(metadata.config)
    encoder.bert = model.bert
    embedding = metadata.embedding or EmbeddingConfig()
    return encoder, ModelMetadata(
        metadata.config,
        encoder.architecture,
        (),
        metadata.tokenizer,
        max_seq_length=metadata.max_seq_length,
        embedding=embedding._replace(max_seq_length=embedding.max_seq_length or metadata.max_seq_length),
        bilstm=metadata.bilstm,
        sentence_transformers_config=metadata.sentence_transformers_config,
    )
