"""`bertie convert`"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bertie.commands.options import AllowPickle


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A model directory of bertie, transformers or sentence-transformers, or an original "
            "TensorFlow checkpoint: its folder, or its prefix, such as bert_model.ckpt.",
        ),
    ],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; not there yet.")],
    to: Annotated[
        Literal["bertie", "huggingface", "sentence-transformers", "tensorflow"],
        typer.Option(
            help="bertie and huggingface are one layout: model.safetensors, config.json and the tokenizer's "
            "files. sentence-transformers is the same for the encoder alone, with how it embeds."
        ),
    ],
    allow_pickle: AllowPickle = False,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--uncased",
            help="Whether upper-case letters are kept. Google's files and a bare vocab.txt do not say: it is "
            "told from the folder's name or the vocabulary if not given.",
        ),
    ] = None,
) -> None:
    """Write a model in another layout. Nothing is overwritten."""
    from bertie.model.formats.conversion import convert

    metadata = convert(source, output, to, allow_pickle, None if cased is None else not cased)
    casing = "uncased" if metadata.tokenizer.lowercase else "cased"
    print(f"{output}: {metadata.architecture}, {casing}")
