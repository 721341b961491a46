"""Reading and listing inputs: formats, ranges, compression, damaged files."""

import bz2
import errno
import gzip
import json
import lzma
import os
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bertie.base.errors import DataError, SettingsError
from bertie.corpus import readers
from bertie.corpus.documents import Document, InputErrors
from bertie.corpus.formats import Format, detect_format
from bertie.corpus.readers import list_inputs, read_documents

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


def write_wikipedia(documents: list[list[str]], blanks: int) -> str:
    pages = (
        f"  <page>\n    <title>{index}</title>\n    <ns>0</ns>\n    <revision>\n      <text>"
        + "\n".join(lines)
        + "</text>\n    </revision>\n  </page>\n"
        + "\n" * blanks
        for index, lines in enumerate(documents)
    )
    return f"<mediawiki>\n  <siteinfo>\n  </siteinfo>\n{''.join(pages)}</mediawiki>\n"


WRITERS: dict[Format, Callable[[list[list[str]], int], str]] = {
    "wikipedia": write_wikipedia,
    "sentences": write_sentences,
    "wikiextractor": write_wikiextractor,
    "jsonl": write_jsonl,
}


@pytest.mark.parametrize("format", WRITERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DOCUMENTS, st.integers(0, 2), st.lists(st.integers(1, 400), max_size=6))
def test_every_document_is_in_exactly_one_range(
    tmp_path: Path, format: Format, documents: list[list[str]], blanks: int, cuts: list[int]
) -> None:
    assume(documents or format != "wikipedia")  # a dump without pages is an error
    path = tmp_path / "file"
    data = WRITERS[format](documents, blanks).encode()
    path.write_bytes(data)
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), None]
    texts = [
        document.text.rstrip("\n")
        for start, stop in pairwise(edges)
        for document in read_documents(path, format, start or 0, stop)
    ]
    if format == "wikipedia":
        documents = [[" ".join(line.split()) for line in lines] for lines in documents]
    strip = str.strip if format == "wikiextractor" else str
    assert texts == [strip("\n".join(lines)) for lines in documents]


@pytest.mark.parametrize(
    ("line_breaks", "replacement"),
    [
        (r"(</page>)\n +", r"\1"),  # <page> on the line of </page>
        (r"\n +", ""),  # each page on a line
        (r"\n *", ""),  # the whole dump on a line
    ],
)
def test_page_tags_of_a_dump_may_share_a_line(tmp_path: Path, line_breaks: str, replacement: str) -> None:
    path = tmp_path / "dump"
    path.write_text(re.sub(line_breaks, replacement, write_wikipedia([["One."], ["Two."], ["Three."]], 0)))
    assert detect_format(path) == "wikipedia"
    for cut in range(1, path.stat().st_size, 5):
        ranges = ((0, cut), (cut, None))
        documents = [
            document for start, stop in ranges for document in read_documents(path, None, start, stop)
        ]
        assert [document.text for document in documents] == ["One.", "Two.", "Three."]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma), (".zst", zstandard)]
)
def test_compressed_files_are_read_and_damage_is_reported(
    tmp_path: Path, format: Format, suffix: str, compress: object
) -> None:
    text = WRITERS[format]([["One is here.", "Two."], ["Three is é."]] * 9, 0)
    plain, compressed = tmp_path / "file.txt", tmp_path / f"file.txt{suffix}"
    plain.write_text(text, encoding="utf-8")
    data = compress.compress(text.encode())  # type: ignore[attr-defined]
    compressed.write_bytes(data)
    assert detect_format(compressed) == format
    assert list(read_documents(compressed)) == list(read_documents(plain))
    compressed.write_bytes(data[:-12])
    with pytest.raises(DataError, match=rf"file\.txt\{suffix}: damaged or truncated"):
        list(read_documents(compressed))
    compressed.write_bytes(b"no such thing")
    with pytest.raises(DataError, match=rf"file\.txt\{suffix}: "):
        list(read_documents(compressed))


def test_end_of_file_ends_a_document(tmp_path: Path) -> None:
    """google-research/bert joins it with the first document of the next file."""
    for name, text in (("a", "One.\n\nTwo."), ("b", "Three.\n\nFour.\n")):
        (tmp_path / name).write_text(text)
    texts = [d.text.strip() for path in list_inputs([tmp_path]) for d in read_documents(path, "sentences")]
    assert texts == ["One.", "Two.", "Three.", "Four."]


def test_missing_final_newline_does_not_change_the_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\nTwo.\n\nOne.\nTwo.")
    assert len({document.text for document in read_documents(tmp_path / "a.txt", "sentences")}) == 1


def test_lines_are_sentences_only_if_the_format_says_so() -> None:
    text = "One. Two.\nThree.\n \n"
    assert Document(text, lines_are_sentences=True).split_sentences() == ["One. Two.", "Three."]
    assert Document(text).split_sentences() == ["One. ", "Two.", "Three."]


def test_wikiextractor_titles_and_entities_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(
        '<doc id="1" title="A">\nA\n\nA &lt; B &amp;amp; C.\n</doc>\n'
        '<doc id="2" title="B">\nC &gt; D &amp;lt; E\n</doc>\n'
    )
    assert [document.text for document in read_documents(path)] == ["A < B &amp; C.", "C > D &lt; E"]


def test_byte_order_marks_and_carriage_returns_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.\r\n")
    assert next(read_documents(path, "plain")).text[0] == "O"
    assert [document.split_sentences() for document in read_documents(path, "sentences")] == [
        ["One.", "Two."],
        ["Three."],
    ]


def test_a_line_of_wide_spaces_separates_documents(tmp_path: Path) -> None:
    """As in google-research/bert, which strips lines after decoding them."""
    (tmp_path / "a.txt").write_text("One.\nTwo.\n\u3000\nThree.\n \xa0\nFour.\n", encoding="utf-8")
    texts = [document.text for document in read_documents(tmp_path / "a.txt", "sentences")]
    assert texts == ["One.\nTwo.", "Three.", "Four."]


def test_sentences_with_old_line_breaks_are_not_one_sentence(tmp_path: Path) -> None:
    """Text with "\\r" for line breaks, as of Mac OS 9, has no line in the format `sentences`."""
    (tmp_path / "a.txt").write_bytes(b"It was dark.\rThe rain fell.\r\rIt stopped.\rThe end.\r")
    (document,) = read_documents(tmp_path / "a.txt")
    assert document.split_sentences() == ["It was dark.", "The rain fell.", "It stopped.", "The end."]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["<doc id=1>\n", "</doc>\n", "text\n"]), max_size=12), st.integers(1, 80))
def test_unmatched_tags_are_reported_once(tmp_path: Path, lines: list[str], cut: int) -> None:
    path = tmp_path / "wiki"
    path.write_text("".join(lines) + "end\n")
    whole, divided = InputErrors("skip"), InputErrors("skip")
    texts = [document.text for document in read_documents(path, "wikiextractor", errors=whole)]
    for start, stop in ((0, cut), (cut, None)):
        for document in read_documents(path, "wikiextractor", start, stop, errors=divided):
            assert document.text == texts.pop(0)
    assert (texts, divided.messages) == ([], whole.messages)


WRAPPED = "It was a dark night, and the\nrain fell in torrents, save\nwhen it was checked.\n\n"
PARAGRAPHS = (
    "It was dark. The rain fell. It stopped.\nThen it went on. And on. And so on.\n\nThe end came. Soon.\n"
)


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("a.txt", "One line alone.\n", "plain"),
        ("a.txt", PARAGRAPHS * 3, "plain"),
        ("a.txt", "It was dark. The rain fell. It stopped.\n\n" * 9 + "Who?\nI.\n", "plain"),
        ("a.txt", WRAPPED * 3, "wrapped"),
        ("a.txt", WRAPPED.replace(", ", f" {'and so on ' * 10}, ") * 3, "plain"),  # verse in long lines
        ("a.txt", "It was dark.\nThe rain fell.\n\nIt stopped.\nThe end.\n", "sentences"),
        ("wiki_00", '\n<doc id="1" title="A">\nA\n</doc>\n', "wikiextractor"),
        ("a.jsonl", '  {"id": 1, "text": "A"}\n', "jsonl"),
        ("a.txt", '{"text": "A"}\n', "jsonl"),
        ("a.txt", '{ "text": "A"}\n', "jsonl"),
        ("a.xml", f"<?xml version='1.0'?>\n<!-- {'long' * 500} -->\n<mediawiki>", "wikipedia"),
        ("a.json", '{\n  "text": "A"\n}\n', "jsonl"),  # whose first line is then an error
        ("a.csv", "text\nOne.\n", "csv"),
        ("a.tsv", "text\nOne.\n", "tsv"),
    ],
)
def test_format_is_detected(tmp_path: Path, name: str, text: str, format: str) -> None:
    (tmp_path / name).write_text(text)
    assert detect_format(tmp_path / name) == format


def test_wrapped_lines_are_joined(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(WRAPPED * 2)
    (document,) = read_documents(tmp_path / "book.txt")
    assert (
        document.split_sentences()
        == ["It was a dark night, and the rain fell in torrents, save when it was checked."] * 2
    )


def test_wrapped_lines_of_scripts_without_spaces_are_joined_without_a_space(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("東京のミュージ\nアムで Python\nを学ぶ。\n\n서울\n은\n")
    (document,) = read_documents(tmp_path / "book.txt", "wrapped")
    assert document.split_sentences() == ["東京のミュージアムで Python を学ぶ。", "서울 은"]


def test_format_of_real_files_is_detected(shared_data: Path) -> None:
    text = shared_data / "text"
    assert detect_format(text / "wikipedia-small/wiki_00") == "wikiextractor"
    assert detect_format(text / "google-bert-sample_text.txt") == "sentences"
    assert len(list(read_documents(text / "google-bert-sample_text.txt"))) == 3
    books = list_inputs([text / "gutenberg/*.xz"])[:40]
    assert sum(detect_format(path) == "wrapped" for path in books) >= 39  # one book is verse in long lines


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"some text \0 and more", "a.txt: a binary, PDF or RTF file, or text in UTF-16"),
        ("a.txt", "Text.".encode("utf-16"), "a.txt: a binary, PDF or RTF file, or text in UTF-16"),
        (
            "a.pdf",
            b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
            "a.pdf: a binary, PDF or RTF file, or text in UTF-16",
        ),
        ("a.rtf", rb"{\rtf1\ansi\f0 Some text.\par}", "a.rtf: a binary, PDF or RTF file, or text in UTF-16"),
        ("a.txt", gzip.compress(b"Text.", mtime=0), "a.txt: .gz data; give the file a name that ends in .gz"),
        ("a.txt", b"cut off: \xe2\x82", "a.txt, line 1: not UTF-8"),
        ("a.json", b'[\n  {"text": "a"},\n', "a.json: a single JSON array; write one object per line"),
        (
            "b.json",
            b'[\n  "a", "b"\n]\n',
            r"b.json: a single JSON array; .* \(jq --compact-output '{text: .\[\]}'\)",
        ),
        ("a.html", b"\n<!DOCTYPE html>\n<title>A</title>\n<p>Text.\n", "a.html: an HTML page, whose tags"),
        ("a.htm", b'<?xml version="1.0"?>\n<html lang="en">\n', "a.htm: an HTML page, whose tags"),
        ("a.xml", b'<?xml version="1.0"?>\n<TEI><text>A</text></TEI>\n', "a.xml: an XML file, whose tags"),
        ("dump", b"<mediawiki>\n</mediawiki>\n", "dump: no <page> in this file; leave --format"),
        ("a.txt", b"good\nb\xe4d\n", "a.txt, line 2: not UTF-8"),
        ("a.txt", b"One is.\nTwo is.\n\nThree is.\nFo\xffr is.\n", "a.txt, line 5: not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl, line 2: not valid JSON"),
        (
            "a.jsonl",
            b'{"text": "a"}\n\n{"txt": "a"}\n',
            'a.jsonl, line 3: expected a JSON object with a string under "text"',
        ),
        ("a.jsonl", b'{"text": 1}\n', "a.jsonl, line 1: expected a JSON object"),
        ("a.jsonl", b'[{"text": "a"}]\n', r"line 1: expected a .*; write one object per line \(jq --c\S+ '"),
        ("a.json", b'{\n "text": "a"\n}\n', r"line 1: not .*; write one object per line \(jq --c\S+ \.\)$"),
        ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}\n", "a.jsonl, line 1: not valid JSON"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", "a.jsonl, line 1: expected a JSON object"),
        (
            "wiki",
            b'<doc id="1" title="A">\nA\n\nText\n',
            r"wiki, line 1: <doc> is not closed, so the file is cut off",
        ),
        (
            "wiki",
            b'<doc title="A">\n</doc>\n<doc title="B">\n<doc title="C">\n',
            "wiki, line 3: .* before the next one",
        ),
        ("wiki", b'<doc title="A">\nA\n</doc>\n\nB\n\nText.\n</doc>\n', "wiki, line 8: </doc> without <doc>"),
        ("dump", b"<mediawiki>\n<ns>0</ns>\n</page>\n</mediawiki>\n", "dump, line 3: </page> without <page>"),
        ("wiki", b'<doc title="A">\nA\n\nT\xffxt\n</doc>\n', "wiki, line 4: not UTF-8"),
        ("dump", b"<mediawiki>\n<page>\n<ns>0\n</page>\n", "dump, line 2: <page> is not well-formed"),
        ("a.parquet", b"PAR1 and no more", "a.parquet: damaged or truncated"),
        ("a.arrow", b"no such thing", "a.arrow: damaged or truncated"),
    ],
)
def test_error_names_the_file_the_line_and_the_problem(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message) as error:
        list(read_documents(tmp_path / name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("format", ["wikiextractor", "wikipedia"])
def test_text_in_another_format_than_the_given_one_is_not_lost(tmp_path: Path, format: Format) -> None:
    (tmp_path / "a.txt").write_text("One.\n" * 9)
    for start, message_count in ((0, 1), (10, 0)):
        errors = InputErrors("skip")
        assert list(read_documents(tmp_path / "a.txt", format, start, errors=errors)) == []
        assert errors.counts["malformed_documents"] == message_count


GOOD_LINE = b'{"text": "Good."}\n'


@pytest.mark.parametrize(
    ("name", "data", "kept", "counts"),
    [
        ("a.txt", b"", 0, {"empty_files": 1}),
        ("a.txt", b"\xef\xbb\xbf \n", 0, {"empty_files": 1}),
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0\0", 0, {"binary_files": 1}),
        ("a.txt", "é".encode("latin-1"), 0, {"misencoded_documents": 1}),
        ("a.txt.gz", gzip.compress(b"Text." * 99, mtime=0)[:-9], 0, {"unreadable_files": 1}),
        ("a.txt.gz", b"", 0, {"unreadable_files": 1}),
        (
            "a.jsonl",
            b"{\n" + GOOD_LINE + b"[]\n" + GOOD_LINE + b'{"text": "\xff"}\n' + GOOD_LINE,
            3,
            {"malformed_documents": 2, "misencoded_documents": 1},
        ),
        ("a.txt", b"One.\nTwo.\n\n\xff\n\nFour.\nFive.\n\nSix.\nSeven.\n", 3, {"misencoded_documents": 1}),
        (
            "wiki",
            b'<doc id="1">\n<doc id="2">\n2\n</doc>\n<doc id="3">\n\xff\n</doc>\n<doc id="4">\n4\n</doc>\n',
            2,
            {"malformed_documents": 1, "misencoded_documents": 1},
        ),
    ],
)
def test_skipped_inputs_are_counted_and_named(
    tmp_path: Path, name: str, data: bytes, kept: int, counts: dict[str, int]
) -> None:
    (tmp_path / name).write_bytes(data)
    errors = InputErrors("skip")
    assert len(list(read_documents(tmp_path / name, errors=errors))) == kept
    assert errors.counts == counts
    assert len(errors.messages) == sum(counts.values())
    location = re.compile(rf"{re.escape(str(tmp_path / name))}(, line \d+)?: ")
    assert all(map(location.match, errors.messages))


def test_cut_off_file_gives_the_documents_before_the_cut(tmp_path: Path) -> None:
    lines = [json.dumps({"text": random.Random(number).randbytes(40).hex()}) + "\n" for number in range(9000)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode())[:-1000])
    errors = InputErrors("skip")
    kept = [document.text for document in read_documents(tmp_path / "a.jsonl.gz", errors=errors)]
    assert len(kept) > 4500
    assert kept == [json.loads(line)["text"] for line in lines[: len(kept)]]
    assert errors.counts == {"unreadable_files": 1}


def test_empty_file_never_stops_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    errors = InputErrors("stop")
    assert list(read_documents(tmp_path / "a.txt", errors=errors)) == []
    message = f"{tmp_path / 'a.txt'}: the file holds no text; remove it from the inputs"
    assert errors.messages == [message]


@given(st.integers(0, 200), st.integers(0, 200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_errors_in_ranges_count_lines_from_the_start_of_the_file(
    tmp_path: Path, start: int, length: int
) -> None:
    lines = [GOOD_LINE, b"{\n", b"\n", b"bad\n", GOOD_LINE, b"worse\n"] * 3
    (tmp_path / f"{start}-{length}.jsonl").write_bytes(b"".join(lines))
    begins = [sum(map(len, lines[:index])) for index in range(len(lines))]
    errors = InputErrors("skip")
    path = tmp_path / f"{start}-{length}.jsonl"
    list(read_documents(path, "jsonl", start, start + length, errors=errors))
    expected = [
        index + 1
        for index, begin in enumerate(begins)
        if start <= begin < start + length and lines[index] in (b"{\n", b"bad\n", b"worse\n")
    ]
    assert [int(message.split("line ")[1].split(":")[0]) for message in errors.messages] == expected


def test_half_a_surrogate_pair_becomes_u_fffd(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(r'{"text": "a\ud800b \ud83d\ude00"}')
    (document,) = read_documents(tmp_path / "a.jsonl")
    assert document.text == "a\ufffdb \U0001f600"


def test_column_names_the_key_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "No.", "body": "Yes."}')
    assert [d.text for d in read_documents(tmp_path / "a.jsonl", column="body")] == ["Yes."]


@pytest.mark.parametrize("suffix", ["", ".xz"])
@pytest.mark.parametrize("format", ["plain", "wrapped"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.text("aé .\n\r\u2028", min_size=1).filter(str.strip), st.integers(1, 9))
def test_long_documents_are_cut_into_pieces(
    tmp_path: Path, suffix: str, format: Format, text: str, piece_characters: int
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(lzma.compress(text.encode()) if suffix else text.encode())
    (whole,) = read_documents(path, format)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "PIECE_CHARACTERS", piece_characters)
        pieces = list(read_documents(path, format))
    assert [piece.is_continued for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    joined = "".join(piece.text for piece in pieces)
    if format == "plain" or max(map(len, text.encode().split(b"\n"))) < piece_characters:
        assert joined == whole.text
    else:  # a line longer than a piece becomes two lines
        assert "".join(joined.split()) == "".join(whole.text.split())


def test_long_document_with_an_error_is_skipped_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "PIECE_CHARACTERS", 10)
    (tmp_path / "a.txt").write_bytes(b"Good line.\n" * 9 + b"\xff")
    errors = InputErrors("skip")
    assert list(read_documents(tmp_path / "a.txt", "plain", errors=errors)) == []
    assert errors.messages[0].startswith(f"{tmp_path / 'a.txt'}, line 10: not UTF-8")


CSV = 'label,body\n1,"Good, ""very"" good.\nLine two."\n\n0,\n1,Bad é.\n'


@pytest.mark.parametrize(("suffix", "compress"), [("", None), (".gz", gzip), (".xz", lzma)])
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_tables_have_one_document_per_row(tmp_path: Path, delimiter: str, suffix: str, compress: Any) -> None:
    path = tmp_path / f"a.{'csv' if delimiter == ',' else 'tsv'}{suffix}"
    data = b"\xef\xbb\xbf" + CSV.replace(",", delimiter).replace("\n", "\r\n").encode()
    path.write_bytes(compress.compress(data) if compress else data)
    texts = [document.text for document in read_documents(path, column="body")]
    assert texts == [f'Good{delimiter} "very" good.\nLine two.', "", "Bad é."]
    message = (
        f"{re.escape(str(path))}: no column 'text'; the columns are label, body; choose one with --column"
    )
    with pytest.raises(SettingsError, match=message):
        list(read_documents(path))


def test_malformed_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'n,text\n1,One.\n2,a,b\n3,\xff\n4,"Two.\n"\n5,"x" y\n6,Three.\n')
    errors = InputErrors("skip")
    texts = [document.text for document in read_documents(path, errors=errors)]
    assert texts == ["One.", "Two.\n", "Three."]
    assert errors.counts == {"malformed_documents": 2, "misencoded_documents": 1}
    lines = ("line 3: expected 2 fields, got 3", "line 4: not UTF-8", "line 7: the row that begins here")
    for message, line in zip(errors.messages, lines, strict=True):
        assert message.startswith(f"{path}, {line}")
    with pytest.raises(DataError, match="line 3: expected 2 fields"):
        list(read_documents(path))


def test_table_of_malformed_rows_is_not_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n1,a,b\n")
    errors = InputErrors("skip")
    assert list(read_documents(tmp_path / "a.csv", errors=errors)) == []
    assert errors.counts == {"malformed_documents": 1}


def test_table_without_rows_is_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,text\n")
    errors = InputErrors()
    assert list(read_documents(tmp_path / "a.csv", errors=errors)) == []
    assert errors.counts == {"empty_files": 1}


def test_inputs_must_not_be_empty() -> None:
    with pytest.raises(DataError, match="no inputs; name at least one file or folder"):
        list_inputs([])


def test_parquet_files_are_read_by_column(tmp_path: Path) -> None:
    texts = ["One. Two.", "Three."]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "n": [1, 2]}), tmp_path / "a.parquet")
    assert [document.text for document in read_documents(tmp_path / "a.parquet")] == texts
    with pytest.raises(SettingsError, match=r"a\.parquet: no column 'body'; the columns are text, n; choose"):
        list(read_documents(tmp_path / "a.parquet", column="body"))


def test_rows_without_text_are_skipped(tmp_path: Path) -> None:
    column = pyarrow.array([b"One.", b"\xff", None], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    errors = InputErrors("skip")
    assert [d.text for d in read_documents(tmp_path / "a.parquet", errors=errors)] == ["One."]
    assert errors.counts == {"misencoded_documents": 1, "malformed_documents": 1}
    locations = [message.removeprefix(f"{tmp_path}/").split(": ")[0] for message in errors.messages]
    assert locations == ["a.parquet, row 2", "a.parquet, row 3"]


def test_saved_data_set_is_read(tmp_path: Path) -> None:
    """The layout of `datasets.DatasetDict.save_to_disk`."""
    for split in ("test", "train"):
        (tmp_path / split).mkdir()
        table = pyarrow.table({"text": [f"{split} {number}" for number in range(600)]})
        with pyarrow.ipc.new_stream(tmp_path / split / "data-00000-of-00001.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        for name in ("state.json", "dataset_info.json"):
            (tmp_path / split / name).write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    texts = [d.text for path in list_inputs([tmp_path]) for d in read_documents(path)]
    assert texts == [f"{split} {number}" for split in ("test", "train") for number in range(600)]


def test_caches_of_a_saved_data_set_are_not_listed(tmp_path: Path) -> None:
    for name in ("data-00000-of-00001.arrow", "cache-0123456789abcdef.arrow", "dataset_info.json"):
        (tmp_path / name).touch()
    assert [file.name for file in list_inputs([tmp_path])] == ["data-00000-of-00001.arrow"]


def test_missing_inputs_are_reported(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nothing: no such file"):
        list(read_documents(tmp_path / "nothing"))
    with pytest.raises(DataError, match=r"nothing: no such file or directory$"):
        list_inputs([tmp_path / "nothing"])
    with pytest.raises(DataError, match="empty: no files"):
        list_inputs([tmp_path / "empty"])


def test_a_text_in_place_of_a_path_is_to_be_written_to_a_file() -> None:
    message = "no such file or directory; if this is a text, write it to a file first, and pass the file$"
    for texts in (["The cat sat and/or slept."], ["a\nline"]):
        with pytest.raises(DataError, match=message):
            list_inputs(texts)


def test_inputs_are_listed_once_sorted_and_not_hidden(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden/x.txt", "b/.x.txt", "c.xz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    listed = [path.relative_to(tmp_path).as_posix() for path in list_inputs([tmp_path])]
    assert listed == ["a.txt", "b/1.txt", "b/2.txt", "c.xz"]
    listed = [
        path.name for path in list_inputs([str(tmp_path / "b"), tmp_path / "*.txt", tmp_path / "b/2.txt"])
    ]
    assert listed == ["1.txt", "2.txt", "a.txt"]


def test_symlinks_are_followed_and_folders_listed_once(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.txt").touch()
    (tmp_path / "in").mkdir()
    for name in ("in/first", "in/second"):
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "in")
    assert list_inputs([tmp_path / "in"]) == [tmp_path / "in/first/a.txt"]


def test_broken_symlink_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"b\.txt: broken symlink; fix or remove it"):
        list_inputs([tmp_path])


def test_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "a.txt").touch()
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"locked: cannot read this folder \(Permission denied\)"):
        list_inputs([tmp_path])


def test_pattern_may_match_folders(tmp_path: Path) -> None:
    for name in ("in1/a.txt", "in2/b.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert [path.name for path in list_inputs([tmp_path / "in?"])] == ["a.txt", "b.txt"]


def test_named_pipe_is_rejected_as_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: not a regular file; save its output to a file first"):
        list_inputs([tmp_path / "pipe"])


def test_excluded_folders_are_not_listed(tmp_path: Path) -> None:
    for name in ("in/a.txt", "in/out/vocab.txt", "in/out/text/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()

    def names(*paths: str) -> list[str]:
        return [file.name for file in list_inputs([tmp_path / path for path in paths], [tmp_path / "in/out"])]

    assert names("in") == names("in/**") == ["a.txt"]
    assert names("in/a.txt", "in/out") == ["a.txt"]  # as a shell expands in/*
    assert names("in/out/text") == ["b.txt"]  # such as text kept in the folder of a model
    with pytest.raises(DataError, match="only the tokenizer's files and the output's"):
        names("in/out")
