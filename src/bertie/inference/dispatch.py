"""Records -> what a model says of each: its head decides which method is asked."""

from collections.abc import Sequence
from typing import Any

from bertie.base.errors import DataError
from bertie.inference.predictor import Predictor
from bertie.inference.records import Record
from bertie.inference.results import Method, RowError

# What a record's texts are. `pair` may follow where a text is classified or rated.
ASKED: dict[Method, tuple[str, ...]] = {
    "fill_mask": ("text",),
    "next_sentence": ("text", "pair"),
    "classify": ("text",),
    "rate": ("text",),
    "tag": ("text",),
    "answer": ("question", "context"),
    "choose": ("context", "endings"),
}


def ask(model: Predictor, records: Sequence[Record], top_k: int, words: bool = False) -> list[Any]:
    """The model's answers to each record; an empty list, of a number None, where it is blank.

    Args:
        model: one with a head.
        records: the texts that `ASKED` names; all have a pair, or none has.
        top_k: how many answers there are at most.
        words: of a tagger the tag of each word, also where its tags are those of entities.

    Raises:
        DataError: a record cannot be answered; the message begins with its place.
    """
    method = model.method
    assert method is not None
    asked = [record for record in records if not record.is_blank]
    try:
        answers = iter(_ask(model, method, asked, top_k, words) if asked else ())
    except RowError as error:
        raise DataError(f"{asked[error.row].location}: {error.reason}") from None
    nothing: Any = None if method in ("next_sentence", "rate") else []
    return [nothing if record.is_blank else next(answers) for record in records]


def _ask(model: Predictor, method: Method, asked: Sequence[Record], top_k: int, words: bool) -> list[Any]:
    texts, *others = (list(column) for column in zip(*(record.texts for record in asked), strict=True))
    match method:
        case "fill_mask":
            return model.fill_masks(texts, top_k)
        case "classify":
            return [ranked[:top_k] for ranked in model.classify(texts, *others)]
        case "next_sentence":
            return model.next_sentence(texts, others[0])
        case "rate":
            return model.rate(texts, *others)
        case "tag":
            return model.tag_words(texts) if words or model.tags_are_plain else model.tag(texts)
        case "answer":
            return model.answer(texts, others[0], top_k)
        case "choose":
            return [ranked[:top_k] for ranked in model.choose(texts, others[0])]
