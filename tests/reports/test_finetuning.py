"""The reports of fine-tuning runs and of searches."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.reports.finetuning import MAX_LABELS_DRAWN, write_report, write_search_report
from bertie.tasks.calibration import measure_calibration
from bertie.tasks.error_analysis import ErrorAnalysis, LabelScores, Mistake, ThresholdCurve
from bertie.training.metrics_file import run_facts
from bertie.training.search import Search, Trial

HOSTILE = "<script>alert(1)</script>"
ROWS: list[dict[str, Any]] = [
    {"kind": "train", "step": 50, "phase": 0, "loss": 0.7, "examples": 1600, "seconds": 12.5},
    {"kind": "train", "step": 90, "phase": 0, "loss": 0.4, "examples": 2880, "seconds": 22.5},
]


def evaluated(*parts: str) -> list[dict[str, Any]]:
    scores = {f"{part}/f1": 81.25 for part in parts}
    return [*ROWS, {"kind": "evaluation", "step": 90, "phase": 0, **scores}]


def written(
    path: Path, analysis: dict[str, ErrorAnalysis], scores: dict[str, dict[str, float]], **options: Any
) -> str:
    rows = evaluated(*scores) if scores else ROWS
    options = {"calibration": {}, "baselines": {}, "facts": {}, **options}
    write_report(path, "a title", rows, scores, analysis, "seed = 0\n", main_metric="f1", **options)
    return path.read_text(encoding="utf-8")


def by_label(count: int) -> dict[str, LabelScores]:
    return {f"label-{i:02}": LabelScores(50.0 + i / 4, 62.5, 55.5, 100 - i) for i in range(count)}


def test_report_contains_all_sections(tmp_path: Path) -> None:
    analysis = ErrorAnalysis(
        by_label(2), np.array([[80, 20], [5, 94]]), mistakes=[Mistake("a text", "x", "y")]
    )
    html = written(tmp_path / "report.html", {"dev": analysis}, {"dev": {"f1": 81.25, "accuracy": 90.5}})
    for text in ("a title", "81.25", "90.50", "2,880", "Errors on dev", "label-01", "50.25", "62.50"):
        assert f">{text}<" in html, text
    for text in ("Loss", "training", "dev", "precision", "recall", "predicted", "true", "94"):
        assert f">{text}</text>" in html, text
    assert re.search(r"a text</p>\n<dl><dt>gold</dt><dd dir=\"auto\">x</dd><dt>predicted</dt>", html)
    assert "<pre><code>seed = 0\n</code></pre>" in html


def test_calibration_has_a_picture_and_both_errors(tmp_path: Path) -> None:
    logits = np.array([[0.0, 4.0]] * 3 + [[4.0, 0.0]])
    measured = measure_calibration(logits, np.array([1, 1, 0, 0]), 2.0)  # 98 % sure, 75 % correct
    html = written(tmp_path / "report.html", {}, {"dev": {"f1": 81.25}}, calibration={"dev": measured})
    assert "Calibration on dev" in html
    assert f"{measured.raw.error:.2f}" == "23.20"
    for text in ("as trained", "23.20", "logits divided by 2", f"{measured.scaled.error:.2f}"):
        assert f">{text}<" in html, text
    assert ">confidence, %</text>" in html


def test_head_names_model_data_and_run(tmp_path: Path) -> None:
    facts = {"base model": "bert-base, 12 layers", "train": f"{HOSTILE}.csv, 120 rows"}
    html = written(tmp_path / "report.html", {}, {}, facts=facts)
    assert '<dt>base model</dt><dd dir="auto">bert-base, 12 layers</dd>' in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.csv, 120 rows" in html


def test_facts_of_a_run_have_its_date_and_duration(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    os.utime(tmp_path / "metrics.jsonl", (1e9, 1e9))
    facts = run_facts(tmp_path, ROWS)
    assert (facts["run"], facts["date"]) == (str(tmp_path), "2001-09-09 01:46 UTC")
    assert facts["training time"] == "22 seconds"
    assert facts["bertie"] == bertie.__version__


def test_majority_baseline_is_beside_each_score(tmp_path: Path) -> None:
    scores = {"matched": {"f1": 81.25}, "other": {"f1": 79.5}}
    baselines = {"matched": {"f1": 33.25}}
    html = written(tmp_path / "report.html", {}, scores, baselines=baselines, warnings=["it learnt nothing"])
    assert ">majority baseline: 33.25<" in html
    assert ">majority baseline, matched</th>" in html
    assert ">majority</text>" in html  # the dashed line
    assert ">Warning: it learnt nothing<" in html
    assert "majority" not in written(tmp_path / "report.html", {}, scores)


def test_mistakes_show_their_probability(tmp_path: Path) -> None:
    mistakes = [Mistake("a text", "x", "y", 0.873)]
    html = written(tmp_path / "a.html", {"dev": ErrorAnalysis(mistakes=mistakes)}, {"dev": {"f1": 1.0}})
    assert "<dt>probability</dt><dd>87%</dd>" in html
    assert "the most confident ones first" in html


def test_each_dev_set_has_a_column_and_a_section(tmp_path: Path) -> None:
    scores = {"matched": {"f1": 81.25, "total": 7}, "mismatched": {"f1": 79.5}}
    html = written(tmp_path / "report.html", {name: ErrorAnalysis(by_label(3)) for name in scores}, scores)
    for text in ("Errors on matched", "Errors on mismatched", "f1, matched", "f1, mismatched", "7", "–"):
        assert f">{text}<" in html, text


def test_run_without_dev_has_a_report(tmp_path: Path) -> None:
    html = written(tmp_path / "report.html", {}, {})
    assert html.count("<svg") == 1
    assert "The training loss." in html


def test_pictures_fit_the_kind_of_task(tmp_path: Path) -> None:
    numbers = np.array([1.0, 2.0, 3.0])
    curve = ThresholdCurve(numbers, 10 * numbers, 20 * numbers, 2.0)
    regression = written(
        tmp_path / "a.html",
        {"dev": ErrorAnalysis(gold_and_predicted=(numbers, numbers))},
        {"dev": {"f1": 1.0}},
    )
    assert ">gold</text>" in regression
    threshold = written(
        tmp_path / "b.html", {"dev": ErrorAnalysis(threshold_curve=curve)}, {"dev": {"f1": 1.0}}
    )
    assert ">chosen: 2</text>" in threshold
    labels = dict(reversed(by_label(MAX_LABELS_DRAWN + 1).items()))  # the rarest one is the first
    analysis = ErrorAnalysis(labels, confused_pairs=[("label-00", "label-30", 1234)])
    many = written(tmp_path / "c.html", {"dev": analysis}, {"dev": {"f1": 1.0}})
    assert ">1,234</td>" in many
    assert f"the {MAX_LABELS_DRAWN} most frequent" in many
    assert ">label-29</text>" in many
    assert ">label-30</text>" not in many  # except in the tables
    assert many.count(">label-30</td>") == 2


def test_user_data_is_escaped(tmp_path: Path) -> None:
    label = f"{HOSTILE} שלום {'x' * 200}"
    analysis = ErrorAnalysis(
        {label: LabelScores(1.0, 2.0, 3.0, 4)},
        np.array([[4]]),
        [(label, label, 2)],
        mistakes=[Mistake(HOSTILE, label, label)],
    )
    html = written(tmp_path / "report.html", {label: analysis}, {label: {"f1": 1.0}})
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 6


@pytest.mark.parametrize("restarts", [1, 3])
def test_search_report_shows_trials_and_the_chosen_one(tmp_path: Path, restarts: int) -> None:
    trials = [
        Trial(size, rate, 3, (tmp_path,) * restarts, tuple(score + 0.5 * i for i in range(restarts)))
        for size, rate, score in ((16, 5e-5, 80.0), (16, 3e-5, 84.0), (32, 2e-5, 82.0))
    ]
    search = Search(trials, trials[1])
    write_search_report(tmp_path / "report.html", "a title", "f1", search, baseline=71.25, facts={"run": "x"})
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("16 · 5e-05 · 3", "16 · 3e-05 · 3", "32 · 2e-05 · 3", "restart", "mean"):
        assert f">{name}</text>" in html, name
    assert "majority baseline: 71.25" in html
    rows = re.findall(r"<tr>(<td.*?)</tr>", html)
    assert [row.endswith(">chosen</td>") for row in rows] == [False, True, False]
    mean = f"{trials[1].mean:.2f}" + (f" ± {trials[1].std:.2f}" if restarts > 1 else "")
    assert f">{mean}</td>" in rows[1]
