"""`bertie export`"""

from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.task_options import (
    Columns,
    KindOf,
    Label,
    Pair,
    Separator,
    TaskName,
    Text,
    custom_task,
    resolve_task,
)


def export(
    directory: Annotated[Path, typer.Argument(help="A model directory.")],
    onnx: Annotated[
        Path, typer.Option(metavar="OUT", help="The directory to write: what ONNX Runtime computes.")
    ],
    int8: Annotated[
        bool, typer.Option("--int8", help="Multiply in int8: two to three times faster, less exact.")
    ] = False,
    int8_embeddings: Annotated[
        bool, typer.Option("--int8-embeddings", help="The word embeddings in int8: a smaller file.")
    ] = False,
    dev: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file with gold labels, or texts for an encoder, to measure what it costs; may be given "
            "several times. The figures stand in the card."
        ),
    ] = None,
    task: TaskName = None,
    kind: KindOf = "texts",
    text: Text = "text",
    pair: Pair = None,
    label: Label = "label",
    separator: Separator = None,
    columns: Columns = None,
) -> None:
    """Write a model for ONNX Runtime: what comes out answers without torch, here and elsewhere."""
    from bertie.inference.export import export
    from bertie.model.formats.onnx import Quantization

    judged = resolve_task(task, custom_task(kind, text, pair, label, separator, columns))
    for file, name, before, after in export(
        directory, onnx, Quantization(int8, int8_embeddings), judged, dev or []
    ):
        print(f"{file:<16} {name:<26} {'' if before is None else f'{before:.2f} → '}{after:.4g}")
