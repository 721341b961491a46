"""Write a model in another layout, or for ONNX Runtime."""

from pathlib import Path
from typing import Literal

from bertie.api.arguments import PathLike
from bertie.base.arguments import checked
from bertie.base.environment import install_command
from bertie.base.errors import ModelError
from bertie.model.formats import conversion
from bertie.model.formats.conversion import Layout


@checked
def convert(
    model: PathLike,
    *,
    out: PathLike,
    to: Layout,
    allow_pickle: bool = False,
    cased: bool | None = None,
    force: bool = False,
) -> Path:
    """Write a model in another layout, like `bertie convert`.

    Args:
        model: a model directory of bertie, `transformers` or sentence-transformers, or a TensorFlow
            checkpoint of google-research/bert: its folder or its prefix, such as bert_model.ckpt.
        out: the directory to write.
        to: "bertie" or "huggingface", which are the same layout; "sentence-transformers", the encoder
            without its head; or "tensorflow".
        allow_pickle: also read pytorch_model.bin, a pickle; only tensors are unpickled.
        cased: whether the tokenizer keeps upper-case letters; by default as in the files of `model`, or
            as the vocabulary suggests.
        force: replace a model that bertie wrote to `out` before.

    Returns:
        The directory that was written.

    Raises:
        ModelError: there is no model at `model`, it cannot be read, or the layout cannot hold it.
        DataError: a JSON file of `model` is damaged.
        SettingsError: `out` exists and `force` is false, or it cannot be created.

    Example:
        >>> bertie.load(bertie.convert("run/model", out="encoder", to="sentence-transformers"))
        Predictor('encoder', BertModel)
    """
    output, lowercase = Path(out), None if cased is None else not cased
    conversion.convert(Path(model), output, to, allow_pickle, lowercase, force=force)
    return output


@checked
def export(
    model: PathLike,
    *,
    out: PathLike,
    int8: bool = False,
    int8_embeddings: bool = False,
    weight_bits: Literal[7, 8] = 7,
    force: bool = False,
) -> Path:
    """Write a model for ONNX Runtime, which needs no PyTorch, like `bertie export`.

    `load` reads the exported model. `bertie export --dev FILE` also measures how its predictions differ.

    Args:
        model: the model to export, in any layout that `convert` reads, except pickles.
        out: the directory to write.
        int8: multiply in int8, two to three times as fast, but less exact.
        int8_embeddings: store the word embeddings in int8, so that the file is smaller.
        weight_bits: with `int8`: the bits of a weight. 8 is more exact, but x86 processors need VNNI for it.
        force: replace a model that bertie wrote to `out` before.

    Returns:
        The directory that was written.

    Raises:
        ModelError: there is no model at `model`, it cannot be read, or it cannot be exported; or the
            package onnx is not installed.
        SettingsError: `out` exists and `force` is false, or it cannot be created.

    Example:
        >>> exported = bertie.load(bertie.export("reviews/model", out="reviews-onnx"))
        >>> exported.labels
        ('1', '5')
    """
    try:  # here, because `convert` needs no onnx
        from bertie.inference import export as exporting
        from bertie.model.formats.onnx import Quantization
    except ModuleNotFoundError:
        raise ModelError(f"{model}: an export needs onnx: {install_command('onnx')}") from None
    output, quantization = Path(out), Quantization(int8, int8_embeddings, weight_bits)
    exporting.export(Path(model), output, quantization, force=force)
    return output
