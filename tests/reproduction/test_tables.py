"""The recipes that are shipped: numbers as in the paper, settings that can be run."""

import pytest

from bertie.base.errors import SettingsError
from bertie.base.settings import resolve
from bertie.corpus.examples import ExampleSettings
from bertie.model.config import BertConfig
from bertie.recipes import FOLDER, read_recipe
from bertie.reproduction.tables import Table, read_scale, read_table
from bertie.tasks.registry import TASKS
from bertie.training.finetuning import FinetuningSettings
from bertie.training.pretraining import PretrainingSettings

TABLES = sorted(path.stem for path in FOLDER.glob("*.toml") if "rows" in read_recipe(path.stem))
SCALES = ("laptop", "paper")


def test_the_tables_that_there_are():
    assert TABLES == [
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
def test_every_row_has_settings_and_every_column_a_source(name, scale_name):
    scale = read_scale(scale_name)
    table = read_table(name, scale)
    assert set(table.tasks()) <= set(TASKS)
    assert scale.seeds >= 5
    for row in table.rows:
        settings = resolve(PretrainingSettings, table.pretraining_of(row, scale))
        step = row.after * settings.total_steps
        for every in (settings.save_every, settings.evaluate_every):
            assert step % every == 0
        assert row.after == 1 or settings.keep_checkpoints * settings.save_every >= settings.total_steps
        resolve(FinetuningSettings, scale.finetuning, row.finetuning)
        metrics = {
            f"{task.name}/{part}/{metric}"
            for task in TASKS.values()
            for part in task.dev_parts
            for metric in getattr(task, "metrics", ("f1",))
        }
        ours = {"halves/dev/accuracy", "held_out/perplexity", "features/f1"}
        assert {row.outcome(column) for column in table.kept_columns} <= metrics | ours


def test_tokens_are_read_in_squad_or_where_that_is_out_of_reach_in_named_entities():
    tasks = {name: set(read_table("table5", read_scale(name)).tasks()) for name in SCALES}
    assert tasks["paper"] - tasks["laptop"] == {"squad-v1"}
    assert tasks["laptop"] - tasks["paper"] == {"ner"}


@pytest.mark.parametrize("name", TABLES)
def test_at_the_papers_scale_the_settings_are_the_papers(name):
    """But for what a row is about, they are Appendix A.2's, which are the defaults."""
    scale = read_scale("paper")
    table = read_table(name, scale)
    for row in table.rows:
        settings = resolve(PretrainingSettings, table.pretraining_of(row, scale))
        plain = {"save_every", "keep_checkpoints", "evaluate_every"}
        changed = {
            key
            for key in PretrainingSettings.model_fields
            if key not in plain and getattr(settings, key) != getattr(PretrainingSettings(), key)
        }
        assert changed <= {"table6": {"model"}}.get(name, {"model", "examples"}), row.name
        if name not in ("table6", "table5", "figure5"):
            assert settings.model == BertConfig()


def test_the_paper_says():
    scale = read_scale("paper")
    tables = {name: read_table(name, scale) for name in TABLES}
    told = {name: [tuple(row.paper.values()) for row in table.rows] for name, table in tables.items()}
    assert told["table5"] == [
        (84.4, 88.4, 86.7, 92.7, 88.5),
        (83.9, 84.9, 86.5, 92.6, 87.9),
        (82.1, 84.3, 77.5, 92.1, 77.8),
        (82.1, 84.1, 75.7, 91.6, 84.9),
    ]
    assert told["table6"] == [
        (5.84, 77.9, 79.8, 88.4),
        (5.24, 80.6, 82.2, 90.7),
        (4.68, 81.9, 84.8, 91.3),
        (3.99, 84.4, 86.7, 92.9),
        (3.54, 85.7, 86.9, 93.3),
        (3.23, 86.6, 87.8, 93.7),
    ]
    assert told["table7"] == [(96.4,), (91.0,), (95.6,), (94.9,), (95.9,), (96.1,), (95.5,)]
    assert told["table8"] == [
        (84.2, 95.4, 94.9),
        (84.3, 94.9, 94.0),
        (84.1, 95.2, 94.6),
        (84.4, 95.2, 94.7),
        (83.7, 94.8, 94.6),
        (83.6, 94.9, 94.6),
    ]


def test_the_shares_of_table_8_are_its_rows_names():
    scale = read_scale("paper")
    table = read_table("table8", scale)
    for row in table.rows:
        examples = resolve(ExampleSettings, table.pretraining_of(row, scale).get("examples", {}))
        rest = 1 - examples.mask_probability - examples.keep_probability
        shares = [
            round(100 * share) for share in (examples.mask_probability, examples.keep_probability, rest)
        ]
        assert "/".join(map(str, shares)) == row.name


def test_the_sizes_of_table_6_are_its_rows_names():
    for place, scale in enumerate(map(read_scale, ("paper", "laptop"))):
        table = read_table("table6", scale)
        for row in table.rows:
            model = resolve(BertConfig, table.pretraining_of(row, scale)["model"])
            size = f"{model.num_hidden_layers}/{model.hidden_size}/{model.num_attention_heads}"
            assert row.name.rstrip(")").split(" (")[place] == size
            assert model.intermediate_size == 4 * model.hidden_size


def test_every_pair_that_differs_in_the_paper_is_an_ordering():
    values = {
        "title": "toy",
        "columns": [{"name": "score", "outcome": "a/dev/b"}],
        "rows": [
            {"name": name, "paper": {"score": score}} for name, score in zip("abc", (1, 2, 2), strict=True)
        ],
    }
    found = [(better.name, worse.name) for better, worse, _ in resolve(Table, values).claimed()]
    assert found == [("b", "a"), ("c", "a")]


def test_two_rows_with_the_folder_of_one_are_refused():
    values = read_recipe("table5")
    values["rows"][3]["name"] = "Bert!"
    del values["claims"]
    with pytest.raises(SettingsError, match="these rows would have the same folder: BERT, Bert!"):
        resolve(Table, values)


def test_a_name_that_is_none_is_refused():
    values = read_recipe("table5")
    values["claims"][0]["better"] = "Bert"
    with pytest.raises(SettingsError, match=r"'Bert' is not one of \+ BiLSTM, BERT, LTR & No NSP, No NSP"):
        resolve(Table, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": None}, "row 'embeddings': say with 'features' which vectors it reads"),
        ({"after": 0.5}, "row 'embeddings': 'features' are of the last step; leave 'after' out"),
    ],
)
def test_vectors_that_a_row_cannot_have_are_refused(change, message):
    values = read_recipe("table7")
    values["rows"][1] |= change
    with pytest.raises(SettingsError, match=message):
        resolve(Table, values)


def test_a_row_that_says_nothing_of_the_scale_is_refused():
    """A copy of laptop with another name would pre-train six equal models for Table 6."""
    scale = read_scale("laptop").model_copy(update={"name": "desk"})
    message = r"table6: row '3/768/12 \(1/64/4\)' has settings at paper, laptop, not at 'desk'"
    with pytest.raises(SettingsError, match=message):
        read_table("table6", scale)
