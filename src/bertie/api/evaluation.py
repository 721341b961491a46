"""Score a model, or a file of predictions, against gold labels."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertie.api.arguments import PathLike, as_paths
from bertie.api.results import EvaluationResult
from bertie.api.task_data import AnyTask, Kind, OnError, measured_task, official_files
from bertie.base.arguments import checked
from bertie.base.errors import SettingsError
from bertie.base.memory import Source, as_source
from bertie.tasks.ensemble import load_ensemble, predict_ensemble
from bertie.tasks.error_analysis import join_names
from bertie.tasks.evaluation import FineTunedModel


@checked
def evaluate(
    model: PathLike | Sequence[PathLike] | None = None,
    data: Any = None,
    *,
    task: str | None = None,
    predictions: PathLike | None = None,
    null_scores: PathLike | None = None,
    part: str | None = None,
    kind: Kind = "texts",
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    separator: str | None = None,
    columns: Mapping[str, Any] | None = None,
    on_error: OnError = "stop",
    max_seq_length: int | None = None,
    device: str = "auto",
    precision: Literal["float32", "bfloat16", "int8"] = "float32",
) -> EvaluationResult:
    """Score a model or predictions as the official scorers do, like `bertie evaluate`.

    Args:
        model: a fine-tuned model directory, or several, whose predictions are averaged. For STS-B and pairs,
            also an encoder, whose vectors are compared.
        data: examples with gold labels: a file or a table in memory, as in `finetune`; or the folder of a
            task's official files.
        task: a task of the paper, such as "mrpc" or "squad-v1"; custom data if not given.
        predictions: instead of `model`: anyone's predictions in the official format.
        null_scores: the null odds that belong to predictions for SQuAD v2.0 (null_odds.json).
        part: the official part to score; the task's dev parts if not given.
        kind, text, pair, label, separator, columns: as in `finetune`; all but kind by default as recorded.
        on_error: "skip" leaves out malformed rows of custom tables and rows without a text or a known label.
        max_seq_length: the longest sequence in tokens; as in fine-tuning if not given.
        device, precision: where the model computes, and the precision of its matrix products.

    Raises:
        SettingsError: arguments are missing or contradict each other.
        DataError, ModelError: the data, the predictions or a model cannot be read, or do not fit.

    Example:
        >>> rows = [{"review": "good film", "stars": "5"}, {"review": "bad film", "stars": "1"}]
        >>> result = bertie.evaluate("reviews/model", rows, text="review", label="stars")
        >>> sorted(result.scores["dev"])
        ['accuracy', 'f1_macro']
    """
    paths = [] if model is None else as_paths(model, "model")
    _check_arguments(paths, data, task, predictions, null_scores, on_error)
    source = as_source(data, "data")
    if task is None and isinstance(source, Path) and source.is_dir():
        raise SettingsError(f"{source}: a folder; give the name of its task, or a file of your own")
    chosen = measured_task(task, paths, kind, text, pair, label, separator, columns, on_error)
    parts = _gold_sources(chosen, source, part, is_single=predictions is not None)
    if task is not None:
        _check_labels(chosen, parts)
    if predictions is not None:
        scored = {n: _read_predictions(chosen, gold, predictions, null_scores) for n, gold in parts.items()}
    else:
        models = load_ensemble(chosen, paths, device, precision, max_seq_length)
        scored = {name: _predict(models, gold, name) for name, gold in parts.items()}
    return _join_scores(scored)


def _check_arguments(
    models: Sequence[Path],
    data: Any,
    task: str | None,
    predictions: PathLike | None,
    null_scores: PathLike | None,
    on_error: OnError,
) -> None:
    """Raise SettingsError if the arguments do not name exactly one thing to score.

    A task with its own function, such as BLiMP, is refused, too.
    """
    if task is not None and task.lower() == "blimp":
        raise SettingsError("blimp scores pre-trained models, without labels; call bertie.evaluate_blimp")
    if (not models) == (predictions is None):
        raise SettingsError("give either a model directory or a file of predictions")
    if null_scores is not None and predictions is None:
        raise SettingsError("null scores belong to predictions; give both, or omit the null scores")
    if predictions and on_error == "skip":
        raise SettingsError("on_error skip: predictions are for all rows; correct the malformed rows")
    if data is None:
        raise SettingsError("no data: give a table or file with gold labels, or the folder of a task's files")
    if task is not None and not isinstance(data, str | Path):
        raise SettingsError(
            f"data: task {task} reads its official files; give one of them or their folder, or leave task out"
        )


class _Scored(NamedTuple):
    """A task with its labels, labelled examples, and predictions for them."""

    task: AnyTask
    examples: Any
    predictions: Any


def _join_scores(scored: Mapping[str, _Scored]) -> EvaluationResult:
    """Score and analyze the predictions of each part."""
    result = EvaluationResult({}, {}, {}, {})
    for name, (task, examples, predictions) in scored.items():
        result.scores[name] = task.score(examples, predictions)
        result.analyses[name] = task.analyze_errors(examples, predictions)
        result.predictions[name] = predictions
        # Of the gold labels, since the training examples are not known here.
        if baseline := task.majority_baseline(examples, examples):
            result.baselines[name] = baseline
    return result


def _predict(models: Sequence[FineTunedModel], gold: Any, part: str) -> _Scored:
    """Predict the examples of one part."""
    task = models[0].task
    examples = task.read(gold, labelled=True)
    return _Scored(task, examples, predict_ensemble(models, examples, part))


def _gold_sources(task: AnyTask, source: Source, part: str | None, is_single: bool) -> dict[str, Any]:
    """Return the source of each part to score, by the part's name.

    `is_single` allows only one part.
    """
    parts = [part] if part else list(task.dev_parts)
    folder = source if isinstance(source, Path) and source.is_dir() else None
    known = ("train", *task.dev_parts, *task.test_parts) if folder else task.dev_parts
    if parts[0] not in known:
        raise SettingsError(f"part {part!r}: {task.name} has no such part; use {' or '.join(task.dev_parts)}")
    if folder:
        if is_single and len(parts) > 1:
            raise SettingsError(
                f"predictions are for one part; give its name as the part: {', '.join(parts)}"
            )
        return official_files(task, folder, parts)
    return {parts[0]: source}


def _check_labels(task: AnyTask, files: Mapping[str, Path]) -> None:
    """Check that the official file of a test part has labels, as only a copy with added labels has.

    Raises:
        SettingsError: it has none.
    """
    for file in files.values():
        if file.stem in task.test_parts:
            try:
                task.read(file, labelled=True)
            except SettingsError:
                task.read(file, labelled=False)  # raises if another column is missing
                raise SettingsError(
                    f"{file}: the labels of this part of {task.name} are not public; score "
                    f"{' or '.join(task.dev_parts)} instead (finetune writes predictions to submit)"
                ) from None


def _read_predictions(
    task: AnyTask, gold: Any, predictions: PathLike, null_scores: PathLike | None
) -> _Scored:
    predictions = Path(predictions)
    examples = task.read(gold, labelled=True)
    gold_labels = task.fitted(examples).labels
    task = task.fitted_to_predictions(examples, predictions)
    if new := [label for label in task.labels if label not in gold_labels]:
        print(f"labels that occur only in {predictions}: {join_names(new)}", file=sys.stderr)
    answers = task.read_predictions(examples, predictions)
    if null_scores is not None:
        answers = task.with_null_odds(examples, answers, Path(null_scores))
    return _Scored(task, examples, answers)
