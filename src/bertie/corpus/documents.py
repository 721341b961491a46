"""Documents, and what is done with inputs that cannot be read.

A long document comes in pieces, so that no task holds all of it. A document that cannot be read ends the run
or is left out; what is left out is named and counted, so nothing is lost silently.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bertie.base.errors import DataError
from bertie.text.sentences import split_sentences

PIECE_CHARACTERS = 1 << 22

MAX_MESSAGES = 100  # that are kept of all tasks

OnError = Literal["stop", "skip"]
Reason = Literal[
    "empty_files", "binary_files", "unreadable_files", "misencoded_documents", "malformed_documents"
]


@dataclass(frozen=True)
class Document:
    """A text, or a piece of a long one, and whether its lines are its sentences or are still to be split.

    The document of an `unfinished` piece goes on in the next one. The pieces' texts joined are the text.
    """

    text: str
    lines_are_sentences: bool = False
    unfinished: bool = False

    def sentences(self, language: str = "en") -> list[str]:
        """The sentences, in order; none is empty or white space alone."""
        if self.lines_are_sentences:
            return [line for line in self.text.split("\n") if line and not line.isspace()]
        return split_sentences(self.text, language)


class InputError(DataError):
    """A file, or a document in one, that cannot be read; `reason` is what it is counted as."""

    def __init__(self, message: str, reason: Reason = "unreadable_files") -> None:
        super().__init__(message)
        self.reason = reason


class Problems:
    """The inputs that could not be read: a line about each, and how many there are for each reason.

    The first of them ends the run, or all are left out and `on_error` is "skip". Empty files, of which
    folders of many files often have some, never end a run.
    """

    def __init__(self, on_error: OnError = "stop") -> None:
        self.on_error = on_error
        self.messages: list[str] = []
        self.counts: Counter[str] = Counter()

    def add(self, error: DataError) -> None:
        """Count an error, or raise it."""
        reason = error.reason if isinstance(error, InputError) else "unreadable_files"
        if self.on_error == "stop" and reason != "empty_files":
            raise error
        self.counts[reason] += 1
        self.messages.append(str(error))

    def merge(self, others: "Problems") -> None:
        """Count those of a task too, and keep the messages of the first ones."""
        self.counts += others.counts
        self.messages += others.messages[: max(0, MAX_MESSAGES - len(self.messages))]


def make_documents(pieces: Iterable[str], lines_are_sentences: bool = False) -> Iterator[Document]:
    """The one document whose text comes in `pieces`."""
    waiting: str | None = None
    for piece in pieces:
        if waiting is not None:
            yield Document(waiting, lines_are_sentences, unfinished=True)
        waiting = piece
    yield Document(waiting or "", lines_are_sentences)


def cut_at_lines(parts: Iterable[str]) -> Iterator[str]:
    """The text that comes in `parts`, in about as many pieces, each but the last of which ends a line.

    A line longer than a part is cut at a space, and if it has none, anywhere.
    """
    rest: str | None = None
    for part in parts:
        if rest is None:
            rest = part
            continue
        end = rest.rfind("\n") + 1 or rest.rfind(" ") + 1 or len(rest)
        yield rest[:end]
        rest = rest[end:] + part
    yield rest or ""


def cut_text(text: str) -> Iterator[str]:
    """A text in pieces of about `PIECE_CHARACTERS`; nearly every text is one."""
    starts = range(0, len(text), PIECE_CHARACTERS)
    return cut_at_lines(text[start : start + PIECE_CHARACTERS] for start in starts)
