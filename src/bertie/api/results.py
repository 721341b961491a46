"""The results of the API's functions."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from bertie.base.progress import format_number
from bertie.tasks.calibration import Calibration
from bertie.tasks.error_analysis import ErrorAnalysis
from bertie.tasks.task import Scores

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

    from bertie.inference.predictor import Predictor
    from bertie.training.search import Trial  # imports torch, which exported models do not need

MAX_ROWS = 20  # of a table that are shown, the last ones
MAX_CHARACTERS = 40  # of a cell, such as the message of a warning


class Metrics(Sequence[Mapping[str, Any]]):
    """A table, such as the rows of a run's metrics.jsonl.

    `metrics[i]` is a row, `metrics["loss"]` a column with None where a row lacks it, `metrics.select("kind",
    "evaluation")` the rows of one kind. A notebook shows the last rows.

    Example:
        >>> metrics = Metrics([{"kind": "train", "step": 1, "loss": 2.5}])
        >>> metrics["loss"]
        [2.5]
        >>> metrics
        kind   step  loss
        train  1     2.5
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = list(rows)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order of first appearance."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    @overload
    def __getitem__(self, key: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> "Metrics": ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        """Return a row, a part of the table, or a column."""
        if isinstance(key, str):
            if key not in self.columns:
                raise KeyError(f"no column {key!r}; there are: {', '.join(self.columns)}")
            return [row.get(key) for row in self._rows]
        return Metrics(self._rows[key]) if isinstance(key, slice) else self._rows[key]

    def select(self, column: str, value: Any) -> "Metrics":
        """Return the rows that have `value` in `column`.

        Example:
            >>> rows = [{"kind": "train", "loss": 2.5}, {"kind": "evaluation", "perplexity": 12.0}]
            >>> Metrics(rows).select("kind", "evaluation")["perplexity"]
            [12.0]
        """
        return Metrics([row for row in self._rows if row.get(column) == value])

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the table as a pandas DataFrame. pandas must be installed.

        Example:
            >>> Metrics([{"step": 1, "loss": 2.5}]).to_pandas().shape
            (1, 2)
        """
        import pandas

        return pandas.DataFrame(self._rows)

    def _shown(self) -> list[list[str]]:
        """Return the header and the last rows as text, without their empty columns."""
        rows = self._rows[-MAX_ROWS:]
        names = [name for name in self.columns if any(row.get(name) is not None for row in rows)]
        return [names, *([_text(row.get(name)) for name in names] for row in rows)]

    def __repr__(self) -> str:
        table = self._shown()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        hidden = len(self) - MAX_ROWS
        return "\n".join([*([f"… {hidden} earlier rows"] if hidden > 0 else []), *lines])

    def _repr_html_(self) -> str:
        header, *rows = ([html.escape(cell) for cell in row] for row in self._shown())
        head = "".join(f"<th>{cell}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if isinstance(value, list):
        text = ", ".join(map(_text, value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        text = format_number(value)
    else:
        text = "" if value is None else str(value)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


@dataclass(frozen=True)
class RunResult:
    """A finished run that has trained a model.

    path  the run's directory
    """

    path: Path

    @property
    def model_directory(self) -> Path:
        """The directory of the trained model.

        `transformers` loads it too, except left-to-right classifiers, models with a BiLSTM and
        contrastive classifiers.
        """
        return self.path / "model"

    @property
    def report(self) -> Path:
        """The HTML report with the curves of the run."""
        return self.path / "report.html"

    def load(self, device: str = "auto") -> "Predictor":
        """Load the trained model."""
        from bertie.inference.predictor import load

        return load(self.model_directory, device)


@dataclass(frozen=True)
class PretrainingResult(RunResult):
    """A finished pre-training run, which has all of a `RunResult`.

    path     the run's directory
    metrics  the rows of its metrics.jsonl

    Example:
        A trial of two steps. The list replaces the three phases of the recipe; the setting
        `phases.0.steps` would change the first one and keep the others:

        >>> trial = {"batch_size": 4, "phases": [{"steps": 2, "max_seq_length": 16}]}
        >>> run = bertie.pretrain("tiny-laptop", corpus="corpus", out="trial", settings=trial)
        >>> run.metrics.select("kind", "evaluation")["step"]
        [2]
        >>> len(run.load().fill_mask("the [MASK] sat."))  # one [MASK], with several predictions
        1
    """

    metrics: Metrics = field(repr=False)


@dataclass(frozen=True)
class FinetuningResult(PretrainingResult):
    """A finished fine-tuning run, which has all of a `PretrainingResult`.

    docs/finetuning.md lists the columns of each kind of data.

    scores       for each dev set, the scores of the kept model by name, in percent
    predictions  for each dev set, the kept model's predictions, in the order of the examples. An array has
                 the index of each example's class in the model's `labels`, or the index of its choice; a
                 flag for each of several labels; or a number. Tagging has a list of tags for each
                 sentence, and question answering an object whose `texts` are the answers.
    baselines    for each dev set, the scores of the majority baseline, which gives every example the most
                 frequent answer in training
    calibration  for each dev set, how well the probabilities of a classifier agree with its accuracy

    Example:
        Classes. The predictions are indices of labels:

        >>> rows = [{"text": "good film", "label": "pos"}, {"text": "bad film", "label": "neg"}] * 8
        >>> run = bertie.finetune("run/model", train=rows, dev=rows, out="classes", epochs=1)
        >>> labels = run.load().labels
        >>> {labels[index] for index in run.predictions["dev"]} <= {"pos", "neg"}
        True

        Tagged words, in columns with the names of other data sets:

        >>> rows = [{"tokens": ["Ada", "sat"], "ner_tags": ["B-PER", "O"]}] * 8
        >>> columns = {"words": "tokens", "tags": "ner_tags"}
        >>> options = {"kind": "tags", "columns": columns, "out": "tagger", "epochs": 1}
        >>> tagger = bertie.finetune("run/model", train=rows, **options).load()
        >>> text = "Ada sat down."
        >>> all(text[entity.start : entity.end] == entity.text for entity in tagger.tag(text))
        True

        Questions, as in SQuAD:

        >>> context = "Ada Lovelace was born in London."
        >>> row = {"id": "1", "question": "Where was Ada born?", "context": context}
        >>> row["answers"] = {"text": ["London"], "answer_start": [25]}
        >>> options = {"kind": "questions", "out": "answers", "epochs": 1, "max_seq_length": 64}
        >>> answering = bertie.finetune("run/model", train=[row], **options).load()
        >>> answering.answer("Where was she born?", context)[0].text in context
        True
    """

    scores: Mapping[str, Scores] = field(default_factory=dict)
    predictions: Mapping[str, Any] = field(default_factory=dict, repr=False)
    baselines: Mapping[str, Scores] = field(default_factory=dict, repr=False)
    calibration: Mapping[str, Calibration] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SearchResult(RunResult):
    """A finished search, which has all of a `RunResult`.

    path       the search's directory
    part       the dev set whose score chooses the model, the first one
    metric     the name of this score
    trials     every combination of settings, with the runs and the scores of each
    chosen     the trial with the highest mean score; the model is from its best run
    baselines  for each dev set, the scores of the majority baseline, as in a `FinetuningResult`
    """

    part: str
    metric: str
    trials: "Sequence[Trial]" = field(repr=False)
    chosen: "Trial"
    baselines: Mapping[str, Scores] = field(repr=False)

    @property
    def table(self) -> Metrics:
        """A row for each trial: its settings, its scores, and whether it was chosen."""
        return Metrics(
            [
                {
                    "batch_size": trial.batch_size,
                    "learning_rate": trial.learning_rate,
                    "epochs": trial.epochs,
                    "scores": list(trial.scores),
                    "mean": trial.mean,
                    "std": trial.std,
                    "chosen": trial is self.chosen,
                }
                for trial in self.trials
            ]
        )


@dataclass(frozen=True)
class EvaluationResult:
    """The scores of a model, or of a file of predictions, on each part of the data.

    Each field is a dict by part. Custom data have one part, "dev".

    scores       the scores by name, in percent
    analyses     the scores of each label (`by_label`), the confusion matrix with gold labels in rows
                 (`confusion_matrix`), and a sample of the wrong predictions (`mistakes`)
    predictions  the predictions, as in a `FinetuningResult`
    baselines    scores of the gold majority: the most frequent gold answer, given to every example. The
                 majority baseline of fine-tuning is the most frequent answer in training.
    """

    scores: dict[str, Scores]
    analyses: dict[str, ErrorAnalysis] = field(repr=False)
    predictions: dict[str, Any] = field(repr=False)
    baselines: dict[str, Scores] = field(repr=False)
