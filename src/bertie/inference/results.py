"""What models answer with."""

from typing import Literal, NamedTuple

from bertie.base.errors import DataError

# Of a Predictor, by its head.
Method = Literal["fill_mask", "next_sentence", "classify", "rate", "tag", "answer", "choose"]


class MaskPrediction(NamedTuple):
    """A word piece for a masked place, named as in `transformers`' fill-mask."""

    score: float  # its probability
    token: int
    token_str: str
    sequence: str  # the text with the piece in place


class Label(NamedTuple):
    """A class for a text."""

    label: str
    score: float  # its probability


class Entity(NamedTuple):
    """An entity where a text names it."""

    label: str  # its type
    text: str
    start: int  # its first character in the text, and the one behind its last
    end: int
    score: float  # the mean probability of its words' tags


class TaggedWord(NamedTuple):
    """A word and what a tagger says of it."""

    word: str
    tag: str
    score: float  # its probability


class Answer(NamedTuple):
    """A span of a context; "", 0, 0 says that the context has no answer."""

    text: str
    start: int  # its first character in the context, and the one behind its last
    end: int
    score: float  # its probability among the n-best, as in run_squad.py's nbest_predictions.json


class Choice(NamedTuple):
    """One of the endings to choose from."""

    number: int  # from 0
    ending: str
    score: float  # its probability among the endings


class RowError(DataError):
    """One of the texts given cannot be answered; `row` says which, from 0."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"text {row + 1}: {reason}")
        self.row = row
        self.reason = reason
