"""Training on windows: batches, weights and limits count texts; each window has its text's label."""

import pytest
from tests.training.letters import LABELS, TASK, make_initial_model
from tests.training.runs import assert_same_weights

from bertie.base.errors import SettingsError
from bertie.base.settings import resolve
from bertie.model.heads import ClassificationModel
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom.questions import CustomQuestionAnswering
from bertie.training.class_weights import label_weights
from bertie.training.distributed import Ranks
from bertie.training.finetuning import apply_settings, finetune
from bertie.training.finetuning_batches import FinetuningBatches
from bertie.training.finetuning_settings import FinetuningSettings, step_bounds, training_indices

COUNT = 21


def settings(**changes: object) -> FinetuningSettings:
    return resolve(
        FinetuningSettings,
        {"long_texts": "windows", "max_seq_length": 6, "batch_size": 4, "epochs": 2, "device": "cpu"},
        changes,
    ).resolved()


def texts() -> LabelledTexts:
    """Make texts of 0 to 20 words."""
    labels = [LABELS[i % 3 % (i % 5 + 1)] for i in range(COUNT)]
    words = (f"{label}{i % 10}" for i, label in enumerate(labels))
    return LabelledTexts([" ".join([word] * i) for i, word in enumerate(words)], labels=labels)


@pytest.fixture(scope="module")
def initial_model(tmp_path_factory):
    return make_initial_model(tmp_path_factory.mktemp("model") / "initial")


@pytest.mark.parametrize("limit", [0, 10])
def test_a_step_reads_all_windows_of_its_texts(initial_model, limit):
    chosen = settings(max_training_examples=limit)
    examples = texts()
    inputs = apply_settings(TASK, chosen, {}).encode(examples, initial_model.tokenizer, 6)
    model = ClassificationModel(initial_model.config, 3)
    num_texts = limit or COUNT
    steps = len(step_bounds(inputs, chosen)) - 1
    assert steps == -(-num_texts // 4)
    batches = FinetuningBatches(inputs, chosen, 0, model, Ranks())
    read = []
    for _ in range(steps):
        for micro_batch in next(batches).micro_batches:
            bounds = micro_batch.cu_seqlens.tolist()
            for start, stop, label in zip(bounds, bounds[1:], micro_batch.labels.tolist(), strict=False):
                tokens = tuple(micro_batch.input_ids[start:stop].tolist())
                read.append((tokens, label))
    gold = TASK.gold(examples)
    expected = []
    for i in training_indices(inputs, chosen):
        for window in range(inputs.text_bounds[i], inputs.text_bounds[i + 1]):
            tokens = inputs.input_ids[inputs.bounds[window] : inputs.bounds[window + 1]]
            expected.append((tuple(tokens.tolist()), int(gold[i])))
    assert sorted(read) == sorted(expected)


def test_class_weights_count_texts(initial_model):
    examples, weights = texts(), []
    for long_texts in ("windows", "truncate"):
        chosen = settings(class_weights="balanced", long_texts=long_texts)
        task = apply_settings(TASK, chosen, {})
        weights.append(label_weights(task, task.encode(examples, initial_model.tokenizer, 6), chosen))
    assert weights[0] == weights[1]
    assert len({*weights[0].values()}) > 1


def test_pooling_does_not_change_training(initial_model, tmp_path):
    for pooling in ("mean", "max"):
        chosen = settings(window_pooling=pooling, keep_best=False)
        finetune(TASK, initial_model, texts(), {"dev": texts()}, chosen, tmp_path / pooling, silent=True)
    assert_same_weights(tmp_path / "mean", tmp_path / "max")


@pytest.mark.parametrize(
    "changes",
    [
        {"long_texts": "truncate", "window_stride": 24},
        {"long_texts": "truncate", "window_pooling": "max"},
        {"window_stride": 24, "long_texts": "windows"},
    ],
)
def test_questions_refuse_settings_of_windows(changes):
    message = r"are for classifiers .* leave them out with questions: .* a stride of at most 128 tokens"
    with pytest.raises(SettingsError, match=message):
        apply_settings(CustomQuestionAnswering(), settings(**changes), {})
