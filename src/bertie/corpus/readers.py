"""List input files and read their documents.

Large files are streamed, and read in ranges if their format allows it.
"""

import codecs
import errno
import glob
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

from bertie.base.compression import open_binary
from bertie.base.errors import DataError
from bertie.base.files import exists
from bertie.base.rows import format_suffix
from bertie.base.storage import RemotePath, as_path
from bertie.corpus.documents import (
    PIECE_CHARACTERS,
    Document,
    InputError,
    InputErrors,
    make_documents,
    split_at_lines,
    split_long_text,
)
from bertie.corpus.formats import TABLES, Format, resolve_format
from bertie.corpus.row_readers import ROW_READERS
from bertie.corpus.sources import LanguageColumn, Source, choose_errors, not_utf8
from bertie.corpus.wikipedia import extract_text, parse_page, read_hidden_namespaces
from bertie.text.unicode import UNSPACED

# Begins with "\n", which `re` finds faster than a set of characters.
_UNSPACED_BREAK = re.compile(f"\n(?<={UNSPACED}\n)(?={UNSPACED})")
_PAGE_TAG = re.compile(rb"(</?page>)")


def list_inputs(paths: Iterable[str | Path], exclude: Iterable[Path] = ()) -> list[Path]:
    """List the files that paths, directories and patterns name, each file once.

    Hidden files and folders are left out, and so are the metadata and caches of data sets saved by
    Hugging Face's `datasets`.

    Args:
        paths: files, directories, or patterns such as `text/*.xz`, or URLs of these. Directories are
            searched at any depth, and symlinks are followed.
        exclude: files and directories that are not inputs, such as the output. Files below an
            excluded directory are still listed if a path leads below it.

    Returns:
        The files in the order of `paths`; the files of one directory or pattern are sorted.

    Raises:
        DataError: there are no paths, a path does not exist or is not a regular file, a folder cannot
            be read, a symlink is broken, a directory or pattern has no files, or all files are excluded.
    """
    paths = list(paths)
    if not paths:
        raise DataError("no inputs; name at least one file or folder")
    files: dict[Path, None] = {}
    excluded = [path.resolve() for path in exclude]
    for path in map(as_path, paths):
        if isinstance(path, RemotePath):
            files.update(dict.fromkeys(_list_remote(path, excluded)))
            continue
        matches = _find_matches(path)
        if not matches:
            is_text = any(map(str.isspace, str(path)))
            advice = "; if this is a text, write it to a file first, and pass the file" if is_text else ""
            raise DataError(f"{path}: no such file or directory{advice}")
        candidates = {file for match in matches for file in _walk(match) if _is_regular_file(file)}
        if not candidates and any(map(Path.is_dir, matches)):
            raise DataError(f"{path}: no files in this directory")
        if not candidates:
            raise DataError(f"{path}: not a regular file; save its output to a file first")
        hidden = [directory for directory in excluded if directory not in path.resolve().parents]
        listed = [file for file in candidates if not any(map(file.resolve().is_relative_to, hidden))]
        files.update(dict.fromkeys(sorted(listed, key=lambda file: file.parts)))
    if excluded and not files:
        raise DataError(
            "the inputs contain only the tokenizer's files and the output's; "
            "keep the text in a separate folder"
        )
    return list(files)


def _find_matches(path: Path) -> list[Path]:
    """Return the path if it exists, otherwise the paths that match it as a pattern."""
    try:
        return [path] if exists(path) else [Path(match) for match in glob.glob(str(path), recursive=True)]
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        name = reprlib.repr(str(path))
        raise DataError(f"{name}: too long for a path; write the text to a file and pass its path") from None


def _list_remote(path: RemotePath, excluded: Iterable[Path]) -> list[RemotePath]:
    """List the files of a URL that may hold text.

    Files below the folders in `excluded` are left out. Hidden files and folders are left out below a folder,
    but not where the URL itself leads into one.
    """
    listed = path.list_files()
    is_data_set = {file.parent for file in listed if file.name == "dataset_info.json"}
    return [
        file
        for file in listed
        if file == path
        or (
            not any(part.startswith(".") for part in file.parts[len(path.parts) :])
            and _may_hold_text(file.name, file.parent in is_data_set)
            and not any(map(file.is_relative_to, excluded))
        )
    ]


def _walk(path: Path) -> Iterator[Path]:
    """Yield the files below a directory, or `path` if it is not a directory.

    A folder that several symlinks lead to is walked once.
    """
    if not path.is_dir():
        yield path
        return
    seen = set()
    for folder, subfolders, names in os.walk(path, onerror=_raise_unreadable_folder, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        is_data_set = "dataset_info.json" in names
        for name in names:
            if _may_hold_text(name, is_data_set):
                yield Path(folder, name)


def _may_hold_text(name: str, in_data_set: bool) -> bool:
    """Return False for hidden files, and for metadata and caches of saved data sets."""
    if in_data_set:  # `map` and `filter` write cache-*.arrow beside the tables
        return name.endswith(".arrow") and not name.startswith((".", "cache-"))
    return not name.startswith(".") and name != "dataset_dict.json"


def _is_regular_file(path: Path) -> bool:
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: broken symlink; fix or remove it")
    return path.is_file()


def _raise_unreadable_folder(error: OSError) -> None:
    raise DataError(
        f"{error.filename}: cannot read this folder ({error.strerror}); make it readable or move it"
    )


def read_documents(
    path: Path,
    format: Format | None = None,
    start: int = 0,
    stop: int | None = None,
    column: str = "text",
    errors: InputErrors | None = None,
    language: LanguageColumn | None = None,
) -> Iterator[Document]:
    """Read the documents of a file in order; long documents come in pieces.

    Args:
        path: the file.
        format: its format; None to detect it.
        start: the beginning of the range to read: a byte offset in an uncompressed file of many
            documents, or the index of a row group in a Parquet file. Any division of a file into
            ranges puts each document into exactly one of them.
        stop: the end of the range, exclusive; None for the end of the file.
        column: the key or column that holds the text.
        errors: raises or collects the errors about a file or a document that cannot be read; by
            default it raises the first one.
        language: the column of languages and the one to read; by default all documents are read. Only
            one of the readings for several languages reports errors.

    Raises:
        DataError: the file is missing, damaged, cut off, binary, not UTF-8 or not of its format.
            The message names the file, and the line if there is one.
        SettingsError: a table has no such column.
        BertieError: the package that reads such files is not installed.
    """
    errors = choose_errors(errors, language)
    try:
        if not (start and format):  # the first range of a file is enough to check it
            format = resolve_format(path, format, language.name if language else None)
        yield from _READERS[format](Source(path, start, stop, column, errors, language))
    except DataError as error:
        errors.handle(error)


def check_columns(
    paths: Iterable[Path], format: Format | None, column: str, language_column: str | None = None
) -> None:
    """Check that the first table among some files has the columns.

    A long run calls it before it begins.

    Raises:
        SettingsError: it has no such column.
        BertieError: the package that reads such files is not installed.
    """
    language = LanguageColumn(language_column, "", ("",)) if language_column else None
    for path in paths:
        if (format or TABLES.get(format_suffix(path))) in TABLES.values():
            with suppress(DataError):  # the first row is enough, and need not be valid
                next(read_documents(path, format, column=column, language=language), None)
            return


def _read_plain(source: Source) -> Iterator[Document]:
    yield from make_documents(_read_pieces(source.path))


def _read_wrapped(source: Source) -> Iterator[Document]:
    yield from make_documents(_unwrap(_read_pieces(source.path)))


def _read_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file in pieces, if all of it is UTF-8.

    A file of several pieces is decoded to its end before the first piece is yielded, so that its
    document is read completely or not at all.
    """
    with open_binary(path) as file:
        blocks = _decode_blocks(path, file)
        first = next(blocks)
        has_more = sum(1 for _ in blocks) > 0
    if not has_more:
        yield first
        return
    with open_binary(path) as file:
        yield from split_at_lines(_decode_blocks(path, file))


def _decode_blocks(path: Path, file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    lines = 0
    while True:
        data = file.read(PIECE_CHARACTERS)
        try:
            block = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            lines += error.object.count(b"\n", 0, error.start)
            raise not_utf8(f"{path}, line {lines + 1}", error) from None
        if not data:
            return
        lines += data.count(b"\n")
        yield block


def _unwrap(pieces: Iterable[str]) -> Iterator[str]:
    """Join the lines of each paragraph in `pieces` of text, which end at line ends."""
    paragraph: list[str] = []
    finished: list[str] = []
    for piece in pieces:
        if finished:
            yield "".join(finished)
            finished = []
        for line in map(str.strip, piece.splitlines()):
            if line:
                paragraph.append(line)
            elif paragraph:
                finished.append(_join_lines(paragraph) + "\n")
                paragraph = []
    yield "".join([*finished, _join_lines(paragraph)])


def _join_lines(lines: Iterable[str]) -> str:
    """Join lines with spaces, except between characters of scripts that write none."""
    return _UNSPACED_BREAK.sub("", "\n".join(lines)).replace("\n", " ")


def _read_sentences(source: Source) -> Iterator[Document]:
    # A document belongs to the range that holds the blank line before it.
    with open_binary(source.path) as file:
        in_range = source.start == 0
        first_index, lines = 0, list[bytes]()
        for index, offset, line in source.lines(file):
            # As in google-research/bert, a line of other spaces, such as U+3000, is blank too.
            if not line.decode(errors="replace").isspace():
                if in_range:
                    first_index = first_index if lines else index
                    lines.append(line)
                continue
            if lines:
                yield from _make_sentence_document(source, lines, first_index)
                lines = []
            in_range = not source.is_past_end(offset)
            if not in_range:
                return
        if lines:
            yield from _make_sentence_document(source, lines, first_index)


def _make_sentence_document(source: Source, lines: list[bytes], first_index: int) -> Iterator[Document]:
    try:
        text = source.decode(b"".join(lines), first_index)
    except InputError as error:
        source.errors.handle(error)
    else:
        # The document is the same with and without a newline at the end of the file.
        text = text.replace("\r\n", "\n").removesuffix("\n")
        yield from make_documents(split_long_text(text), lines_are_sentences=True)


def _read_wikiextractor(source: Source) -> Iterator[Document]:
    for first_index, lines in _read_elements(source, b"<doc ", b"</doc>"):
        opening_line, *body = lines
        title = opening_line.partition(b' title="')[2].rpartition(b'">')[0]
        if body and body[0].strip() == title:
            del body[0]
        try:
            text = source.decode(b"".join(body), first_index + len(lines) - len(body))
        except InputError as error:
            source.errors.handle(error)
            continue
        # Later versions of wikiextractor escape these three characters only (--html-safe).
        text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
        yield from make_documents(split_long_text(text))


def _read_wikipedia(source: Source) -> Iterator[Document]:
    hidden_namespaces = read_hidden_namespaces(source.path)
    for first_index, lines in _read_elements(source, b"<page>", b"</page>", _split_at_page_tags):
        try:
            wikitext = parse_page(b"".join([*lines, b"</page>"]))
        except ElementTree.ParseError as error:
            problem = f"<page> is not well-formed XML ({error}); fix or remove it"
            source.errors.handle(source.malformed(first_index, problem))
            continue
        if wikitext is not None:
            yield from make_documents(split_long_text(extract_text(wikitext, hidden_namespaces)))


def _split_at_page_tags(line: bytes) -> list[bytes]:
    """Split a line before and after `<page>` and `</page>`.

    Other programs than MediaWiki join lines.
    """
    return _PAGE_TAG.split(line) if b"page>" in line else [line]


def _read_elements(
    source: Source,
    opening: bytes,
    closing: bytes,
    split: Callable[[bytes], list[bytes]] = lambda line: [line],
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the index of each element's first line, and all its lines except the last.

    An element belongs to the range that contains its first line. Its last line is the closing tag; `split`
    divides a line of the file into several.
    """
    tag = f"<{opening.decode().strip('< >')}>"
    first_index, element = -1, list[bytes]()
    in_range = source.start == 0  # before its first element, a range may begin with the end of another
    with open_binary(source.path) as file:
        lines = ((index, offset, part) for index, offset, line in source.lines(file) for part in split(line))
        for index, offset, line in lines:
            stripped = line.strip()
            if stripped.startswith(opening):
                if element:
                    problem = f"{tag} is not closed before the next one; add {closing.decode()}"
                    source.errors.handle(source.malformed(first_index, problem))
                if source.is_past_end(offset):
                    return
                first_index, element, in_range = index, [line], True
            elif stripped == closing and element:
                yield first_index, element
                element = []
            elif stripped == closing and in_range:
                problem = f"{closing.decode()} without {tag} before it; add that tag or remove this one"
                source.errors.handle(source.malformed(index, problem))
            elif element:
                element.append(line)
    if element:
        problem = f"{tag} is not closed, so the file is cut off; copy or download it again"
        source.errors.handle(source.malformed(first_index, problem))
    elif first_index < 0 and source.start == 0:
        problem = f"no {tag} in this file; leave --format (format=…) out, or remove the file from the inputs"
        source.errors.handle(InputError(f"{source.path}: {problem}", "malformed_documents"))


_READERS: dict[Format, Callable[[Source], Iterator[Document]]] = {
    "plain": _read_plain,
    "wrapped": _read_wrapped,
    "sentences": _read_sentences,
    "wikiextractor": _read_wikiextractor,
    "wikipedia": _read_wikipedia,
    **ROW_READERS,
}
