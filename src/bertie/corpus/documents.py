"""Documents, and the policy for inputs that cannot be read.

A long document arrives in pieces, so that no task holds all of its text in memory. An input that
cannot be read either stops the run or is skipped. Every skipped input is reported and counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from bertie.base.errors import DataError
from bertie.text.sentences import split_sentences

PIECE_CHARACTERS = 1 << 22  # length of the pieces of a long document
MAX_MESSAGES = 100  # messages kept when the errors of all tasks are merged

OnError = Literal["stop", "skip"]
Reason = Literal[
    "empty_files", "binary_files", "unreadable_files", "misencoded_documents", "malformed_documents"
]


@dataclass(frozen=True)
class Document:
    """A document, or one piece of a long document.

    Attributes:
        text: the text. The texts of all pieces, concatenated, are the text of the document.
        lines_are_sentences: whether each line is one sentence. If not, `bertie.text.sentences`
            splits the text.
        is_continued: whether the next piece continues this document.
    """

    text: str
    lines_are_sentences: bool = False
    is_continued: bool = False

    def split_sentences(self, language: str = "en") -> list[str]:
        """Return the sentences in order, without empty and blank ones."""
        if self.lines_are_sentences:
            return [line for line in self.text.split("\n") if line and not line.isspace()]
        return split_sentences(self.text, language)


class InputError(DataError):
    """A file, or a document in a file, that cannot be read.

    `reason` is the key under which the error is counted in the manifest of a corpus.
    """

    def __init__(self, message: str, reason: Reason = "unreadable_files") -> None:
        super().__init__(message)
        self.reason = reason


class InputErrors:
    """Raise or collect the errors about inputs that cannot be read.

    Empty files never stop a run: folders of many files often hold some.

    Args:
        on_error: "stop" raises the first error, "skip" collects all of them.

    Attributes:
        messages: one line for each collected error.
        counts: the number of collected errors for each `Reason`.
    """

    def __init__(self, on_error: OnError = "stop") -> None:
        self.on_error = on_error
        self.messages: list[str] = []
        self.counts: Counter[str] = Counter()

    def handle(self, error: DataError) -> None:
        """Raise `error` as an InputError, or collect it if its input may be skipped."""
        if not isinstance(error, InputError):
            error = InputError(str(error))
        if self.on_error == "stop" and error.reason != "empty_files":
            raise error from None
        self.counts[error.reason] += 1
        self.messages.append(str(error))

    def merge(self, other: "InputErrors") -> None:
        """Add the counts and the messages of `other`; at most MAX_MESSAGES are kept."""
        self.counts += other.counts
        self.messages += other.messages[: max(0, MAX_MESSAGES - len(self.messages))]


def make_documents(texts: Iterable[str], lines_are_sentences: bool = False) -> Iterator[Document]:
    """Yield the pieces of one document, whose text arrives as `texts`."""
    previous: str | None = None
    for text in texts:
        if previous is not None:
            yield Document(previous, lines_are_sentences, is_continued=True)
        previous = text
    yield Document(previous or "", lines_are_sentences)


def split_at_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Move the cuts between blocks of text back to the ends of lines.

    Yields as many pieces as there are blocks, with the same text in all. A line longer than a block
    is cut after its last space, or anywhere if it has none.
    """
    rest: str | None = None
    for block in blocks:
        if rest is None:
            rest = block
            continue
        end = rest.rfind("\n") + 1 or rest.rfind(" ") + 1 or len(rest)
        yield rest[:end]
        rest = rest[end:] + block
    yield rest or ""


def split_long_text(text: str) -> Iterator[str]:
    """Cut a text into pieces of about PIECE_CHARACTERS, most often into one."""
    starts = range(0, len(text), PIECE_CHARACTERS)
    return split_at_lines(text[start : start + PIECE_CHARACTERS] for start in starts)
