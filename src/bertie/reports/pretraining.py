"""The page of a pre-training run: what its metrics.jsonl says."""

import math
from pathlib import Path

from bertie.model.objectives import TOKEN_OBJECTIVES, token_objective
from bertie.reports.metrics import read_metrics
from bertie.reports.page import Page
from bertie.reports.pictures import training_curves


def write_report(path: Path, metrics_file: Path, settings_text: str) -> None:
    """Draw a run's curves and its last held-out figures as one self-contained HTML file.

    Args:
        path: the file to write.
        metrics_file: the run's metrics.jsonl.
        settings_text: its settings, as TOML.
    """
    rows = read_metrics(metrics_file)
    last = [row for row in rows if row["kind"] == "evaluation"][-1]
    trained = [row for row in rows if row["kind"] == "train"][-1]
    page = Page("A pre-training run", "Pre-trained from raw text by bertie")
    objective = token_objective(last)
    figures = [
        (
            TOKEN_OBJECTIVES[objective],
            f"{last[f'{objective}_accuracy']:.1%}",
            f"commonest word: {last['unigram_accuracy']:.1%}",
        ),
        (
            "perplexity",
            f"{last['perplexity']:,.0f}",
            f"word frequencies: {math.exp(last['unigram_loss']):,.0f}",
        ),
    ]
    if "next_sentence_accuracy" in last:
        told = f"commoner label: {last['majority_accuracy']:.1%}"
        figures.append(("next sentence", f"{last['next_sentence_accuracy']:.1%}", told))
    page.figures(figures)
    tokens, seconds = trained["tokens"], trained["seconds"]
    page.paragraph(
        f"On held-out documents, after {trained['step']:,} steps on {tokens:,} tokens: "
        f"{seconds / 60:,.0f} minutes, {tokens / seconds:,.0f} tokens a second."
    )
    page.picture(
        training_curves(rows),
        "In training and on held-out documents. The dashed line knows word frequencies only.",
        "Curves of loss and accuracy over the steps",
    )
    warnings = [row["message"] for row in rows if row["kind"] == "warning"]
    if warnings:
        page.section("Warnings")
        for message in warnings:
            page.paragraph(message)
    page.section("Settings")
    page.code(settings_text)
    page.save(path)
