"""Formats, ranges, compression, and what is said about damaged files."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.corpus import readers
from bertie.corpus.readers import Document, Format, cut_into_tasks, detect_format, list_inputs, read_documents

LINES = st.text("aé. ", min_size=1, max_size=8).map(lambda line: f"x{line}")
DOCUMENTS = st.lists(st.lists(LINES, min_size=1, max_size=4), max_size=8)


def write_sentences(documents: list[list[str]], blanks: int) -> str:
    return ("\n" * (1 + blanks)).join("".join(f"{line}\n" for line in lines) for lines in documents)


def write_wikiextractor(documents: list[list[str]], blanks: int) -> str:
    return "".join(
        f'<doc id="{index}" url="u" title="Title &amp; {index}">\nTitle &amp; {index}\n\n'
        + "\n".join(lines)
        + "\n\n</doc>\n"
        + "\n" * blanks
        for index, lines in enumerate(documents)
    )


def write_jsonl(documents: list[list[str]], blanks: int) -> str:
    return "".join(json.dumps({"text": "\n".join(lines)}) + "\n" * (1 + blanks) for lines in documents)


WRITERS: dict[Format, Callable[[list[list[str]], int], str]] = {
    "sentences": write_sentences,
    "wikiextractor": write_wikiextractor,
    "jsonl": write_jsonl,
}


@pytest.mark.parametrize("format", WRITERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DOCUMENTS, st.integers(0, 2), st.lists(st.integers(1, 400), max_size=6))
def test_ranges_give_each_document_once(
    tmp_path: Path, format: Format, documents: list[list[str]], blanks: int, cuts: list[int]
) -> None:
    path = tmp_path / "file"
    data = WRITERS[format](documents, blanks).encode()
    path.write_bytes(data)
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), None]
    found = [
        document.text.rstrip("\n")
        for start, stop in pairwise(edges)
        for document in read_documents(path, format, start or 0, stop)
    ]
    strip = str.strip if format == "wikiextractor" else str
    assert found == [strip("\n".join(lines)) for lines in documents]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_compressed_files(tmp_path: Path, format: Format, suffix: str, compress: object) -> None:
    text = WRITERS[format]([["One is here.", "Two."], ["Three is é."]] * 9, 0)
    plain, compressed = tmp_path / "file.txt", tmp_path / f"file.txt{suffix}"
    plain.write_text(text, encoding="utf-8")
    data = compress.compress(text.encode())  # type: ignore[attr-defined]
    compressed.write_bytes(data)
    assert detect_format(compressed) == format
    assert list(read_documents(compressed)) == list(read_documents(plain))
    compressed.write_bytes(data[:-12])
    with pytest.raises(DataError, match=rf"file\.txt\{suffix}: damaged or cut-off"):
        list(read_documents(compressed))
    compressed.write_bytes(b"no such thing")
    with pytest.raises(DataError, match=rf"file\.txt\{suffix}: "):
        list(read_documents(compressed))


def test_a_files_end_ends_a_document(tmp_path: Path) -> None:
    """google-research/bert joins the last document of a file to the first of the next (trap 13)."""
    for name, text in (("a", "One.\n\nTwo."), ("b", "Three.\n\nFour.\n")):
        (tmp_path / name).write_text(text)
    texts = [d.text.strip() for path in list_inputs([tmp_path]) for d in read_documents(path, "sentences")]
    assert texts == ["One.", "Two.", "Three.", "Four."]


def test_lines_are_sentences_only_where_the_format_says_so() -> None:
    text = "One. Two.\nThree.\n \n"
    assert Document(text, lines_are_sentences=True).sentences() == ["One. Two.", "Three."]
    assert Document(text).sentences() == ["One. ", "Two.", "Three."]


def test_titles_are_dropped_and_entities_resolved(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(
        '<doc id="1" title="A">\nA\n\nA &lt; B &amp;amp; C.\n</doc>\n<doc id="2" title="B">\nC\n</doc>\n'
    )
    assert [document.text for document in read_documents(path)] == ["A < B &amp; C.", "C"]


def test_byte_order_marks_and_carriage_returns_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.\r\n")
    assert next(read_documents(path, "plain")).text[0] == "O"
    assert [document.sentences() for document in read_documents(path, "sentences")] == [
        ["One.", "Two."],
        ["Three."],
    ]


WRAPPED = "It was a dark night, and the\nrain fell in torrents, save\nwhen it was checked.\n\n"
PARAGRAPHS = (
    "It was dark. The rain fell. It stopped.\nThen it went on. And on. And so on.\n\nThe end came. Soon.\n"
)


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("a.txt", "One line alone.\n", "plain"),
        ("a.txt", PARAGRAPHS * 3, "plain"),
        ("a.txt", WRAPPED * 3, "wrapped"),
        ("a.txt", "It was dark.\nThe rain fell.\n\nIt stopped.\nThe end.\n", "sentences"),
        ("wiki_00", '\n<doc id="1" title="A">\nA\n</doc>\n', "wikiextractor"),
        ("a.jsonl", '  {"id": 1, "text": "A"}\n', "jsonl"),
        ("a.txt", '{"text": "A"}\n', "jsonl"),
    ],
)
def test_detection(tmp_path: Path, name: str, text: str, format: str) -> None:
    (tmp_path / name).write_text(text)
    assert detect_format(tmp_path / name) == format


def test_wrapped_lines_are_joined(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(WRAPPED * 2)
    (document,) = read_documents(tmp_path / "book.txt")
    assert (
        document.sentences()
        == ["It was a dark night, and the rain fell in torrents, save when it was checked."] * 2
    )


def test_detection_on_real_files(shared_data: Path) -> None:
    text = shared_data / "text"
    assert detect_format(text / "wikipedia-small/wiki_00") == "wikiextractor"
    assert len(list(read_documents(text / "google-bert-sample_text.txt"))) == 3
    books = list_inputs([text / "gutenberg/*.xz"])[:40]
    assert sum(detect_format(path) == "wrapped" for path in books) >= 39  # one book is verse in long lines


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "a.txt: there is no text"),
        ("a.txt", b" \n\n", "a.txt: there is no text"),
        ("a.txt", b"good\nb\xe4d\n", "a.txt: line 2: not UTF-8"),
        ("a.txt", b"One is.\nTwo is.\n\nThree is.\nFo\xffr is.\n", "a.txt: line 5: not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl: line 2: not valid JSON"),
        (
            "a.jsonl",
            b'{"text": "a"}\n\n{"txt": "a"}\n',
            'a.jsonl: line 3: expected an object with a string under "text"',
        ),
        ("a.jsonl", b'{"text": 1}\n', "a.jsonl: line 1: expected an object"),
        ("a.jsonl", b"[]\n", "a.jsonl: line 1: expected an object"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl: line 1: half of a surrogate pair"),
        (
            "wiki",
            b'<doc id="1" title="A">\nA\n\nText\n',
            r"wiki: line 1: this <doc …> is not closed; the file is cut off",
        ),
        (
            "wiki",
            b'<doc title="A">\n</doc>\n<doc title="B">\n<doc title="C">\n',
            "wiki: line 3: .* before the next one",
        ),
    ],
)
def test_messages(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message) as error:
        list(read_documents(tmp_path / name))
    assert "\n" not in str(error.value)


def test_missing_inputs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nothing: no such file"):
        list(read_documents(tmp_path / "nothing"))
    with pytest.raises(DataError, match="nothing: no such file or directory"):
        list_inputs([tmp_path / "nothing"])
    with pytest.raises(DataError, match="empty: no files"):
        list_inputs([tmp_path / "empty"])


def test_inputs_are_listed_sorted_once_and_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden/x.txt", "b/.x.txt", "c.xz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    listed = [path.relative_to(tmp_path).as_posix() for path in list_inputs([tmp_path])]
    assert listed == ["a.txt", "b/1.txt", "b/2.txt", "c.xz"]
    listed = [
        path.name for path in list_inputs([str(tmp_path / "b"), tmp_path / "*.txt", tmp_path / "b/2.txt"])
    ]
    assert listed == ["1.txt", "2.txt", "a.txt"]


def test_tasks_cover_the_files_and_are_about_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "TASK_BYTES", 1000)
    for name, count in (("a.jsonl", 1), ("b.jsonl", 400), ("c.jsonl", 1), ("d.jsonl", 30)):
        text = "".join(json.dumps({"text": f"{name} {index}"}) + "\n" for index in range(count))
        (tmp_path / name).write_text(text)
    inputs = list_inputs([tmp_path])
    tasks = cut_into_tasks(inputs)
    found = [document for task in tasks for span in task for document in span.documents()]
    assert found == [document for path in inputs for document in read_documents(path)]
    assert all(sum(span.size for span in task) <= 1000 for task in tasks)
    assert len(tasks) >= 9
