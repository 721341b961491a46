"""Word counts: compared with `collections.Counter`, for any number of workers."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.base.progress import Progress
from bertie.corpus import input_splits, word_counts
from bertie.corpus.documents import InputErrors
from bertie.corpus.word_counts import WordTable, count_tokenized_words, count_words, lowercase_words
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece_trainer import learn_vocabulary


@given(st.lists(st.lists(st.text(max_size=5), max_size=30), max_size=6))
def test_word_table_keeps_every_word(batches: list[list[str]]) -> None:
    table, expected = WordTable(), Counter[str]()
    for words in batches:
        codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        bounds = np.cumsum([0, *map(len, words)])
        table.add(codes, bounds, np.full(len(words), 3))
        expected.update(words * 3)
    assert dict(zip(table.words(), table.counts.tolist(), strict=False)) == expected


def test_word_table_grows() -> None:
    table = WordTable()
    words = [f"word{index}" for index in range(100_000)]
    codes = np.frombuffer("".join(words).encode("utf-32-le"), dtype=np.uint32)
    bounds = np.cumsum([0, *map(len, words)])
    for _ in range(2):
        table.add(codes, bounds, np.arange(len(words)))
    assert table.words() == words
    assert table.counts[: len(table)].tolist() == [2 * index for index in range(len(words))]


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    generator = random.Random(1)
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.jsonl")
        texts = [" ".join(generator.choices(["Ab", "cé", "d,e", "李四"], k=30)) for _ in range(100)]
        paths[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return paths


@pytest.mark.parametrize("workers", [1, 2])
def test_words_of_several_files_are_counted(
    inputs: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_splits, "TASK_BYTES", 10_000)
    words, counts = count_words(inputs, True, workers)
    texts = [json.loads(line)["text"] for path in inputs for line in path.read_text().splitlines()]
    spaced = " ".join(texts).replace("李四", " 李 四 ").replace(",", " , ").replace("é", "e").lower()
    assert dict(zip(words, counts.tolist(), strict=True)) == Counter(spaced.split())
    assert words == sorted(words)
    assert counts.dtype == np.int64
    cased, _ = count_words(inputs, False, 1)
    assert {"Ab", "cé"} <= set(cased)


def test_kernels_are_compiled_before_the_rate_is_measured(
    inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    events, split = [], word_counts._split_normalized

    def start_progress(*arguments: Any, **options: Any) -> Progress:
        events.append("progress")
        return Progress(*arguments, **options)

    def split_texts(lowercase: bool, texts: list[str]) -> tuple[Any, Any]:
        events.append("split")
        return split(lowercase, texts)

    monkeypatch.setattr(word_counts, "Progress", start_progress)
    monkeypatch.setattr(word_counts, "_split_normalized", split_texts)
    count_words(inputs[:1], True, 1)
    assert events == ["split", "progress", "split"]


def test_lowercase_words_are_those_counted_in_lower_case(tmp_path: Path) -> None:
    text = "Éa éa ÉA a\u0301 A.B Σ ΟΔΟΣ. 中é豈 x\u037ey 한국 İI \u0301 ΟΔΟΣ"
    (tmp_path / "a.txt").write_text(text)
    words, counts = lowercase_words(*count_words([tmp_path / "a.txt"], False, 1))
    expected, expected_counts = count_words([tmp_path / "a.txt"], True, 1)
    assert words == expected
    assert counts.tolist() == expected_counts.tolist()


def test_batch_size_does_not_change_the_counts(inputs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    words, counts = count_words(inputs, True, 1)
    monkeypatch.setattr(word_counts, "BATCH_CHARACTERS", 50)
    words_in_batches, counts_in_batches = count_words(inputs, True, 1)
    assert words_in_batches == words
    assert counts_in_batches.tolist() == counts.tolist()


def test_vocabulary_is_learnt_from_the_counts(inputs: list[Path]) -> None:
    assert learn_vocabulary(*count_words(inputs, True, 1), 60)[-2:] == ["ab", "ce"]


@pytest.mark.parametrize("workers", [1, 2])
def test_skipped_inputs_are_counted(inputs: list[Path], workers: int) -> None:
    expected = count_words(inputs[1:], True, workers)[0]
    inputs[0].write_bytes(b"\n".join([b"{", b"\0"]))
    errors = InputErrors("skip")
    assert count_words(inputs, True, workers, errors=errors)[0] == expected
    assert errors.counts == {"binary_files": 1}
    with pytest.raises(DataError, match=f"{inputs[0]}: a binary, PDF or RTF file"):
        count_words(inputs, True, workers)


def test_inputs_without_words_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": " "}\n')
    with pytest.raises(DataError, match="no words; add files that hold text"):
        count_words([tmp_path / "a.jsonl"], True, 1)
    (tmp_path / "b.txt").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"no words \(.*b\.txt: a binary.*\); add files that hold text"):
        count_words([tmp_path / "b.txt"], True, 1, errors=InputErrors("skip"))


def test_format_and_column_are_those_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('{"body": "one"}\n{"body": "two two"}\n{"text": "no"}\n')
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, "one", "two"]))
    options: dict[str, Any] = {"format": "jsonl", "column": "body"}
    errors = InputErrors("skip")
    words, counts = count_words([tmp_path / "a.csv"], True, 1, errors=errors, **options)
    assert (words, counts.tolist()) == (["one", "two"], [1, 2])
    tokens, counts = count_tokenized_words([tmp_path / "a.csv"], tokenizer, 1, errors=errors, **options)
    assert sorted(zip(tokens, counts.tolist(), strict=True)) == [([5], 1), ([6], 2)]
    assert errors.counts == {"malformed_documents": 2}


@pytest.mark.parametrize("workers", [1, 2])
def test_tokenized_words_are_the_tokenizers(
    inputs: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_splits, "TASK_BYTES", 10_000)
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "a", "##b", "c", "##e", ",", "d,e", "[E1]"])
    tokenizer = Tokenizer(vocabulary, added_tokens=("[E1]",), never_split=("d,e",))
    inputs[0].write_text(json.dumps({"text": "ab[E1] x"}) + "\n" + json.dumps({"text": "\n"}) + "\n")
    words, counts = count_tokenized_words(inputs, tokenizer, workers)
    texts = " ".join(path.read_text() for path in inputs[1:])
    expected = {
        ("a", "##b"): texts.count("Ab") + 1,
        ("c", "##e"): texts.count("c\\u00e9"),
        ("d,e",): texts.count("d,e"),
        ("[UNK]",): 2 * texts.count("\\u674e") + 1,
        ("[E1]",): 1,
    }
    found = [tuple(tokenizer.convert_ids_to_tokens(word)) for word in words]
    assert dict(zip(found, counts.tolist(), strict=True)) == expected
