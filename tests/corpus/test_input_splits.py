"""Tasks cover the inputs once, in order, and are of about equal size."""

import codecs
import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from bertie.base.errors import DataError
from bertie.corpus import input_splits
from bertie.corpus.documents import Document, InputErrors
from bertie.corpus.input_splits import InputSplit, read_splits, split_inputs
from bertie.corpus.readers import list_inputs, read_documents


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_splits, "TASK_BYTES", 1000)
    monkeypatch.setattr(input_splits, "FILE_OVERHEAD_BYTES", 10)


def read_tasks(tasks: list[list[InputSplit]]) -> list[Document]:
    return [document for task in tasks for document in read_splits(task, "text", InputErrors())]


def test_tasks_cover_all_files_in_order(tmp_path: Path) -> None:
    for name, count in (("a.jsonl", 1), ("b.jsonl", 400), ("c.jsonl", 1), ("d.jsonl", 30)):
        text = "".join(json.dumps({"text": f"{name} {index}"}) + "\n" for index in range(count))
        (tmp_path / name).write_text(text)
    inputs = list_inputs([tmp_path])
    tasks = split_inputs(inputs)
    assert read_tasks(tasks) == [document for path in inputs for document in read_documents(path)]
    assert all(sum(split.size for split in task) <= 1000 for task in tasks)
    assert len(tasks) >= 9


def test_many_small_files_fill_several_tasks(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_text("Text.")
    assert [len(task) for task in split_inputs(list_inputs([tmp_path]))] == [67, 67, 66]


def test_compressed_files_count_as_four_times_as_long(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt.gz").write_bytes(bytes(120))
    assert [len(task) for task in split_inputs(list_inputs([tmp_path]))] == [2, 2]


def test_parquet_files_are_split_by_row_groups(tmp_path: Path) -> None:
    table = pyarrow.table({"text": [f"Text {number}." for number in range(1000)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=150)
    tasks = split_inputs([tmp_path / "a.parquet"])
    assert len(tasks) == 7
    assert [document.text for document in read_tasks(tasks)] == table["text"].to_pylist()


def test_large_binary_file_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(5000))
    for format in (None, "jsonl"):
        errors = InputErrors("skip")
        assert split_inputs([tmp_path / "a.bin"], format, errors) == []
        assert errors.counts == {"binary_files": 1}
    with pytest.raises(DataError, match=r"a\.bin: a binary, PDF or RTF file"):
        split_inputs([tmp_path / "a.bin"])


@pytest.mark.parametrize("names", [["empty.txt"], ["empty.txt", "a.txt"], ["empty.txt", "empty.txt.gz"]])
def test_empty_files_may_come_first(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty.txt.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "a.txt").write_text("One.")
    tasks = split_inputs([tmp_path / name for name in names])
    assert [split.path.name for task in tasks for split in task] == names
    errors = InputErrors()
    documents = [document for task in tasks for document in read_splits(task, "text", errors)]
    assert [document.text for document in documents] == ["One."] * ("a.txt" in names)
    assert errors.counts == {"empty_files": len(names) - len(documents)}


def test_blank_lines_may_come_first(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + b"\n" * 200_000 + b"One.\n\nTwo.\n")
    (tmp_path / "blank.txt").write_text(" \n" * 100_000)
    errors = InputErrors()
    tasks = split_inputs([tmp_path / "a.txt", tmp_path / "blank.txt"], None, errors)
    texts = [document.text for task in tasks for document in read_splits(task, "text", errors)]
    assert " ".join(texts).split() == ["One.", "Two."]
    assert errors.counts == {"empty_files": 1}
