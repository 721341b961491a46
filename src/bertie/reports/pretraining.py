"""The HTML report of a pre-training run."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertie.base.progress import spell_duration
from bertie.model.objectives import TOKEN_OBJECTIVES, token_objective
from bertie.reports.page import Page
from bertie.reports.pictures import bars, training_curves
from bertie.tasks.blimp import NUM_PARADIGMS


def write_report(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    settings_text: str,
    facts: Mapping[str, str],
    blimp: Mapping[str, Any] | None = None,
) -> None:
    """Write the report of a pre-training run: its curves and its last held-out scores.

    Args:
        path: the HTML file to write.
        rows: the rows of the run's metrics.jsonl.
        settings_text: the run's settings, as TOML.
        facts: where the run comes from: the recipe, the corpus, the date.
        blimp: the contents of the run's blimp.json, if it has one.
    """
    last = [row for row in rows if row["kind"] == "evaluation"][-1]
    last_train = [row for row in rows if row["kind"] == "train"][-1]
    page = Page("A pre-training run", "Pre-trained from raw text by bertie")
    page.facts(facts)
    objective = token_objective(last)
    figures = [
        (
            TOKEN_OBJECTIVES[objective],
            f"{last[f'{objective}_accuracy']:.1%}",
            f"unigram baseline: {last['unigram_accuracy']:.1%}",
        ),
        (
            "perplexity",
            f"{last['perplexity']:,.0f}",
            f"unigram baseline: {math.exp(last['unigram_loss']):,.0f}",
        ),
    ]
    if "next_sentence_accuracy" in last:
        baseline = f"majority class: {last['majority_accuracy']:.1%}"
        figures.append(("next-sentence accuracy", f"{last['next_sentence_accuracy']:.1%}", baseline))
    page.figures(figures)
    tokens, seconds = last_train["tokens"], last_train["seconds"]
    page.paragraph(
        f"Measured on held-out documents after {last_train['step']:,} steps on {tokens:,} tokens: "
        f"{spell_duration(seconds)} of training, {tokens / seconds:,.0f} tokens per second."
    )
    page.picture(
        training_curves(rows, phase_steps(settings_text)),
        "Training and held-out documents. The dashed line is the unigram baseline.",
        "Loss and accuracy over the training steps",
    )
    if blimp:
        _add_blimp(page, blimp)
    warnings = [row["message"] for row in rows if row["kind"] == "warning"]
    if warnings:
        page.section("Warnings")
        for message in warnings:
            page.paragraph(message)
    page.section("Settings")
    page.code(settings_text)
    page.save(path)


def phase_steps(settings_text: str) -> list[int]:
    """Return the number of steps of each phase, from a run's settings as TOML."""
    return [phase["steps"] for phase in tomllib.loads(settings_text)["phases"]]


def _add_blimp(page: Page, blimp: Mapping[str, Any]) -> None:
    """Append the accuracy on BLiMP, by phenomenon, the best first."""
    phenomena = dict(sorted(blimp["phenomena"].items(), key=lambda item: -item[1]))
    page.section("BLiMP")
    page.paragraph(
        f"After {blimp['step']:,} steps the model prefers the acceptable sentence in "
        f"{blimp['accuracy']:.1f}% of {blimp['pairs']:,} minimal pairs, from {len(blimp['paradigms'])} of "
        f"BLiMP's {NUM_PARADIGMS} paradigms (arXiv:1912.00582). Chance is 50%. The scores of the paradigms "
        f"are in blimp.json."
    )
    names = [name.replace("_", " ") for name in phenomena]
    page.picture(
        bars(names, list(phenomena.values()), "accuracy (%)", baseline=50),
        "Accuracy by phenomenon. The dashed line is chance.",
        "Accuracy on BLiMP's minimal pairs by phenomenon",
    )
