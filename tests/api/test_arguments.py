"""Arguments of the API: settings, arguments that a run records, and notes about skipped inputs."""

from pathlib import Path

import pytest

from bertie.api.arguments import nest_settings, print_skipped, recall_arguments, record_arguments
from bertie.base.errors import SettingsError
from bertie.base.files import write_json

ROWS = [{"text": "a", "label": "b"}]


def test_later_settings_take_precedence_over_earlier_ones():
    layers = {"optimizer.learning_rate": 1, "seed": 1}, None, {"optimizer": {"learning_rate": 2}}
    assert nest_settings(*layers) == {"optimizer": {"learning_rate": 2}, "seed": 1}
    assert nest_settings(*reversed(layers)) == {"optimizer": {"learning_rate": 1}, "seed": 1}
    with pytest.raises(SettingsError, match="settings: the key 1 is not the name of a setting"):
        nest_settings({1: 2})


def test_recorded_paths_are_absolute_and_tables_only_named():
    arguments = {"model": "model", "train": ROWS, "dev": 0.1, "kind": "tags", "task": None}
    assert record_arguments(arguments) == {
        "model": str(Path.cwd() / "model"),
        "dev": 0.1,
        "kind": "tags",
        "in_memory": ["train"],
    }


def test_a_run_recalls_the_arguments_that_are_not_given():
    run = Path("run")
    given = {"model": None, "train": ROWS, "dev": None, "kind": "texts", "text": "text"}
    with pytest.raises(SettingsError, match="run: no run to resume here; start one without --resume"):
        recall_arguments(run, given, {})
    write_json(run / "arguments.json", record_arguments({"model": "m", "train": ROWS, "kind": "tags"}))
    (run / "settings.toml").touch()
    defaults = {"kind": "texts", "text": "text"}
    recalled = recall_arguments(run, given, defaults)
    assert recalled == given | {"model": str(Path.cwd() / "m"), "kind": "tags"}
    moved = recall_arguments(run, given | {"model": "moved"}, defaults)  # compared by its content later
    assert moved["model"] == "moved"
    with pytest.raises(SettingsError, match="run: kind was 'tags' when the run started and is 'pairs' now"):
        recall_arguments(run, given | {"kind": "pairs"}, defaults)
    write_json(run / "arguments.json", {"train": "train.csv", "dev": 0.2})
    for dev, shown in ((0.3, "0.3"), ("dev.csv", r"'.*dev\.csv'")):
        with pytest.raises(SettingsError, match=f"dev was 0.2 when the run started and is {shown} now"):
            recall_arguments(run, {"train": None, "dev": dev}, defaults)
    assert recall_arguments(run, {"train": None, "dev": 0.2}, defaults)["train"] == "train.csv"


def test_data_in_memory_are_passed_again():
    run = Path("run")
    write_json(run / "arguments.json", record_arguments({"model": "m", "train": ROWS, "kind": "tags"}))
    (run / "settings.toml").touch()
    given = {"model": None, "train": None, "dev": None, "kind": "texts", "text": "text"}
    with pytest.raises(SettingsError, match=r"run: this run started with data in memory, .*; pass train"):
        recall_arguments(run, given, {"kind": "texts", "text": "text"})


@pytest.mark.parametrize(("count", "rest"), [(10, []), (11, ["…"])])
def test_ten_messages_about_skipped_inputs_are_shown(capsys, count, rest):
    messages = [f"file {number}: empty" for number in range(count)]
    print_skipped({"empty_files": count - 1, "malformed_documents": 1}, iter(messages))
    *lines, total = capsys.readouterr().err.splitlines()
    assert lines == [*messages[:10], *rest]
    assert total == f"skipped: {count - 1} empty files, 1 malformed document"


def test_no_skipped_inputs_are_no_note(capsys):
    print_skipped({}, [])
    assert capsys.readouterr().err == ""
