"""`bertie convert`: write a model in another layout."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bertie.commands.options import AllowPickle, Force, NoVerify, local_path_argument


def convert(
    source: Annotated[
        Path,
        local_path_argument(
            "A model directory of bertie, transformers or sentence-transformers, or an original "
            "TensorFlow checkpoint: its folder or its prefix, such as bert_model.ckpt.",
            "IN",
        ),
    ],
    output: Annotated[Path, local_path_argument("The directory to write.", "OUT")],
    to: Annotated[
        Literal["bertie", "huggingface", "sentence-transformers", "tensorflow"],
        typer.Option(
            help="bertie and huggingface are the same layout: model.safetensors, config.json and the "
            "tokenizer's files. sentence-transformers is the encoder without its head, with its pooling."
        ),
    ],
    allow_pickle: AllowPickle = False,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--uncased",
            help="Whether the tokenizer keeps upper-case letters. Google's files and a bare vocab.txt do not "
            "say; by default bertie infers it from the folder's name or the vocabulary.",
        ),
    ] = None,
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Write a model in another layout.

    The output appears whole or not at all, even if the command is killed.
    """
    from bertie.model.formats.conversion import convert

    lowercase = None if cased is None else not cased
    metadata = convert(source, output, to, allow_pickle, lowercase, force=force)
    casing = "uncased" if metadata.tokenizer.lowercase else "cased"
    print(f"{output}: {metadata.architecture}, {casing}")
