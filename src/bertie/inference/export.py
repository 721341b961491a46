"""Export a model for ONNX Runtime, and measure the effect on its predictions."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertie import __version__
from bertie.base.checksums import write_sums
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import atomic_directory, write_text
from bertie.base.memory import is_missing
from bertie.base.rows import read_lines, read_rows
from bertie.base.texts import escape_markdown, is_blank
from bertie.inference.predictor import load
from bertie.inference.records import input_format
from bertie.model.engines.onnx_engine import ONNX_FILE
from bertie.model.formats.conversion import is_tensorflow_checkpoint, load_any, lock_model, source_files
from bertie.model.formats.directory import ModelMetadata, write_metadata
from bertie.model.formats.onnx import Quantization, save_onnx
from bertie.tasks.evaluation import ARCHITECTURES, compute_logits, load_for_task
from bertie.tasks.task import Task


class Measurement(NamedTuple):
    """A metric on one file, before and after the export.

    Attributes:
        file: name of the file.
        name: name of the metric.
        before: value for the source; None for a metric that compares the two models.
        after: value for the exported model.
    """

    file: str
    name: str
    before: float | None
    after: float

    def format(self) -> tuple[str, str]:
        """Return both values as text, "" for a missing one."""
        if self.before is None:
            return "", f"{self.after:.4g}"
        return f"{self.before:.2f}", f"{self.after:.2f}"


def export(
    source: Path,
    output: Path,
    quantization: Quantization,
    task: Task[Any, Any] | None = None,
    dev: Sequence[Path] = (),
    *,
    force: bool = False,
) -> list[Measurement]:
    """Export a model for ONNX Runtime, and compare the exported model with its source.

    Args:
        source: a model in any layout that bertie reads.
        output: the directory to write; it appears once it is complete.
        quantization: which parts to round to int8.
        task: the task of a fine-tuned model, for its metrics.
        dev: files to measure on, with gold labels, or with texts for an encoder. Measuring requires
            a model directory as the source, not a TensorFlow checkpoint.
        force: replace a model that is in `output` already.

    Returns:
        The measurements; the model card in `output` lists them too.

    Raises:
        DataError: a file cannot be read.
        ModelError: `source` has no model, or one that cannot be exported or does not fit the task.
        SettingsError: `output` exists and `force` is false, or it cannot be created; there is no
            metric for this kind of model; or no part has the 8 bits that `quantization` asks for.
        BertieError: another process writes to `output`.
    """
    if quantization.weight_bits == 8 and not (quantization.layers or quantization.embeddings):
        raise SettingsError("weight_bits = 8: only weights in int8 have 8 bits; add --int8 (int8=True)")
    if dev and is_tensorflow_checkpoint(source):
        raise SettingsError(
            f"{source}: --dev needs a model directory; make one from the checkpoint with `bertie convert`"
        )
    with (
        lock_model(output, [*source_files(source), *dev], force),
        atomic_directory(output) as temporary,
    ):
        model, metadata = load_any(source)
        write_metadata(temporary, metadata, card="")
        save_onnx(temporary / ONNX_FILE, model, metadata.config, quantization)
        measurements = [row for file in dev for row in _measure(source, temporary, metadata, task, file)]
        write_text(temporary / "README.md", _card(output.name, source, metadata, quantization, measurements))
        write_sums(temporary)
    return measurements


def _measure(
    source: Path, exported: Path, metadata: ModelMetadata, task: Task[Any, Any] | None, file: Path
) -> Iterator[Measurement]:
    if metadata.architecture == "BertModel":
        yield _compare_embeddings(source, exported, file, getattr(task, "text", "text"))  # the column
    elif metadata.architecture in ARCHITECTURES.values():
        if task is None:
            raise SettingsError("dev: a fine-tuned model is measured on a task; give its task too")
        yield from _compare_predictions(source, exported, task, file)
    else:
        raise SettingsError(
            f"--dev: no metric for {metadata.architecture}; only encoders and fine-tuned models have one"
        )


def _compare_embeddings(source: Path, exported: Path, file: Path, column: str) -> Measurement:
    if input_format(file) == "text":
        values: Sequence[Any] = list(read_lines(file))
    else:
        values = read_rows(file, [column], options={column: "--text NAME"}).columns[column]
    texts = [text for text in values if not (is_missing(text) or (isinstance(text, str) and is_blank(text)))]
    if not texts:
        raise DataError(f"{file}: no texts; give a file with texts to embed")
    before, after = (load(path).embed(texts, normalize=True) for path in (source, exported))
    cosines = (before * after).sum(axis=1)
    return Measurement(file.name, "mean cosine with float32", None, float(cosines.mean()))


def _compare_predictions(
    source: Path, exported: Path, task: Task[Any, Any], file: Path
) -> Iterator[Measurement]:
    models = [load_for_task(task, path) for path in (source, exported)]
    first, task = models[0], models[0].task  # both models have the same labels, tokenizer and length
    examples = task.read(file, labelled=True)
    inputs = task.encode(examples, first.tokenizer, first.max_seq_length)
    first.report_truncated(inputs, file.name)
    predictions = [task.decode(examples, inputs, compute_logits(model.engine, inputs)) for model in models]
    scores = [task.score(examples, answers) for answers in predictions]
    if task.problem_type != "regression":
        flat = map(task.flatten_predictions, predictions)
        yield Measurement(file.name, "agreement with float32, %", None, percent_equal(*flat))
    for name, before in scores[0].items():
        yield Measurement(file.name, name, before, scores[1][name])


def percent_equal(before: Any, after: Any) -> float:
    """Return the percentage of equal predictions: labels, tags or answers."""
    equal = [np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    return 100 * float(np.mean(equal))


def _card(
    name: str,
    source: Path,
    metadata: ModelMetadata,
    quantization: Quantization,
    measurements: Sequence[Measurement],
) -> str:
    """Return the text of the directory's README.md."""
    quantized = [part for part in ("layers", "embeddings") if getattr(quantization, part)]
    precision = "float32"
    if quantized:
        precision = f"int8 in the {' and the '.join(quantized)}, float32 elsewhere"
    if quantization.weight_bits == 8:
        precision += "; weights of 8 bits, for processors with VNNI"
    origin = escape_markdown("/".join(source.resolve().parts[-2:]))
    table = ["| file | | float32 | exported |", "|---|---|---|---|"] if measurements else []
    for row in measurements:
        table.append(f"| {escape_markdown(row.file)} | {row.name} | {' | '.join(row.format())} |")
    return "\n".join(
        [
            "---",
            "library_name: onnx",
            "tags: [bert, onnx]",
            "---",
            f"# {escape_markdown(name)}",
            "",
            f"Exported from {origin} by bertie {__version__} on "
            f"{datetime.now(UTC):%Y-%m-%d}: {metadata.architecture} in `{ONNX_FILE}`: {precision}.",
            "",
            *table,
            "",
        ]
    )
