"""Tables in memory: every kind gives the same columns, and other objects are errors."""

from enum import Enum
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from bertie.base.errors import DataError
from bertie.base.memory import MemoryTable, as_source

COLUMNS = {"text": ["good", "bad"], "label": [1, 0]}


@pytest.mark.parametrize(
    "table",
    [
        COLUMNS,
        {"text": ("good", "bad"), "label": np.array([1, 0])},
        {"text": pa.array(["good", "bad"]), "label": pa.array([1, 0])},
        {"text": pa.chunked_array([["good"], ["bad"]]), "label": pl.Series([1, 0])},
        [{"text": "good", "label": 1}, {"text": "bad", "label": 0}],
        ({"text": text, "label": label} for text, label in (("good", 1), ("bad", 0))),
        pd.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS),
        pa.table(COLUMNS),
        datasets.Dataset.from_dict(COLUMNS),
    ],
    ids=[
        *("columns", "arrays", "pyarrow arrays", "chunked arrays", "rows"),
        *("generator", "pandas", "polars", "pyarrow", "datasets"),
    ],
)
def test_every_kind_of_table_gives_the_same_columns(table):
    source = as_source(table, "train")
    assert isinstance(source, MemoryTable)
    assert source.columns == COLUMNS
    assert str(source) == "train"
    assert {type(value) for value in source.columns["label"]} == {int}


def test_class_labels_of_a_dataset_become_names():
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=features)
    for form in (None, "arrow", "numpy", "pandas"):
        assert as_source(table.with_format(form), "train").columns["label"] == ["good", None]


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_missing_values_become_none(missing):
    table = pd.DataFrame({"label": pd.Series(["x", missing], dtype=object)})
    assert as_source(table, "train").columns == {"label": ["x", None]}
    assert as_source([{"label": "x"}, {"label": missing}], "train").columns == {"label": ["x", None]}


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"words": [["a", "b"], ["c"]]}),
        pd.DataFrame({"words": [np.array(["a", "b"]), np.array(["c"])]}),  # as read_parquet returns them
        pl.DataFrame({"words": [["a", "b"], ["c"]]}),
        [{"words": ("a", "b")}, {"words": ("c",)}],
    ],
    ids=["pandas lists", "pandas arrays", "polars", "tuples"],
)
def test_lists_arrays_and_tuples_become_lists(table):
    assert as_source(table, "train").columns == {"words": [["a", "b"], ["c"]]}


def test_scalars_and_arrays_inside_dicts_become_plain():
    answers = {"text": np.array(["Ada"]), "answer_start": np.array([3])}
    (value,) = as_source([{"answers": answers, "label": np.float64(2)}], "train").columns["answers"]
    assert value == {"text": ["Ada"], "answer_start": [3]}
    (label,) = as_source([{"label": np.int64(2)}], "train").columns["label"]
    assert type(label) is int


def test_scalars_of_pyarrow_and_sets_become_plain():
    columns = as_source([{"label": pa.scalar(2), "tags": set("hgfedcba")}], "train").columns
    assert columns == {"label": [2], "tags": [[*"abcdefgh"]]}


def test_names_of_columns_become_strings():
    assert as_source(pd.DataFrame({0: ["a"], 1: ["b"]}), "train").columns == {"0": ["a"], "1": ["b"]}


def test_members_of_an_enum_become_their_values():
    color = Enum("color", {"RED": "red", "BLUE": "blue"})
    assert as_source([{"label": color.RED}, {"label": [color.BLUE]}], "x").columns["label"] == [
        "red",
        ["blue"],
    ]


def test_lists_of_class_labels_become_names():
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-LOC"]))
    features = datasets.Features({"tags": tags})
    table = datasets.Dataset.from_dict({"tags": [[0, 1], []]}, features=features)
    assert as_source(table, "train").columns == {"tags": [["O", "B-LOC"], []]}


def test_iterable_dataset_is_read_whole():
    features = datasets.Features({"label": datasets.ClassLabel(names=["bad", "good"])})
    table = datasets.Dataset.from_dict({"label": [1, 0]}, features=features).to_iterable_dataset()
    for form in (None, "arrow"):
        assert as_source(table.with_format(form), "train").columns == {"label": ["good", "bad"]}


def test_dataset_dict_is_an_error_that_names_the_splits():
    table = datasets.DatasetDict({"train": datasets.Dataset.from_dict(COLUMNS)})
    with pytest.raises(DataError, match="train: DatasetDict is not a table; give one of its splits: train"):
        as_source(table, "train")


def test_duplicate_columns_are_an_error():
    columns = ["text", "text"]
    for table in (
        pd.DataFrame([["a", "b"]], columns=columns),
        pa.table([pa.array(["a"]), pa.array(["b"])], names=columns),
    ):
        with pytest.raises(DataError, match="train: two columns are called 'text'; rename one"):
            as_source(table, "train")


def test_rows_may_lack_columns():
    assert as_source([{"a": 1}, {"b": 2}], "x").columns == {"a": [1, None], "b": [None, 2]}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "train: empty"),
        (pd.DataFrame({"text": []}), "train: empty"),
        ({"a": [1], "b": [1, 2]}, "differ in length"),
        (["a text", "another"], "train: row 1 is a str, not a dict; give a path, a list of dicts"),
        ([{"text": "good"}, ("bad",)], "train: row 2 is a tuple, not a dict; give a path"),
        ({"text": (word for word in "ab")}, "train: the column 'text' is a generator; give a list"),
        ({"text": np.str_("good")}, "train: the column 'text' is a str_; give a list"),
        ({"text": np.array("good")}, "train: the column 'text' is a ndarray; give a list"),
        (np.array(0.5), "train: ndarray is not a table"),
        (b"bytes", "train: bytes is not a table"),
        (7, "train: int is not a table"),
        ("https://host/a.csv", "https://host/a.csv: labelled data are read from local files; download"),
        (Path("s3://bucket/a.csv"), "s3://bucket/a.csv: labelled data are read from local files; download"),
        ({"text": "good"}, "train: the column 'text' is a str; give a list"),
        (pd.Series(["good"]), "train: Series is not a table"),
        (pl.LazyFrame(COLUMNS), "train: LazyFrame is not a table"),
        (datasets.Dataset.from_dict(COLUMNS)["text"], "train: Column is not a table; give a path"),
    ],
)
def test_other_objects_are_rejected(table, message):
    with pytest.raises(DataError, match=message):
        as_source(table, "train")


@pytest.mark.parametrize("path", ["train.csv", "folder/train.jsonl"])
def test_paths_stay_paths(path):
    assert str(as_source(path, "train")) == path
