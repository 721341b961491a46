"""The pictures of reports: their labels, limits and hostile input."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bertie.reports import pictures
from bertie.reports.drawing import to_svg, widen
from bertie.reports.page import Page
from bertie.reports.pictures import (
    comparison,
    confusion_matrix,
    dots,
    finetuning_curves,
    reliability_diagram,
    scatter,
    threshold_curves,
    training_curves,
)
from bertie.tasks.calibration import measure_calibration

NAMESPACE = "{http://www.w3.org/2000/svg}"


def train_row(step: int, **changes: Any) -> dict[str, Any]:
    row = {"kind": "train", "step": step, "phase": 0, "tokens": 8192 * step, "masked_lm_loss": 9 - step / 100}
    row |= {"masked_lm_accuracy": step / 1000, "next_sentence_accuracy": 0.5 + step / 2000}
    return row | changes


def evaluation_row(step: int, **changes: Any) -> dict[str, Any]:
    row = {
        "kind": "evaluation",
        "step": step,
        "masked_lm_loss": 9 - step / 110,
        "masked_lm_accuracy": step / 1100,
    }
    row |= {"next_sentence_accuracy": 0.5, "unigram_loss": 6.4, "unigram_accuracy": 0.06, "perplexity": 600.0}
    return row | changes


RUN = [train_row(step) for step in range(10, 400, 10)] + [
    evaluation_row(step) for step in range(100, 400, 100)
]
ONLY_LOSS: dict[str, Any] = {"masked_lm_accuracy": None, "next_sentence_accuracy": None}  # one panel


@cache
def curves_of_run() -> str:
    return training_curves(RUN)


@cache
def curves_of_finetuning() -> str:
    return finetuning_curves(FINETUNING, "f1")


def panels(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(f"<all>{svg}</all>"))


def texts(svg: str) -> list[str]:
    return [
        "".join(element.itertext()) for panel in panels(svg) for element in panel.iter(f"{NAMESPACE}text")
    ]


def test_each_measure_has_a_panel_with_a_legend() -> None:
    svg = curves_of_run()
    assert len(panels(svg)) == 3
    shown = texts(svg)
    assert {"Masked-LM loss", "Masked-token accuracy", "Next-sentence accuracy"} <= set(shown)
    assert [shown.count(name) for name in ("training", "held out", "unigram")] == [3, 3, 2]


def test_panels_without_measurements_are_omitted() -> None:
    without_pairs = [{**row, "next_sentence_accuracy": None} for row in RUN]
    assert "Next-sentence accuracy" not in texts(training_curves(without_pairs))
    only_training = texts(training_curves(RUN[:20]))
    assert "training" in only_training
    assert "held out" not in only_training
    assert "unigram" not in only_training


@pytest.mark.parametrize("rows", [[], [train_row(1)], [evaluation_row(1)], [train_row(1), train_row(2)]])
def test_a_run_with_few_rows_can_be_drawn(rows: list[dict[str, Any]]) -> None:
    assert "Masked-LM loss" in texts(training_curves(rows))


@pytest.mark.parametrize("steps", [[5], [5, 6], [1000]])
def test_each_step_has_at_most_one_label(steps: list[int]) -> None:
    rows = [{"kind": "train", "step": step, "phase": 0, "loss": 1.0} for step in steps]
    shown = texts(finetuning_curves(rows, "f1"))
    assert [shown.count(f"{step:,}") for step in steps] == [1] * len(steps)


def test_phase_changes_are_marked() -> None:
    assert texts(training_curves(RUN, [350, 40])).count("phase 2 →") == 3
    losses = [row | ONLY_LOSS for row in RUN]
    assert not any("phase" in text for text in texts(training_curves(losses, [390])))
    assert texts(training_curves(losses, [80, 310])).count("phase 2") == 1  # beside the axis labels otherwise
    unfinished = texts(training_curves(losses, [350, 1000, 1000]))
    assert "phase 2 →" in unfinished
    assert not any("phase 3" in text for text in unfinished)


def test_phases_begin_at_their_steps_though_fewer_are_logged() -> None:
    """Both phases end between two rows."""
    with pictures.style():
        _, axes = pictures.new_panel()
        axes.plot([100, 200, 300], [1, 2, 3])
        pictures._mark_phases(axes, [104, 7, 189])
    assert [line.get_xdata()[0] for line in axes.lines[1:]] == [104, 111]


def test_labels_of_short_phases_do_not_overlap() -> None:
    with pictures.style():
        figure, axes = pictures.new_panel()
        axes.plot([0, 1000], [1, 2])
        pictures._mark_phases(axes, [10, 10, 940, 20, 20])
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [label.get_window_extent(renderer) for label in axes.texts]
    assert len(boxes) == 4
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_crosses(value: float) -> None:
    rows = [train_row(step) | ONLY_LOSS for step in (1, 2, 3)]
    whole = training_curves(rows)
    rows[1]["masked_lm_loss"] = value
    broken = training_curves(rows)
    assert pictures.RED not in whole
    assert pictures.RED in broken
    assert "nan" not in broken.lower().replace("dominant", "")
    training_curves(rows[1:2])


def test_long_curves_are_reduced_but_keep_their_peaks() -> None:
    steps = np.arange(1, 20_001)
    values = np.zeros(20_000)
    values[12_345] = 7.0
    kept_steps, kept = pictures._extremes(steps.astype(float), values)
    assert len(kept) <= 2 * pictures.MAX_STRETCHES
    assert (np.diff(kept_steps) >= 0).all()
    assert kept.max() == 7.0
    assert kept_steps[kept.argmax()] == 12_346
    long = [train_row(int(step), masked_lm_loss=float(np.sin(step))) | ONLY_LOSS for step in steps[:5000]]
    assert len(training_curves(long)) < 200_000


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=400))
def test_smoothing_is_a_moving_average(numbers: list[float]) -> None:
    values = np.array(numbers)
    reach = int(len(values) * pictures.SMOOTHING / 2)
    expected = [values[max(i - reach, 0) : i + reach + 1].mean() for i in range(len(values))]
    np.testing.assert_allclose(pictures._smoothed(values), expected, atol=1e-9)


def test_confusion_matrix_shows_counts_and_row_percentages() -> None:
    shown = texts(confusion_matrix([[812, 23], [0, 123_456]], ["negative", "positive"], "SST-2"))
    assert {"SST-2", "true", "predicted", "812", "97%", "23", "3%", "123k", "100%"} <= set(shown)
    assert "0" not in shown  # zero counts stay blank
    assert shown.count("negative") == shown.count("positive") == 2


def test_confusion_matrix_shades_cells_by_row_fraction() -> None:
    svg = confusion_matrix([[3, 1], [0, 4]], ["a", "b"])
    drawn = re.findall(rf"fill: {pictures.BLUE}; opacity: ([\d.]+)", svg)
    assert [float(opacity) for opacity in drawn] == pytest.approx([0.75 * 0.65, 0.25 * 0.65, 0.65])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes of the pictures that a test draws."""
    drawn: list[Axes] = []

    def keep(figure: Figure, **options: Any) -> str:
        drawn.extend(figure.axes)
        return to_svg(figure, **options)

    monkeypatch.setattr(pictures, "to_svg", keep)
    return drawn


def test_rows_of_a_confusion_matrix_are_true_labels(drawn: list[Axes]) -> None:
    confusion_matrix([[7, 1], [0, 4]], ["a", "b"])
    (axes,) = drawn
    cells = {text.get_text(): text.get_position() for text in axes.texts}
    assert cells["1"] == (1.5, pytest.approx(0.4))  # true a, predicted b: in the first row
    assert cells["4"] == (1.5, pytest.approx(1.4))
    assert {"7", "88%", "1", "12%", "4", "100%"} == set(cells)
    assert [(cell.get_x(), cell.get_y()) for cell in axes.patches] == [(0, 0), (1, 0), (1, 1)]
    assert axes.get_ylim() == (2, 0)  # the first row is at the top
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")


def test_scatter_has_gold_numbers_on_the_x_axis(drawn: list[Axes]) -> None:
    scatter(np.array([1.0, 2.0, 3.0]), np.array([4.0, 0.5, 2.0]))
    equality, points = drawn[0].lines
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([1, 2, 3], [4, 0.5, 2])
    assert list(equality.get_xdata()) == list(equality.get_ydata()) == [0.5, 4]


def test_reliability_diagram_has_confidence_on_the_x_axis(drawn: list[Axes]) -> None:
    """Two predictions with a probability of 0.9, of which one is right, and a right one with 0.6."""
    logits = np.log(np.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.6]]))
    reliability_diagram(measure_calibration(logits, np.array([0, 0, 1]), 2.0))
    trained, scaled = drawn[0].collections
    assert np.asarray(trained.get_offsets()) == pytest.approx(np.array([[60, 100], [90, 50]]))
    assert trained.get_sizes()[0] < trained.get_sizes()[1]  # the second one has more predictions
    confidences = 100 * np.sqrt([0.6, 0.9]) / (np.sqrt([0.6, 0.9]) + np.sqrt([0.4, 0.1]))
    assert np.asarray(scaled.get_offsets())[:, 0] == pytest.approx(confidences)


def test_curves_of_dev_sets_have_their_own_values(drawn: list[Axes]) -> None:
    finetuning_curves(FINETUNING, "f1", baseline=33.0)
    loss, scores = drawn
    curves = {line.get_label(): line for line in scores.lines}
    assert list(curves["dev"].get_xdata()) == [10, 20, 30]
    assert list(curves["dev"].get_ydata()) == [90, 100, 110]
    assert list(curves["other"].get_ydata()) == [70, 70, 70]
    assert list(curves["majority"].get_ydata()) == [33, 33]
    assert "held out" not in {line.get_label() for line in loss.lines}


def test_thresholds_hold_from_one_value_to_the_next(drawn: list[Axes]) -> None:
    """From each threshold on, one more question is answered."""
    threshold_curves(np.arange(3.0), {"a": np.array([1.0, 5, 3]), "b": np.zeros(3)}, 1.5)
    curve, _, chosen = drawn[0].lines
    assert curve.get_drawstyle() == "steps-post"
    assert list(curve.get_ydata()) == [1, 5, 3]
    assert list(chosen.get_xdata()) == [1.5, 1.5]


@pytest.mark.parametrize(
    ("limits", "bounds", "expected"),
    [
        ((0.5, 0.52), (0, 1), (0.46, 0.56)),  # by the same amount on both sides
        ((0.98, 1.0), (0, 1), (0.9, 1.0)),
        ((0.0, 0.02), (0, 1), (0.0, 0.1)),
        ((0.98, 1.0), (0, None), (0.94, 1.04)),
    ],
)
def test_small_ranges_grow_within_the_possible_values(
    limits: tuple[float, float], bounds: tuple[float, float | None], expected: tuple[float, float]
) -> None:
    axes = Figure().add_subplot(xlim=limits, ylim=limits)
    for axis in ("x", "y"):
        widen(axes, 0.1, bounds, axis)
    margin = 0.003
    for range_ in (axes.get_xlim(), axes.get_ylim()):
        assert range_ == pytest.approx((expected[0] - margin, expected[1] + margin))
    widen(axes, 0.05, bounds)
    assert axes.get_ylim() == axes.get_xlim()  # wide enough


@pytest.mark.parametrize("size", [1, 2, 7, 20])
def test_confusion_matrix_fits_the_page(size: int) -> None:
    labels = [f"label {i} " + "with a long name " * (i % 3) for i in range(size)]
    (panel,) = panels(confusion_matrix(np.eye(size, dtype=np.int64) * 1000, labels))
    assert float(panel.attrib["width"].removesuffix("pt")) < 62 * 16 * 0.75  # the page's 62rem, in points


def test_label_without_examples_is_an_empty_row() -> None:
    assert "nan" not in confusion_matrix([[5, 0], [0, 0]], ["a", "b"]).replace("dominant", "")


def test_comparison_shows_means_and_two_standard_errors() -> None:
    shown = texts(comparison({"ours": [84.0, 85.0, 86.0], "one seed": [70.0]}, "accuracy", baseline=35.4))
    assert {"accuracy", "ours", "one seed", "baseline 35.4", "70"} <= set(shown)
    assert "85" in shown
    assert f"± {2 / math.sqrt(3):.2g}" in shown  # the standard deviation of 84, 85, 86 is 1
    assert len([text for text in shown if "±" in text]) == 1


@pytest.mark.parametrize("groups", [{}, {"failed": [math.nan]}, {"empty": []}, {"same": [1.0, 1.0]}])
def test_comparison_accepts_empty_and_failed_groups(groups: dict[str, list[float]]) -> None:
    svg = comparison(groups, "score")
    assert set(groups) <= set(texts(svg))


FINETUNING = [
    *({"kind": "train", "step": step, "phase": 0, "loss": 1 / step} for step in range(1, 31)),
    *(
        {"kind": "evaluation", "step": step, "dev/f1": 80.0 + step, "other/f1": 70.0, "dev/f1 X": 1.0}
        for step in (10, 20, 30)
    ),
]


def test_finetuning_curves_show_loss_and_dev_scores() -> None:
    svg = curves_of_finetuning()
    assert len(panels(svg)) == 2
    shown = texts(svg)
    assert {"Loss", "f1", "%"} <= set(shown)
    assert [shown.count(name) for name in ("training", "dev", "other", "held out")] == [1, 1, 1, 0]


def test_finetuning_curves_without_dev_show_only_the_loss() -> None:
    assert len(panels(finetuning_curves(FINETUNING[:30], "f1"))) == 1


def markers(svg: str, colour: str) -> list[tuple[float, float]]:
    """Return the positions of the dots of one colour."""
    found = re.findall(rf'<use [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*fill: {colour}', svg)
    return [(float(x), float(y)) for x, y in found]


def test_dots_are_drawn_on_their_lines_from_the_top() -> None:
    names = ["first", "second", "third", "without"]
    series = {"precision": [[10.0], [20.0], [30.0], []], "recall": [[5.0, 6.0], [7.0], [8.0], []]}
    svg = dots(names, series, "%")
    assert {*names, "precision", "recall", "%"} <= set(texts(svg))
    blue, orange = (
        [dot for dot in markers(svg, colour) if dot[1] > min(y for _, y in markers(svg, colour))]
        for colour in (pictures.BLUE, pictures.ORANGE)
    )  # excluding the legend, which is above
    assert [x for x, _ in blue] == sorted(x for x, _ in blue)
    assert [y for _, y in blue] == sorted({y for _, y in orange})
    assert orange[0][1] == orange[1][1]
    assert len(orange) == 4


def test_the_chosen_line_is_highlighted() -> None:
    series = {"a restart": [[1.0, 2.0], [2.0, 3.0]], "mean": [[1.5], [2.5]]}
    assert dots(["one", "two"], series, "f1", 1).count("opacity: 0.2") == 1
    assert "opacity: 0.2;" not in dots(["one", "two"], series, "f1")


def test_scatter_draws_a_limited_number_of_points() -> None:
    gold, predicted = np.arange(10.0), np.arange(10.0)[::-1].copy()
    assert len(markers(scatter(gold, predicted), pictures.BLUE)) == 10
    many = np.linspace(0, 5, 7 * pictures.MAX_SCATTER_POINTS + 1)
    assert (
        0.8 * pictures.MAX_SCATTER_POINTS
        < len(markers(scatter(many, many), pictures.BLUE))
        <= pictures.MAX_SCATTER_POINTS
    )
    assert {"gold", "predicted"} <= set(texts(scatter(gold[:1], predicted[:1])))


@pytest.mark.parametrize("odds", [[0.0], [1.0, 1.0, 1.0], [-3.0, -1.0, 2.0, 1e6], list(range(5000))])
def test_threshold_curves_label_the_chosen_threshold(odds: list[float]) -> None:
    thresholds = np.array(odds, dtype=np.float64)
    curves = {"exact match": np.linspace(0, 80, len(odds)), "F1": np.linspace(0, 90, len(odds))}
    svg = threshold_curves(thresholds, curves, -1.25)
    assert {"exact match", "F1", "chosen: -1.25", "null threshold"} <= set(texts(svg))
    assert len(svg) < 100_000


def test_close_thresholds_have_few_labels() -> None:
    thresholds = np.linspace(-0.32, -0.15, 50)
    scores = dict.fromkeys(("exact match", "F1"), np.linspace(0, 90, 50))
    curves = threshold_curves(thresholds, scores, -0.2)
    assert sum(text.startswith("−0.") for text in texts(curves)) <= 6  # "chosen: -0.2" has a hyphen


def test_threshold_curves_clip_outliers() -> None:
    thresholds = np.array([*np.linspace(-5, 5, 100), 1e6])
    curves = {"exact match": np.ones(101), "F1": np.zeros(101)}
    svg = threshold_curves(thresholds, curves, 0.0)
    assert "1e6" not in texts(svg)


def test_reliability_diagram_shows_both_temperatures() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (200, 2))
    gold = np.random.default_rng(1).integers(0, 2, 200)
    svg = reliability_diagram(measure_calibration(logits, gold, 2.5))
    assert {"as trained", "temperature 2.5", "confidence, %", "accuracy, %"} <= set(texts(svg))


HOSTILE = "</svg><script>$\\frac{1}{</script> & \"'"


@pytest.mark.parametrize(
    "draw",
    [
        lambda label: confusion_matrix([[1]], [label], label),
        lambda label: comparison({label: [1.0]}, label),
        lambda label: dots([label], {"a": [[1.0]], "b": [[1.0]]}, label),
    ],
)
@pytest.mark.parametrize("label", ["<&>\"'", "$x_1$", "$\\frac{1}{", "権利", "a\tb", "</svg><b>"])
def test_labels_are_always_plain_text(draw: Any, label: str) -> None:
    svg = draw(label)
    assert "<b>" not in svg
    assert label in "\n".join(texts(svg)).replace("    ", "\t")


def test_equal_input_gives_equal_output() -> None:
    assert training_curves(RUN) == curves_of_run()
    assert finetuning_curves(FINETUNING, "f1") == curves_of_finetuning()
    for draw in (
        lambda: confusion_matrix([[3, 1], [0, 4]], ["a", "b"]),
        lambda: comparison({"a": [1.0, 2.0]}, "score"),
        lambda: dots(["a"], {"one": [[1.0]], "two": [[2.0]]}, "%"),
    ):
        assert draw() == draw()


def test_pictures_use_the_page_colour_and_no_background() -> None:
    svg = (
        curves_of_run()
        + confusion_matrix([[3, 1], [0, 4]], ["a", "b"])
        + comparison({"a": [1.0]}, "s", 2)
        + curves_of_finetuning()
        + dots(["a"], {"one": [[1.0]], "two": [[2.0]]}, "%", 0)
        + scatter(np.arange(3.0), np.arange(3.0))
        + threshold_curves(np.arange(3.0), {"a": np.arange(3.0), "b": np.arange(3.0)}, 1.0)
    )
    colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert colours == {pictures.BLUE, pictures.ORANGE}
    assert "currentColor" in svg


def test_pictures_load_nothing_and_contain_no_date() -> None:
    svg = curves_of_run()
    assert not re.search(r"""(src|href)=["'](?!#)""", svg)
    assert "metadata" not in svg
    assert "<!DOCTYPE" not in svg
    assert svg.startswith("<svg")


def test_ids_of_several_pictures_on_a_page_resolve() -> None:
    page = Page("title")
    page.picture(curves_of_run(), "a", "a")
    page.picture(comparison({"a": [1.0, 2.0]}, "score"), "b", "b")
    html = page.html()
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert used
    assert used <= set(re.findall(r' id="([^"]+)"', html))


def test_global_matplotlib_style_is_unchanged() -> None:
    before = dict(matplotlib.rcParams)
    comparison({"a": [1.0]}, "score")
    assert dict(matplotlib.rcParams) == before


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats() | st.none(), min_size=1, max_size=8))
def test_any_sequence_of_losses_can_be_drawn(losses: list[float | None]) -> None:
    clipped = [
        loss if loss is None or not math.isfinite(loss) else max(-1e6, min(loss, 1e6)) for loss in losses
    ]
    assert panels(
        training_curves(
            [train_row(step, masked_lm_loss=loss) | ONLY_LOSS for step, loss in enumerate(clipped)]
        )
    )
