"""`bertie export`: write a model for ONNX Runtime."""

from pathlib import Path
from typing import Annotated, cast

import typer

from bertie.commands.options import Force, NoVerify, local_path_argument, local_path_option
from bertie.commands.task_options import (
    Columns,
    Kind,
    MeasuredLabel,
    MeasuredSeparator,
    MeasuredTask,
    MeasuredText,
    Pair,
    read_columns,
)


def export(
    directory: Annotated[Path, local_path_argument("A model directory.", "DIR")],
    onnx: Annotated[Path, local_path_option("The directory of the exported model to write.", metavar="OUT")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Multiply in int8: two to three times faster, less exact.")
    ] = False,
    int8_embeddings: Annotated[
        bool, typer.Option("--int8-embeddings", help="Store the word embeddings in int8: a smaller file.")
    ] = False,
    weight_bits: Annotated[
        int,
        typer.Option(
            min=7,
            max=8,
            help="With --int8: the bits of a weight. 8 is more exact, but x86 processors need VNNI for it.",
        ),
    ] = 7,
    dev: Annotated[
        list[Path] | None,
        local_path_option(
            "A file with gold labels (for an encoder: texts) on which to measure the loss of accuracy; "
            "may be repeated. The scores are written into the model card."
        ),
    ] = None,
    task: MeasuredTask = None,
    kind: Kind = "texts",
    text: MeasuredText = None,
    pair: Pair = None,
    label: MeasuredLabel = None,
    separator: MeasuredSeparator = None,
    columns: Columns = None,
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Write an ONNX model, which runs without torch.

    The output appears whole or not at all, even if the command is killed.
    """
    from bertie.api.task_data import measured_task
    from bertie.inference.export import export
    from bertie.model.formats.onnx import Quantization, WeightBits

    models = [directory] if dev else []
    chosen = measured_task(task, models, kind, text, pair, label, separator, read_columns(columns))
    quantization = Quantization(int8, int8_embeddings, cast(WeightBits, weight_bits))
    scores = export(directory, onnx, quantization, chosen, dev or [], force=force)
    for row in scores:
        print(f"{row.file:<16} {row.name:<26} {' → '.join(filter(None, row.format()))}")
    megabytes = sum(file.stat().st_size for file in onnx.iterdir()) / 1e6
    print(f"{onnx}: exported, {megabytes:,.1f} MB")
