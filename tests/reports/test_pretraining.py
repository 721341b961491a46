"""The report of a pre-training run."""

from pathlib import Path

import pytest

from bertie.reports import pretraining
from bertie.reports.pretraining import write_report

TRAIN = {"kind": "train", "step": 10, "phase": 0, "tokens": 1000, "examples": 20, "loss": 7.0, "seconds": 2.0}
MASKED = {"masked_lm_loss": 6.2, "masked_lm_accuracy": 0.125}
HELD_OUT = {"kind": "evaluation", "step": 10, "phase": 0, **MASKED, "perplexity": 492.7}
BASELINE = {"unigram_loss": 7.0, "unigram_accuracy": 0.05}
PHASES = "[[phases]]\nsteps = 15\n[[phases]]\nsteps = 5\n"
PAIRS = {"next_sentence_loss": 0.5, "next_sentence_accuracy": 0.75}


@pytest.mark.parametrize("pairs", [True, False])
def test_last_scores_are_shown_beside_their_baselines(tmp_path: Path, pairs: bool) -> None:
    warning = {"kind": "warning", "step": 0, "check": "label_balance", "message": "too many <pairs>"}
    train = TRAIN | MASKED | (PAIRS if pairs else {})
    held_out = HELD_OUT | BASELINE | (PAIRS | {"majority_accuracy": 0.55} if pairs else {})
    rows = [warning, train, train | {"step": 20}, held_out | {"step": 5, "perplexity": 900.0}, held_out]
    write_report(tmp_path / "report.html", rows, f"seed = 7\n{PHASES}", {"corpus": "wiki, 12 documents"})
    page = (tmp_path / "report.html").read_text()
    for shown in (
        "12.5%",
        "493",
        "1,097",
        "unigram baseline: 5.0%",
        "too many &lt;pairs&gt;",
        "seed = 7",
        "wiki, 12 documents",
        "after 20 steps on 1,000 tokens: ",
        " of training, 500 tokens per second.",
        "<svg",
        "phase 2 →",
    ):
        assert shown in page
    assert ("majority class: 55.0%" in page) == pairs


def test_left_to_right_model_reports_next_token_accuracy(tmp_path: Path) -> None:
    next_tokens = {"language_model_loss": 6.2, "language_model_accuracy": 0.125}
    held_out = {key: value for key, value in HELD_OUT.items() if key not in MASKED} | BASELINE | next_tokens
    rows = [TRAIN | next_tokens, held_out]
    write_report(tmp_path / "report.html", rows, PHASES, {})
    page = (tmp_path / "report.html").read_text()
    for shown in ("12.5%", "next-token accuracy", "Causal LM loss", "Next-token accuracy", "unigram"):
        assert shown in page
    assert "Masked-LM loss" not in page  # no empty panel


def test_phenomena_of_blimp_are_sorted_by_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(pretraining, "bars", lambda *values, **_: drawn.append(values) or "<svg/>")
    blimp = {
        "step": 1500,
        "accuracy": 62.25,
        "pairs": 2000,
        "paradigms": {"one": 70.0, "two": 54.5},
        "phenomena": {"binding": 54.5, "island_effects": 70.0},
    }
    write_report(tmp_path / "report.html", [TRAIN | MASKED, HELD_OUT | BASELINE], PHASES, {}, blimp)
    page = (tmp_path / "report.html").read_text()
    assert "After 1,500 steps the model prefers the acceptable sentence in 62.2% of 2,000 minimal" in page
    assert "from 2 of BLiMP&#39;s 67 paradigms" in page
    assert drawn == [(["island effects", "binding"], [70.0, 54.5], "accuracy (%)")]
