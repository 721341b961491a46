"""Results of a `Predictor`: frozen dataclasses that notebooks show as tables."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from bertie.base.arrays import Float32s

if TYPE_CHECKING:  # importing rich changes the state of Python's random numbers
    from rich.console import RenderableType

# The methods of a `Predictor` that need a head.
Method = Literal["fill_mask", "next_sentence", "classify", "regress", "tag", "answer", "choose"]

T = TypeVar("T")


class _Shown:
    """Base class of objects that notebooks show like `rich`."""

    __slots__ = ()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **_: Any) -> dict[str, str]:
        from rich.jupyter import JupyterMixin

        return JupyterMixin._repr_mimebundle_(self, include, exclude)  # type: ignore[arg-type]


@dataclass(frozen=True, repr=False)
class Result(_Shown):
    """Base class of results: a compact `repr`, and a table in notebooks."""

    def __repr__(self) -> str:
        values = (f"{name}={_format(value, quoted=True)}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(values)})"

    def __rich__(self) -> "RenderableType":
        return _table([self])


class Results(tuple[T, ...], _Shown):
    """The results for one text: an immutable sequence, shown as a table in notebooks.

    It equals a tuple with the same items, and becomes a list in JSON.
    """

    __slots__ = ()

    def __rich__(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        if not self:
            return Text("no results")
        if isinstance(self[0], Result):
            return _table(self)
        return Group(*(item.__rich__() for item in self if isinstance(item, Results)))


@dataclass(frozen=True, repr=False)
class MaskPrediction(Result):
    """A token predicted for a [MASK].

    The fields are named as in `transformers`' fill-mask pipeline.

    Attributes:
        score: probability of the token.
        token: its id.
        token_str: the token itself; a continuation begins with `##`.
        sequence: the text with the token in place of this [MASK].
    """

    score: float
    token: int
    token_str: str
    sequence: str


@dataclass(frozen=True, repr=False)
class Label(Result):
    """A label of a text.

    Attributes:
        label: the label itself.
        score: its probability.
    """

    label: str
    score: float


@dataclass(frozen=True, repr=False)
class Entity(Result):
    """An entity found in a text.

    Attributes:
        label: type of the entity, such as `LOC`.
        text: the entity as it is written in the text.
        start: index of its first character in the text.
        end: index after its last character.
        score: mean probability of the tags of its words.
    """

    label: str
    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, repr=False)
class TaggedWord(Result):
    """A word of a text, with its most likely tag.

    Attributes:
        word: the word as it is written in the text.
        tag: the tag, such as `B-LOC`.
        score: probability of the tag.
    """

    word: str
    tag: str
    score: float


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """A span of a context that answers a question; it consists of whole words.

    Attributes:
        text: the answer as it is written in the context; "" if the context has no answer.
        start: index of its first character in the context; 0 if there is no answer.
        end: index after its last character; 0 if there is no answer.
        score: probability among the n best answers, as in run_squad.py's nbest_predictions.json.
    """

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, repr=False)
class Choice(Result):
    """One of the endings of a context.

    Attributes:
        number: index of the ending in the list of endings.
        ending: the ending itself.
        score: probability among the endings.
    """

    number: int
    ending: str
    score: float


class Attention(NamedTuple):
    """The attention probabilities for a text or a pair of T tokens.

    Attributes:
        tokens: the tokens, with [CLS] and [SEP].
        token_type_ids: 0 for the tokens of the first segment, 1 for the second.
        probabilities: float32 (L, A, T, T) for L layers of A heads. A row has the probabilities with
            which one token attends to each token; it adds up to 1.
    """

    tokens: list[str]
    token_type_ids: list[int]
    probabilities: Float32s


def _table(results: Sequence[Any]) -> "RenderableType":
    """Build a table with a row for each result and a column for each field."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*(field.name for field in fields(results[0])))
    for result in results:
        # In a plain string, rich would read [brackets] as markup.
        table.add_row(*(Text(_format(value)) for value in vars(result).values()))
    return table


def _format(value: float | str, quoted: bool = False) -> str:
    """Format the value of a field; floats have four significant digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return repr(value) if quoted else str(value)
