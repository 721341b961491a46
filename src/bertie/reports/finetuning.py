"""The reports of `bertie finetune` and `bertie search`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.reports.page import Cell, Page
from bertie.reports.pictures import confusion_matrix, dots, finetuning_curves, scatter, threshold_curves
from bertie.tasks.error_analysis import ErrorAnalysis
from bertie.tasks.task import Scores

if TYPE_CHECKING:
    from bertie.training.search import Search, Trial

MOST_LABELS = 30  # in a picture; the table has all


def write_report(
    path: Path,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Scores],
    details: Mapping[str, ErrorAnalysis],
    settings_text: str,
    *,
    main_metric: str,
) -> None:
    """Write the report of one fine-tuning.

    Args:
        path: the HTML file.
        title: what was fine-tuned on what.
        rows: of `metrics.jsonl`.
        scores: of each dev part, by the metrics' names, in percent; none where there is no dev part.
        details: of the same parts.
        settings_text: the run's settings.
        main_metric: the score that is drawn.
    """
    page = Page(title, "Fine-tuned by bertie")
    last = [row for row in rows if row["kind"] == "train"][-1]
    page.figures(
        [
            *((f"{main_metric}, {part}", f"{found[main_metric]:.2f}", "%") for part, found in scores.items()),
            ("steps", last["step"], f"{last['seconds']:,.0f} seconds"),
            ("examples", last["examples"], "over all epochs"),
        ]
    )
    if scores:
        page.table(["score", *scores], _rows_of_scores(scores), "In percent, but for totals and thresholds.")
    page.section("Training")
    page.picture(
        finetuning_curves(rows, main_metric),
        "The loss in training" + (", and the score after each epoch." if scores else "."),
        "Curves over the steps of training",
    )
    for part, found in details.items():
        page.section(f"What {part} shows")
        _add_details(page, found)
    page.section("Settings of the run")
    page.code(settings_text)
    page.save(path)


def _rows_of_scores(scores: Mapping[str, Scores]) -> list[list[Cell]]:
    """A row for each score and a column for each part; a total is a whole number."""
    names = dict.fromkeys(name for found in scores.values() for name in found)

    def shown(value: float) -> Cell:
        return value if isinstance(value, int) else f"{value:.2f}"

    return [
        [name, *(shown(found[name]) if name in found else "–" for found in scores.values())] for name in names
    ]


def _add_details(page: Page, details: ErrorAnalysis) -> None:
    if details.confused:
        page.table(["gold", "predicted", "how often"], details.confused, "The most confused labels.")
    if details.by_label:
        _add_labels(page, details)
    if details.numbers is not None:
        page.picture(
            scatter(*details.numbers),
            "Each point is an example; those on the dashed line are right.",
            "Predicted numbers by gold ones",
        )
    if details.thresholds is not None:
        curve = details.thresholds
        page.picture(
            threshold_curves(
                curve.thresholds, {"exact match": curve.exact_match, "F1": curve.f1}, curve.chosen
            ),
            "No answer is given where the null odds are above the threshold.",
            "Exact match and F1 by the null threshold",
        )
    if details.mistakes:
        page.paragraph("Some mistakes:")
        page.mistakes(details.mistakes)


def _add_labels(page: Page, details: ErrorAnalysis) -> None:
    shown, caption = details.by_label, "Precision and recall by label"
    if len(shown) > MOST_LABELS:
        shown = dict(sorted(shown.items(), key=lambda item: -item[1].support)[:MOST_LABELS])
        caption += f", the {MOST_LABELS} commonest"
    series = {
        "precision": [[figures.precision] for figures in shown.values()],
        "recall": [[figures.recall] for figures in shown.values()],
    }
    picture = dots(list(shown), series, "%")
    if details.confusion is not None:
        picture = confusion_matrix(details.confusion, list(details.by_label)) + picture
        caption = f"Rows are gold labels, columns predicted ones, with shares of the row. {caption}"
    page.picture(picture, f"{caption}.", caption)
    page.table(
        ["label", "precision", "recall", "F1", "examples"],
        [
            [label, f"{f.precision:.2f}", f"{f.recall:.2f}", f"{f.f1:.2f}", f.support]
            for label, f in details.by_label.items()
        ],
        "In percent; the last column says how many are gold.",
    )


def write_search_report(path: Path, title: str, metric: str, search: "Search") -> None:
    """Write the report of a search: its cells, their restarts, and the choice.

    Args:
        path: the HTML file.
        title: what was fine-tuned on what.
        metric: the score by which the cell was chosen.
        search: its result.
    """
    cells, chosen = search.cells, search.cells.index(search.chosen)
    names = [f"{cell.batch_size} · {cell.learning_rate:g} · {cell.epochs}" for cell in cells]
    page = Page(title, "Appendix A.3's search by bertie")
    page.figures(
        [
            (f"{metric}, dev", _mean_and_std(search.chosen), "%, mean of the restarts"),
            ("batch size", search.chosen.batch_size, "chosen"),
            ("learning rate", f"{search.chosen.learning_rate:g}", "chosen"),
            ("epochs", search.chosen.epochs, "chosen"),
        ]
    )
    page.picture(
        dots(
            names,
            {"a restart": [cell.scores for cell in cells], "mean": [[cell.mean] for cell in cells]},
            f"{metric}, %",
            chosen,
        ),
        "A line for each batch size · learning rate · epochs; the chosen one is marked.",
        "Scores of the restarts by cell of the grid",
    )
    page.table(
        ["batch size", "learning rate", "epochs", f"{metric}, %", "restarts", ""],
        [
            [
                cell.batch_size,
                f"{cell.learning_rate:g}",
                cell.epochs,
                _mean_and_std(cell),
                len(cell.scores),
                "chosen" if place == chosen else "",
            ]
            for place, cell in enumerate(cells)
        ],
        "Mean and standard deviation over the restarts.",
    )
    page.save(path)


def _mean_and_std(cell: "Trial") -> str:
    """One restart says nothing of the deviation."""
    return f"{cell.mean:.2f}" + (f" ± {cell.std:.2f}" if len(cell.scores) > 1 else "")
