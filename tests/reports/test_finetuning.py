import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.reports.finetuning import MOST_LABELS, write_report, write_search_report
from bertie.tasks.error_analysis import ErrorAnalysis, LabelFigures, Mistake, ThresholdCurve
from bertie.training.search import Search, Trial

HOSTILE = "<script>alert(1)</script>"
ROWS: list[dict[str, Any]] = [
    {"kind": "train", "step": 50, "phase": 0, "loss": 0.7, "examples": 1600, "seconds": 12.5},
    {"kind": "train", "step": 90, "phase": 0, "loss": 0.4, "examples": 2880, "seconds": 22.5},
]


def evaluated(*parts: str) -> list[dict[str, Any]]:
    scores = {f"{part}/f1": 81.25 for part in parts}
    return [*ROWS, {"kind": "evaluation", "step": 90, "phase": 0, **scores}]


def written(path: Path, details: dict[str, ErrorAnalysis], scores: dict[str, dict[str, float]]) -> str:
    rows = evaluated(*scores) if scores else ROWS
    write_report(path, "a title", rows, scores, details, "seed = 0\n", main_metric="f1")
    return path.read_text(encoding="utf-8")


def by_label(count: int) -> dict[str, LabelFigures]:
    return {f"label-{i:02}": LabelFigures(50.0 + i / 4, 62.5, 55.5, 100 - i) for i in range(count)}


def test_a_report_has_its_figures_scores_curves_labels_mistakes_and_settings(tmp_path: Path) -> None:
    details = ErrorAnalysis(
        by_label(2), np.array([[80, 20], [5, 94]]), mistakes=[Mistake("a text", "x", "y")]
    )
    html = written(tmp_path / "report.html", {"dev": details}, {"dev": {"f1": 81.25, "accuracy": 90.5}})
    for text in ("a title", "81.25", "90.50", "2,880", "What dev shows", "label-01", "50.25", "62.50"):
        assert f">{text}<" in html, text
    for text in ("Loss", "training", "dev", "precision", "recall", "predicted", "true", "94"):
        assert f">{text}</text>" in html, text
    assert re.search(r"a text</p>\n<dl><dt>gold</dt><dd dir=\"auto\">x</dd><dt>predicted</dt>", html)
    assert "<pre><code>seed = 0\n</code></pre>" in html


def test_each_part_has_a_column_and_a_section(tmp_path: Path) -> None:
    scores = {"matched": {"f1": 81.25, "total": 7}, "mismatched": {"f1": 79.5}}
    html = written(tmp_path / "report.html", {name: ErrorAnalysis(by_label(3)) for name in scores}, scores)
    for text in ("What matched shows", "What mismatched shows", "f1, matched", "f1, mismatched", "7", "–"):
        assert f">{text}<" in html, text


def test_a_run_without_dev_has_a_report(tmp_path: Path) -> None:
    html = written(tmp_path / "report.html", {}, {})
    assert html.count("<svg") == 1
    assert "The loss in training." in html


def test_regressions_thresholds_and_many_classes_have_their_own_pictures(tmp_path: Path) -> None:
    numbers = np.array([1.0, 2.0, 3.0])
    curve = ThresholdCurve(numbers, 10 * numbers, 20 * numbers, 2.0)
    regression = written(
        tmp_path / "a.html", {"dev": ErrorAnalysis(numbers=(numbers, numbers))}, {"dev": {"f1": 1.0}}
    )
    assert ">gold</text>" in regression
    threshold = written(tmp_path / "b.html", {"dev": ErrorAnalysis(thresholds=curve)}, {"dev": {"f1": 1.0}})
    assert ">chosen: 2</text>" in threshold
    details = ErrorAnalysis(by_label(MOST_LABELS + 1), confused=[("label-00", "label-30", 1234)])
    many = written(tmp_path / "c.html", {"dev": details}, {"dev": {"f1": 1.0}})
    assert ">1,234</td>" in many
    assert f"the {MOST_LABELS} commonest" in many
    assert ">label-29</text>" in many
    assert ">label-30</text>" not in many  # but in the tables
    assert many.count(">label-30</td>") == 2


def test_nothing_of_a_users_data_is_markup(tmp_path: Path) -> None:
    label = f"{HOSTILE} שלום {'x' * 200}"
    details = ErrorAnalysis(
        {label: LabelFigures(1.0, 2.0, 3.0, 4)},
        np.array([[4]]),
        [(label, label, 2)],
        mistakes=[Mistake(HOSTILE, label, label)],
    )
    html = written(tmp_path / "report.html", {label: details}, {label: {"f1": 1.0}})
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 6


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_search_has_its_cells_and_the_choice(tmp_path: Path, restarts: int) -> None:
    cells = [
        Trial(size, rate, 3, (tmp_path,) * restarts, tuple(score + 0.5 * i for i in range(restarts)))
        for size, rate, score in ((16, 5e-5, 80.0), (16, 3e-5, 84.0), (32, 2e-5, 82.0))
    ]
    write_search_report(tmp_path / "report.html", "a title", "f1", Search(cells, cells[1]))
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("16 · 5e-05 · 3", "16 · 3e-05 · 3", "32 · 2e-05 · 3", "a restart", "mean"):
        assert f">{name}</text>" in html, name
    rows = re.findall(r"<tr>(<td.*?)</tr>", html)
    assert [row.endswith(">chosen</td>") for row in rows] == [False, True, False]
    mean = f"{cells[1].mean:.2f}" + (f" ± {cells[1].std:.2f}" if restarts > 1 else "")
    assert f">{mean}</td>" in rows[1]
