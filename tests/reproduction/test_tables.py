"""The shipped tables and scales: the paper's numbers, and settings that are valid."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertie.base.errors import SettingsError
from bertie.base.settings import resolve
from bertie.corpus.examples import ExampleSettings
from bertie.model.config import BertConfig
from bertie.recipes import list_recipes, read_recipe
from bertie.reproduction.cells import pretraining_directories, pretraining_directory
from bertie.reproduction.checkpoint_tables import is_checkpoint_table, read_checkpoint_table
from bertie.reproduction.runner import Runner
from bertie.reproduction.tables import Table, read_scale, read_table
from bertie.tasks.registry import TASKS
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.search import SearchSettings

CHECKPOINT_TABLES = [recipe.name for recipe in list_recipes("table") if is_checkpoint_table(recipe.name)]
TABLES = [recipe.name for recipe in list_recipes("table") if recipe.name not in CHECKPOINT_TABLES]
SCALES = ("laptop", "paper")


def test_all_tables_are_shipped():
    assert CHECKPOINT_TABLES == ["table1", "table2", "table3", "table4"]
    assert TABLES == [
        "activation",
        "figure5",
        "masking_rate",
        "negatives",
        "table5",
        "table6",
        "table7",
        "table8",
    ]


@pytest.mark.parametrize("scale_name", SCALES)
@pytest.mark.parametrize("name", TABLES)
def test_rows_have_valid_settings_and_columns_known_outcomes(name, scale_name):
    scale = read_scale(scale_name)
    table = read_table(name, scale)
    assert set(table.task_names()) <= set(TASKS)
    assert scale.seeds >= 3
    for row in table.rows:
        settings = resolve(PretrainingSettings, table.merge_pretraining(row, scale))
        step = row.pretraining_fraction * settings.total_steps
        for interval in (settings.save_every, settings.evaluate_every):
            assert step % interval == 0
        assert (
            row.pretraining_fraction in (0, 1)
            or settings.keep_checkpoints * settings.save_every >= settings.total_steps
        )
        resolve(FinetuningSettings, scale.finetuning, row.finetuning)
        metrics = {
            f"{task.name}/{part}/{metric}"
            for task in TASKS.values()
            for part in task.dev_parts
            for metric in getattr(task, "metrics", ("f1",))
        }
        metrics |= {f"{task}/held_out/accuracy" for task in scale.training_held_out}
        others = {
            "",
            "split_pairs/dev/accuracy",
            "same_article/dev/accuracy",
            "held_out/perplexity",
            "held_out/loss",
            "held_out/next_sentence_accuracy",
            "features/f1",
            "blimp/accuracy",
        }
        assert {row.outcome(column) for column in table.included_columns} <= metrics | others


def make_runner(table_name: str, scale_name: str) -> Runner:
    scale = read_scale(scale_name)
    sources: Any = SimpleNamespace(digest=str)
    table = read_table(table_name, scale)
    return Runner(table_name, table, scale, sources, Path("out"), "cpu")


def directory_of(runner: Runner, row_name: str) -> Path:
    """Return the directory of a row's pre-training run, seed 0, in a new OUT."""
    row = next(row for row in runner.table.rows if row.name == row_name)
    pretraining = runner._pretraining(row, 0)
    trunk = pretraining.trunk and pretraining_directory(runner.out, pretraining.trunk, "corpus")
    name = trunk.name if trunk else ""
    return pretraining_directories(runner.out, pretraining.settings, "corpus", name)[0]


@pytest.mark.parametrize("scale_name", SCALES)
def test_figure_5_starts_from_the_runs_of_table_5(scale_name):
    table5, figure5 = (make_runner(name, scale_name) for name in ("table5", "figure5"))
    kinds = (
        ("BERT", [f"masked, {percent} %" for percent in (25, 50, 75, 100)]),
        ("LTR & No NSP", [f"left to right, {percent} %" for percent in (25, 50, 75, 100)]),
    )
    for row, checkpoints in kinds:
        assert {directory_of(figure5, name) for name in checkpoints} == {directory_of(table5, row)}
    both_ways, left_to_right = (directory_of(table5, row) for row, _ in kinds)
    assert both_ways != left_to_right


@pytest.mark.parametrize("name", TABLES)
def test_every_task_has_three_epochs_at_the_paper_scale(name):
    """Sections 4.1 and 4.2; for named entities the paper has no number, and Table 7 with --model has 3."""
    runner = make_runner(name, "paper")
    for row in runner.table.rows:
        for task in runner._finetuned_tasks(row):
            settings = runner._finetuning_settings(row, 0, task, TASKS[task].defaults, 5e-5)
            assert (settings.epochs, settings.batch_size) == (3, 32), task
            assert not settings.optimizer.bias_correction
    assert read_checkpoint_table("table7").search["epochs"] == [3]


def test_ner_replaces_squad_at_the_laptop_scale():
    tasks = {name: set(read_table("table5", read_scale(name)).task_names()) for name in SCALES}
    assert tasks["paper"] - tasks["laptop"] == {"squad-v1", "mnli", "qnli", "mrpc"}
    assert tasks["laptop"] - tasks["paper"] == {"ner"}


@pytest.mark.parametrize("name", TABLES)
def test_paper_scale_has_the_papers_settings(name):
    """Only the compared settings differ from the defaults, which follow Appendix A.2."""
    scale = read_scale("paper")
    table = read_table(name, scale)
    for row in table.rows:
        settings = resolve(PretrainingSettings, table.merge_pretraining(row, scale))
        allowed = {"save_every", "keep_checkpoints", "evaluate_every"}
        changed = {
            key
            for key in PretrainingSettings.model_fields
            if key not in allowed and getattr(settings, key) != getattr(PretrainingSettings(), key)
        }
        may_change = {"table6": {"model"}, "table5": {"model", "examples", "next_sentence_loss"}}
        assert changed <= may_change.get(name, {"model", "examples"}), row.name
        if name not in ("table6", "table5", "figure5", "activation"):
            assert settings.model == BertConfig()


def test_tables_have_the_papers_numbers():
    scale = read_scale("paper")
    tables = {name: read_table(name, scale) for name in TABLES}
    numbers = {
        name: [tuple(row.paper.values()) for row in table.rows if row.paper] for name, table in tables.items()
    }
    assert numbers["table5"] == [
        (84.4, 88.4, 86.7, 92.7, 88.5),
        (83.9, 84.9, 86.5, 92.6, 87.9),
        (83.9, 84.9, 86.5, 92.6, 87.9),
        (82.1, 84.3, 77.5, 92.1, 77.8),
        (82.1, 84.1, 75.7, 91.6, 84.9),
    ]
    assert numbers["table6"] == [
        (5.84, 77.9, 79.8, 88.4),
        (5.24, 80.6, 82.2, 90.7),
        (4.68, 81.9, 84.8, 91.3),
        (3.99, 84.4, 86.7, 92.9),
        (3.54, 85.7, 86.9, 93.3),
        (3.23, 86.6, 87.8, 93.7),
    ]
    assert numbers["table7"] == [(96.4,), (91.0,), (95.6,), (94.9,), (95.9,), (96.1,), (95.5,)]
    assert numbers["table8"] == [
        (84.2, 95.4, 94.9),
        (84.3, 94.9, 94.0),
        (84.1, 95.2, 94.6),
        (84.4, 95.2, 94.7),
        (83.7, 94.8, 94.6),
        (83.6, 94.9, 94.6),
    ]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_row_without_pretraining(name):
    table = read_table(name, read_scale("laptop"))
    assert next(row.name for row in table.rows if not row.is_pretrained) == "no pre-training"
    judged = {ordering.worse.name for ordering in table.orderings()}
    assert "no pre-training" in judged


def test_table_7_of_a_given_model_leaves_out_rows_without_pretraining():
    assert len(read_checkpoint_table("table7").rows) == 7


def test_probabilities_of_table_8_match_its_row_names():
    scale = read_scale("paper")
    table = read_table("table8", scale)
    for row in table.rows[:-1]:  # the last one is not pre-trained
        examples = resolve(ExampleSettings, table.merge_pretraining(row, scale).get("examples", {}))
        mask, keep = examples.mask_probability, examples.keep_probability
        percentages = [round(100 * probability) for probability in (mask, keep, 1 - mask - keep)]
        assert "/".join(map(str, percentages)) == row.name


def test_model_sizes_of_table_6_match_its_row_names():
    for i, scale in enumerate(map(read_scale, ("paper", "laptop"))):
        table = read_table("table6", scale)
        for row in table.rows:
            if not row.is_pretrained:
                continue
            model = resolve(BertConfig, table.merge_pretraining(row, scale)["model"])
            size = f"{model.num_hidden_layers}/{model.hidden_size}/{model.num_attention_heads}"
            assert row.name.rstrip(")").split(" (")[i] == size
            assert model.intermediate_size == 4 * model.hidden_size


def test_neighbours_in_the_papers_order_and_claims_are_ordered():
    values = {
        "title": "toy",
        "columns": [
            {"name": "score", "outcome": "a/dev/b"},
            {"name": "loss", "outcome": "c/dev/d", "lower_is_better": True},
        ],
        "rows": [
            {"name": name, "paper": {"score": score, "loss": 2.0 * score}}
            for name, score in zip("abcd", (1, 2, 2, 3), strict=True)
        ],
        "claims": [
            {"better": "d", "worse": "a", "columns": ["score"]},
            {"better": "d", "worse": "b", "columns": ["score"]},  # neighbours, which are tested anyway
        ],
    }
    orderings = [
        (better.name, worse.name, column.name) for better, worse, column in resolve(Table, values).orderings()
    ]
    by_score = [("d", "b"), ("d", "c"), ("b", "a"), ("c", "a"), ("d", "a")]
    by_loss = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    assert orderings == [(*pair, "score") for pair in by_score] + [(*pair, "loss") for pair in by_loss]


def test_table_rejects_rows_that_share_a_directory():
    values = read_recipe("table5", "table")
    values["rows"][3]["name"] = "Bert!"
    del values["claims"]
    with pytest.raises(SettingsError, match="these rows would share one directory: BERT, Bert!"):
        resolve(Table, values)


def test_table_rejects_a_claim_about_an_unknown_row():
    values = read_recipe("table5", "table")
    values["claims"][0]["better"] = "Bert"
    with pytest.raises(
        SettingsError, match=r"unknown row 'Bert'; the rows are \+ BiLSTM, BERT, LTR & No NSP, No NSP"
    ):
        resolve(Table, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": None}, "row 'embeddings': set 'features' to the vectors that the tagger reads"),
        (
            {"pretraining_fraction": 0.5},
            "row 'embeddings': 'features' come from the last step; remove 'pretraining_fraction'",
        ),
    ],
)
def test_table_rejects_rows_without_matching_features(change, message):
    values = read_recipe("table7", "table")
    values["rows"][1] |= change
    with pytest.raises(SettingsError, match=message):
        resolve(Table, values)


def test_read_table_rejects_a_scale_without_row_settings():
    """A renamed copy of the laptop scale would pre-train six equal models for Table 6."""
    scale = read_scale("laptop").model_copy(update={"name": "desk"})
    message = r"table6: row '3/768/12 \(1/64/4\)' has settings for the scales paper, laptop, not for 'desk'"
    with pytest.raises(SettingsError, match=message):
        read_table("table6", scale)


def test_tables_and_scales_with_former_names_load(tmp_path):
    """The split pairs were called halves, and other settings were renamed too."""
    (tmp_path / "table.toml").write_text(
        """
        title = "toy"
        columns = [{ name = "pairs", outcome = "halves/dev/accuracy" }]
        without_at.toy = ["squad-v1"]

        [[rows]]
        name = "row"
        after = 0.5
        outcomes = { pairs = "halves/dev/accuracy" }
        pretraining = { examples.mask_share = 0.7 }
        pretraining_at.toy = { examples.keep_share = 0.2 }
        finetuning = { warmup_share = 0.2 }
        """
    )
    (tmp_path / "scale.toml").write_text(
        """
        name = "toy"
        pretrain_each_seed = true
        learning_rates = [1e-4]
        without = ["halves", "ner"]
        pretraining = { examples.mask_probability = 0.6 }

        [halves]
        training = 8

        [tasks.halves]
        warmup_share = 0.3
        """
    )
    scale = read_scale(str(tmp_path / "scale.toml"))
    assert scale.excluded == ("split_pairs", "ner")
    assert scale.split_pairs.training == 8
    assert scale.tasks == {"split_pairs": {"warmup_ratio": 0.3}}
    table = read_table(str(tmp_path / "table.toml"), scale)
    assert table.excluded == ("split_pairs", "ner", "squad-v1")
    (row,) = table.rows
    assert row.pretraining_fraction == 0.5
    assert row.outcome(table.columns[0]) == table.columns[0].outcome == "split_pairs/dev/accuracy"
    assert row.finetuning == {"warmup_ratio": 0.2}
    assert table.merge_pretraining(row, scale) == {
        "examples": {"mask_probability": 0.7, "keep_probability": 0.2}
    }


@pytest.mark.parametrize(
    ("name", "batch_size", "epochs", "rates"),
    [
        ("table1", 32, 3, (5e-5, 4e-5, 3e-5, 2e-5)),
        ("table2", 32, 3, (5e-5,)),
        ("table3", 48, 2, (5e-5,)),
        ("table4", 16, 3, (2e-5,)),
    ],
)
def test_tables_from_a_model_have_the_papers_settings(name, batch_size, epochs, rates):
    table = read_checkpoint_table(name)
    settings = resolve(SearchSettings, table.search)
    assert (settings.batch_sizes, settings.epochs) == ((batch_size,), (epochs,))
    assert settings.learning_rates == rates
    for row in table.rows:
        part, metric = row.outcome.split("/")[1:]
        task = TASKS[row.task]
        assert part in task.dev_parts
        assert metric in getattr(task, "metrics", ("exact_match", "exact", "f1", "accuracy"))


def test_table_1_has_the_papers_average():
    """79.6 and 82.1, over all rows but WNLI."""
    papers = [row.paper for row in read_checkpoint_table("table1").rows if row.paper]
    assert len(papers) == 9
    for model, average in (("BERT-Base, test", 79.6), ("BERT-Large, test", 82.1)):
        assert round(sum(numbers[model] for numbers in papers) / 9, 1) == average
