"""A model directory -> one that ONNX Runtime computes, with what that costs measured in its card."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertie.base.errors import DataError, SettingsError
from bertie.base.files import atomic_directory, write_text
from bertie.inference.predictor import load
from bertie.inference.records import input_format, read_records
from bertie.model.engines.onnx_engine import ONNX_FILE
from bertie.model.formats.conversion import is_tensorflow, load_any
from bertie.model.formats.directory import ModelMetadata, write_metadata
from bertie.model.formats.onnx import Quantization, save_onnx
from bertie.tasks.evaluation import ARCHITECTURES, answer, load_for_task
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.task import Task


class Measured(NamedTuple):
    """One figure of a file, before and after; what compares the two stands in `after` alone."""

    file: str
    name: str
    before: float | None
    after: float


def export(
    source: Path,
    output: Path,
    quantization: Quantization,
    task: Task[Any, Any] | None = None,
    dev: Sequence[Path] = (),
) -> list[Measured]:
    """Write the model in `source` to `output`, which is whole or not there, and measure the two.

    Args:
        source: a model in any layout.
        output: the new directory.
        quantization: what becomes int8.
        task: what a fine-tuned model is measured by.
        dev: files with gold labels; of an encoder, texts. Not of TensorFlow checkpoints.

    Raises:
        DataError: a file cannot be read.
        ModelError: there is no model, or one that cannot be exported, or it does not fit the task.
        SettingsError: `output` is there already, or the model has nothing that could be measured.
    """
    if output.exists():
        raise SettingsError(f"{output}: already there; name another directory, or remove it")
    if dev and is_tensorflow(source):
        raise SettingsError(f"{source}: --dev measures model directories; make one with `bertie convert`")
    model, metadata = load_any(source)
    with atomic_directory(output) as temporary:
        write_metadata(temporary, metadata, card="")
        save_onnx(temporary / ONNX_FILE, model, metadata.config, quantization)
        rows = [row for file in dev for row in _measure(source, temporary, metadata, task, file)]
        write_text(temporary / "README.md", _card(output.name, metadata, quantization, rows))
    return rows


def _measure(
    source: Path, exported: Path, metadata: ModelMetadata, task: Task[Any, Any] | None, file: Path
) -> Iterator[Measured]:
    if metadata.architecture == "BertModel":
        records = read_records(file, input_format(file), {"text": "text"})
        texts = [record.texts[0] for record in records if not record.is_blank]
        if not texts:
            raise DataError(f"{file}: empty: no texts to measure by")
        before, after = (load(path).embed(texts, normalize=True) for path in (source, exported))
        cosines = (before * after).sum(axis=1)
        yield Measured(file.name, "mean cosine with float32", None, float(cosines.mean()))
    elif metadata.architecture in ARCHITECTURES.values():
        assert task is not None
        yield from _compare_answers(source, exported, task, file)
    else:
        raise SettingsError(f"--dev measures encoders and fine-tuned models, not {metadata.architecture}")


def _compare_answers(source: Path, exported: Path, task: Task[Any, Any], file: Path) -> Iterator[Measured]:
    predictions, scores = [], []
    for path in (source, exported):
        loaded = load_for_task(task, path)
        examples = loaded.task.read(file, labelled=True)
        predictions.append(answer(loaded, examples))
        scores.append(loaded.task.score(examples, predictions[-1]))
    if loaded.task.problem_type != "regression":
        yield Measured(file.name, "answers equal to float32's", None, share_equal(*predictions))
    for name, before in scores[0].items():
        yield Measured(file.name, name, before, scores[1][name])


def share_equal(before: Any, after: Any) -> float:
    """How many of a task's predictions are the same, in percent: labels, tags, answers' texts."""
    if isinstance(before, SpanPredictions):
        before, after = before.texts, after.texts
    elif isinstance(before, list):  # the tags of each sentence
        before, after = [*chain.from_iterable(before)], [*chain.from_iterable(after)]
    same = [np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    return 100 * float(np.mean(same))


def _card(name: str, metadata: ModelMetadata, quantization: Quantization, rows: Sequence[Measured]) -> str:
    """The directory's README.md."""
    parts = [name for name, rounded in quantization._asdict().items() if rounded]
    precision = f"int8 in the {' and the '.join(parts)}, float32 elsewhere" if parts else "float32"
    table = ["| file | | float32 | exported |", "|---|---|---|---|"] if rows else []
    for file, name, before, after in rows:
        table.append(f"| {file} | {name} | {'' if before is None else f'{before:.2f}'} | {after:.4g} |")
    return "\n".join(
        [
            "---",
            "library_name: onnx",
            "tags: [bert, onnx]",
            "---",
            f"# {name}",
            "",
            f"Exported by bertie: {metadata.architecture} in `{ONNX_FILE}`: {precision}.",
            "",
            *table,
            "",
        ]
    )
