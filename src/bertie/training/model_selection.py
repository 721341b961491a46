"""Evaluate the model after each epoch of fine-tuning, and keep the best one.

It is saved with its model card.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertie import __version__
from bertie.base.files import read_json, write_json
from bertie.base.progress import Progress
from bertie.base.texts import escape_markdown
from bertie.model.engines.torch_engine import evaluation_engine
from bertie.model.formats.config import BERTIE_MODEL_TYPE
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import Model
from bertie.tasks.evaluation import EncodedExamples, Evaluation, evaluate
from bertie.tasks.task import Scores, Task
from bertie.training.checkpoints import TrainState
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.metrics_file import read_metrics

SCORES_FILE = "scores.json"


class ModelSelection:
    """Evaluates the model after each epoch, and saves it if it is to be kept.

    kept  evaluation of the saved model; None if this process has saved none
    """

    def __init__(
        self,
        task: Task[Any, Any],
        model: Model,
        metadata: ModelMetadata,
        parts: Mapping[str, EncodedExamples],
        baselines: Mapping[str, Scores],
        settings: FinetuningSettings,
        output: Path,
        sources: Mapping[str, str],
        class_weights: Mapping[str, float],
    ) -> None:
        self.task, self.model, self.metadata = task, model, metadata
        self.parts, self.baselines, self.settings = parts, baselines, settings
        self.output, self.sources, self.class_weights = output, sources, class_weights
        self.kept: Evaluation | None = None

    def evaluate_and_save(self, state: TrainState, progress: Progress) -> dict[str, float]:
        """Evaluate on every dev part; return its scores as `PART/METRIC`.

        If there has been no better main score for `patience` epochs, set `state.is_done`.
        """
        step = state.step
        with evaluation_engine(self.model, self.settings.in_float32()) as engine:
            evaluation = evaluate(self.task, engine, self.parts, self.metadata.embedding)
        metric = self.task.main_metric
        for part, scores in evaluation.scores.items():
            baseline = self.baselines.get(part)
            beside = f" (majority baseline {baseline[metric]:.2f})" if baseline else ""
            progress.print(f"step {step:,}: {part} {metric} {scores[metric]:.2f}{beside}")
        if not self.settings.keep_best or self._is_best(evaluation.scores):
            self._save(evaluation, step)
        state.is_done = self._is_out_of_patience(evaluation.scores)
        return {
            f"{part}/{metric}": value
            for part, scores in evaluation.scores.items()
            for metric, value in scores.items()
        }

    def _is_best(self, scores: Mapping[str, Scores]) -> bool:
        """Return whether the main score on the first dev part beats the saved model's."""
        files = (self.output / "model", self.output / SCORES_FILE)
        if not scores or not all(file.exists() for file in files):
            return True
        first, metric = next(iter(scores)), self.task.main_metric
        best = read_json(self.output / SCORES_FILE)["scores"][first][metric]
        return bool(scores[first][metric] > best)

    def _is_out_of_patience(self, scores: Mapping[str, Scores]) -> bool:
        """Return whether the best epoch is `patience` epochs ago.

        The scores are of this epoch; the rows in metrics.jsonl have the others.
        """
        if not self.settings.patience:
            return False
        first, metric = next(iter(scores)), self.task.main_metric
        rows = read_metrics(self.output / "metrics.jsonl")
        history = [row[f"{first}/{metric}"] for row in rows if row["kind"] == "evaluation"]
        history.append(scores[first][metric])
        return len(history) - 1 - history.index(max(history)) >= self.settings.patience

    def _save(self, evaluation: Evaluation, step: int) -> None:
        """Save the model, its predictions and its scores."""
        self.kept = evaluation
        task = evaluation.task
        metadata = replace(
            self.metadata,
            null_threshold=task.null_threshold,
            decision_thresholds=task.decision_thresholds,
            temperature=task.applied_temperature,
        )
        facts = {**self.sources, **describe_decisions(task, self.class_weights)}
        card = _model_card(self.task, metadata, facts, evaluation.scores, self.baselines)
        save_model(self.output / "model", self.model, metadata, card)
        for part, predictions in evaluation.predictions.items():
            file = self.output / "predictions" / part / self.task.predictions_file
            evaluation.task.write_predictions(self.parts[part].examples, predictions, file)
        calibration = {part: measured.as_json() for part, measured in evaluation.calibration.items()}
        scores = {
            "step": step,
            "scores": evaluation.scores,
            "majority_baseline": self.baselines,
            "class_weights": self.class_weights,
            "calibration": calibration,
        }
        write_json(self.output / SCORES_FILE, scores)


def describe_decisions(task: Task[Any, Any], class_weights: Mapping[str, float]) -> dict[str, str]:
    """Return facts about long texts, weights of labels and decisions.

    They are for a report and a model card.

    Args:
        task: the task, tuned on the first dev part.
        class_weights: the weight of each label in the loss; empty for equal weights.
    """
    facts = {}
    if class_weights:
        weights = (f"{label}: {weight:.4g}" for label, weight in class_weights.items())
        facts["class weights"] = ", ".join(weights)
    if task.long_texts.method == "head-tail":
        facts["long texts"] = "the first and the last tokens"
    if task.long_texts.method == "windows":
        facts["long texts"] = f"windows, {task.long_texts.pooling} of their logits"
    if task.decision_thresholds is not None:
        labels = task.labels[-len(task.decision_thresholds) :]  # of two classes, the second
        pairs = zip(labels, task.decision_thresholds, strict=True)
        limits = ", ".join(f"{label}: {limit:.4g}" for label, limit in pairs)
        facts["decision threshold"] = f"{limits}, tuned on dev"
    if task.applied_temperature is not None:
        facts["temperature"] = f"{task.applied_temperature:.4g}, fitted on dev"
    return facts


def _model_card(
    task: Task[Any, Any],
    metadata: ModelMetadata,
    sources: Mapping[str, str],
    scores: Mapping[str, Scores],
    baselines: Mapping[str, Scores],
) -> str:
    """Return the README.md of the model directory."""
    rows = [
        f"| {part} | {name} | {value:.2f} | {'' if baseline is None else f'{baseline:.2f}'} |"
        for part, part_scores in zip(map(escape_markdown, scores), scores.values(), strict=True)
        for name, value in part_scores.items()
        for baseline in [baselines.get(part, {}).get(name)]
    ]
    table = ["| part | score | percent | majority baseline |", "|---|---|---|---|", *rows] if rows else []
    facts = [f"- {name}: {escape_markdown(value)}" for name, value in sources.items()]
    library = "sentence-transformers" if task.head == "embedding" else "transformers"
    if metadata.model_type == BERTIE_MODEL_TYPE:
        library = "bertie"
    return "\n".join(
        [
            "---",
            f"library_name: {library}",
            f"tags: [bert, {task.head}]",
            "---",
            f"# A BERT fine-tuned with bertie: {escape_markdown(task.name)}",
            "",
            *facts,
            f"- date: {datetime.now(UTC):%Y-%m-%d}",
            f"- bertie: {__version__}",
            "",
            *([f"Labels: {', '.join(map(escape_markdown, task.labels))}.", ""] if task.labels else []),
            *table,
            "",
        ]
    )
