"""Which epoch is kept, and what the model card says about it."""

import pytest
from tests.training.letters import TASK

from bertie.base.files import write_json
from bertie.model.formats.directory import LongTexts, ModelMetadata
from bertie.tasks.pairs import CustomPairs
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.model_selection import ModelSelection, _model_card, describe_decisions


def make_selection(output) -> ModelSelection:
    """Make the selection of a run; without a model, it can only compare scores."""
    return ModelSelection(TASK, None, None, {}, {}, FinetuningSettings(), output, {}, {})


def save_scores(output, **accuracies: float) -> None:
    write_json(output / "scores.json", {"scores": {part: {"accuracy": n} for part, n in accuracies.items()}})


@pytest.mark.parametrize(
    ("dev", "other", "is_best"), [(50.0, 99.0, False), (49.9, 99.0, False), (50.1, 1.0, True)]
)
def test_only_a_higher_score_on_the_first_part_replaces_the_model(tmp_path, dev, other, is_best):
    (tmp_path / "model").mkdir()
    save_scores(tmp_path, dev=50.0, other=60.0)
    scores = {"dev": {"accuracy": dev}, "other": {"accuracy": other}}
    assert make_selection(tmp_path)._is_best(scores) == is_best


def test_a_model_without_its_scores_is_replaced(tmp_path):
    """A kill between the two files leaves one of them."""
    selection, scores = make_selection(tmp_path), {"dev": {"accuracy": 1.0}}
    assert selection._is_best(scores)
    (tmp_path / "model").mkdir()
    assert selection._is_best(scores)
    save_scores(tmp_path, dev=50.0)
    assert not selection._is_best(scores)
    (tmp_path / "model").rmdir()
    assert selection._is_best(scores)


@pytest.mark.parametrize(
    ("long_texts", "facts"),
    [
        (LongTexts(), {}),
        (LongTexts(method="head-tail"), {"long texts": "the first and the last tokens"}),
        (LongTexts(method="windows", pooling="max"), {"long texts": "windows, max of their logits"}),
    ],
    ids=lambda value: getattr(value, "method", None),
)
def test_card_says_how_long_texts_are_read(long_texts, facts):
    assert describe_decisions(TASK.with_long_texts(long_texts), {}) == facts


@pytest.mark.parametrize(
    ("task", "changes", "library"),
    [
        (TASK, {}, "transformers"),
        (TASK, {"bilstm": True}, "bertie"),
        (CustomPairs(), {}, "sentence-transformers"),
    ],
    ids=["classifier", "bilstm", "embedding"],
)
def test_card_names_the_library_that_loads_the_model(initial_model, task, changes, library):
    metadata = ModelMetadata(initial_model.config, "BertModel", (), initial_model.tokenizer, **changes)
    scores = {"dev": {"mrr": 61.238, "accuracy": 50.0}}
    card = _model_card(task, metadata, {"train": "a*b.csv"}, scores, {"dev": {"accuracy": 33.333}})
    assert card.startswith(f"---\nlibrary_name: {library}\ntags: [bert, {task.head}]\n---\n")
    assert "- train: a\\*b.csv\n" in card
    assert "| dev | mrr | 61.24 |  |\n| dev | accuracy | 50.00 | 33.33 |\n" in card
