"""The HTML reports of `bertie finetune` and `bertie search`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.base.progress import spell_duration
from bertie.reports.page import Cell, Page
from bertie.reports.pictures import (
    confusion_matrix,
    dots,
    finetuning_curves,
    reliability_diagram,
    scatter,
    threshold_curves,
)
from bertie.tasks.calibration import NUM_BINS, Calibration
from bertie.tasks.error_analysis import ErrorAnalysis
from bertie.tasks.task import Scores

if TYPE_CHECKING:
    from bertie.training.search import Search, Trial

MAX_LABELS_DRAWN = 30  # in the picture of scores; the table has all labels


def write_report(
    path: Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Scores],
    analyses: Mapping[str, ErrorAnalysis],
    settings_text: str,
    *,
    calibration: Mapping[str, Calibration],
    main_metric: str,
    baselines: Mapping[str, Scores],
    warnings: Sequence[str] = (),
    facts: Mapping[str, str],
) -> None:
    """Write the report of a fine-tuning run.

    Args:
        path: the HTML file to write.
        title: the title of the page.
        rows: the rows of metrics.jsonl.
        scores: the scores of each dev set by name, in percent; empty without a dev set.
        analyses: the error analysis of each dev set.
        settings_text: the run's settings, as TOML.
        calibration: the calibration on each dev set; empty where texts are not classified.
        main_metric: the score to draw.
        baselines: the scores of the majority class on the dev sets, as far as there are any.
        warnings: problems of the run, such as a model that always gives the same answer.
        facts: where the run comes from: the base model, the data, the date.
    """
    page = Page(title, "Fine-tuned by bertie")
    page.facts(facts)
    for warning in warnings:
        page.warning(warning)
    page.figures([*_score_figures(scores, baselines, main_metric), *_training_figures(rows)])
    if scores:
        beside = {name: values for part in scores for name, values in _columns(part, scores, baselines)}
        page.table(["score", *beside], _score_rows(beside), "In percent, except totals and thresholds.")
    baseline = next((baselines[part][main_metric] for part in scores if part in baselines), None)
    page.section("Training")
    page.picture(
        finetuning_curves(rows, main_metric, baseline),
        "The training loss"
        + (", and the score after each epoch" if scores else "")
        + (". The dashed line is the majority baseline." if baseline is not None else "."),
        "Curves over the steps of training",
    )
    for part, analysis in analyses.items():
        page.section(f"Errors on {part}")
        _add_analysis(page, analysis)
    for part, measured in calibration.items():
        page.section(f"Calibration on {part}")
        _add_calibration(page, measured)
    page.section("Settings")
    page.code(settings_text)
    page.save(path)


def _score_figures(
    scores: Mapping[str, Scores], baselines: Mapping[str, Scores], metric: str
) -> list[tuple[str, Cell, str]]:
    figures: list[tuple[str, Cell, str]] = []
    for part, values in scores.items():
        note = f"majority baseline: {baselines[part][metric]:.2f}" if part in baselines else "%"
        figures.append((f"{metric}, {part}", f"{values[metric]:.2f}", note))
    return figures


def _training_figures(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Cell, str]]:
    last = [row for row in rows if row["kind"] == "train"][-1]
    return [
        ("steps", last["step"], spell_duration(last["seconds"])),
        ("examples", last["examples"], "over all epochs"),
    ]


def _columns(
    part: str, scores: Mapping[str, Scores], baselines: Mapping[str, Scores]
) -> list[tuple[str, Scores]]:
    """Return the columns of a dev set: its scores and the majority baseline's.

    Some sets have no baseline.
    """
    columns = [(part, scores[part])]
    if part in baselines:
        columns.append((f"majority baseline, {part}", baselines[part]))
    return columns


def _score_rows(scores: Mapping[str, Scores]) -> list[list[Cell]]:
    """Return one row per score, with one column per dev set; totals are integers."""
    names = dict.fromkeys(name for values in scores.values() for name in values)

    def cell(value: float | None) -> Cell:
        return "–" if value is None else value if isinstance(value, int) else f"{value:.2f}"

    return [[name, *(cell(values.get(name)) for values in scores.values())] for name in names]


def _add_analysis(page: Page, analysis: ErrorAnalysis) -> None:
    if analysis.confused_pairs:
        page.table(["gold", "predicted", "count"], analysis.confused_pairs, "The most frequent confusions.")
    if analysis.by_label:
        _add_labels(page, analysis)
    if analysis.gold_and_predicted is not None:
        page.picture(
            scatter(*analysis.gold_and_predicted),
            "Each point is an example; points on the dashed line are correct.",
            "Predicted against gold numbers",
        )
    if analysis.threshold_curve is not None:
        curve = analysis.threshold_curve
        page.picture(
            threshold_curves(
                curve.thresholds, {"exact match": curve.exact_match, "F1": curve.f1}, curve.chosen
            ),
            "A question gets no answer if its null odds are above the threshold.",
            "Exact match and F1 against the null threshold",
        )
    if analysis.mistakes:
        confident = ", the most confident ones first" if analysis.mistakes[0].probability is not None else ""
        page.paragraph(f"Some mistakes{confident}:")
        page.mistakes(analysis.mistakes)


def _add_calibration(page: Page, measured: Calibration) -> None:
    page.picture(
        reliability_diagram(measured),
        "Predictions in bins of equal width by the model's probability of the likeliest class, or of the "
        "decision about each of several labels; larger points have more predictions. Points below the dashed "
        "line show predictions that are too confident.",
        "Accuracy against confidence",
    )
    page.table(
        ["probabilities", "ECE"],
        [
            ["as trained", f"{measured.raw.error:.2f}"],
            [f"logits divided by {measured.temperature:.4g}", f"{measured.scaled.error:.2f}"],
        ],
        f"Expected calibration error, in percent, over {NUM_BINS} bins. The temperature was fitted on the "
        f"first dev set; predictions use it only with the setting calibrate.",
    )


def _add_labels(page: Page, analysis: ErrorAnalysis) -> None:
    shown, caption = analysis.by_label, "Precision and recall by label"
    if len(shown) > MAX_LABELS_DRAWN:
        shown = dict(sorted(shown.items(), key=lambda item: -item[1].support)[:MAX_LABELS_DRAWN])
        caption += f", the {MAX_LABELS_DRAWN} most frequent"
    series = {
        "precision": [[figures.precision] for figures in shown.values()],
        "recall": [[figures.recall] for figures in shown.values()],
    }
    picture = dots(list(shown), series, "%")
    if analysis.confusion_matrix is not None:
        picture = confusion_matrix(analysis.confusion_matrix, list(analysis.by_label)) + picture
        caption = f"Rows are gold labels, columns predicted labels; percentages are of the row. {caption}"
    page.picture(picture, f"{caption}.", caption)
    page.table(
        ["label", "precision", "recall", "F1", "examples"],
        [
            [label, f"{f.precision:.2f}", f"{f.recall:.2f}", f"{f.f1:.2f}", f.support]
            for label, f in analysis.by_label.items()
        ],
        "In percent; the last column counts the gold examples.",
    )


def write_search_report(
    path: Path,
    title: str,
    metric: str,
    search: "Search",
    *,
    baseline: float | None,
    warnings: Sequence[str] = (),
    facts: Mapping[str, str],
) -> None:
    """Write the report of a search: its trials, their restarts, and the best trial.

    Args:
        path: the HTML file to write.
        title: the title of the page.
        metric: the score that chose the trial.
        search: the result of the search.
        baseline: that score of the majority class, if there is one.
        warnings, facts: as in `write_report`.
    """
    trials, chosen = search.trials, search.trials.index(search.chosen)
    names = [f"{trial.batch_size} · {trial.learning_rate:g} · {trial.epochs}" for trial in trials]
    page = Page(title, "A grid search by bertie (Appendix A.3)")
    page.facts(facts)
    for warning in warnings:
        page.warning(warning)
    beside = "" if baseline is None else f"; majority baseline: {baseline:.2f}"
    page.figures(
        [
            (f"{metric}, dev", _mean_and_std(search.chosen), f"%, mean of the restarts{beside}"),
            ("batch size", search.chosen.batch_size, "chosen"),
            ("learning rate", f"{search.chosen.learning_rate:g}", "chosen"),
            ("epochs", search.chosen.epochs, "chosen"),
        ]
    )
    page.picture(
        dots(
            names,
            {"restart": [trial.scores for trial in trials], "mean": [[trial.mean] for trial in trials]},
            f"{metric}, %",
            chosen,
            baseline,
        ),
        "One line for each batch size · learning rate · epochs; the chosen one is highlighted."
        + ("" if baseline is None else " The dashed line is the majority baseline."),
        "Scores of the restarts of each trial",
    )
    _add_trials(page, search, metric)
    page.save(path)


def _add_trials(page: Page, search: "Search", metric: str) -> None:
    page.table(
        ["batch size", "learning rate", "epochs", f"{metric}, %", "restarts", ""],
        [
            [
                trial.batch_size,
                f"{trial.learning_rate:g}",
                trial.epochs,
                _mean_and_std(trial),
                len(trial.scores),
                "chosen" if trial == search.chosen else "",
            ]
            for trial in search.trials
        ],
        "Mean and standard deviation over the restarts.",
    )


def _mean_and_std(trial: "Trial") -> str:
    """Format mean ± standard deviation; one restart has only a mean."""
    return f"{trial.mean:.2f}" + (f" ± {trial.std:.2f}" if len(trial.scores) > 1 else "")
