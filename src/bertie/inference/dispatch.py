"""Answer records with a method of a model's head, here or on a cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from bertie.base.errors import DataError
from bertie.base.texts import TextError
from bertie.inference.features import Features, LayerSelection, compute_features, encode_texts
from bertie.inference.predictor import Predictor, load
from bertie.inference.records import Record
from bertie.inference.results import Method, Results
from bertie.model.engines.loading import Precision

# The texts of a record, in order. `classify` and `regress` accept a `pair` after the text.
REQUIRED_FIELDS: dict[Method, tuple[str, ...]] = {
    "fill_mask": ("text",),
    "next_sentence": ("text", "pair"),
    "classify": ("text",),
    "regress": ("text",),
    "tag": ("text",),
    "answer": ("question", "context"),
    "choose": ("context", "endings"),
}


def answer_records(
    model: Predictor,
    records: Sequence[Record],
    top_k: int,
    words: bool = False,
    skipped: Callable[[DataError], None] | None = None,
    method: Method | None = None,
) -> list[Any]:
    """Return the model's results for each record.

    Args:
        model: a model with a head.
        records: records with the texts that `REQUIRED_FIELDS` lists; all of them have a pair, or none.
        top_k: maximum number of results for each record.
        words: return the tag of each word even if the tagger's tags mark entities, as for records
            with lists of words.
        skipped: receives the error of each record that cannot be answered, which then counts as
            blank. None raises the error.
        method: another method of the head than the main one.

    Returns:
        For each record, the `Results` or the number that the method returns for one text; for a
        blank record, an empty `Results`, or None in place of a number.

    Raises:
        DataError: a record cannot be answered; the message begins with its location.
    """
    method = method or model.method
    assert method is not None
    blank: Any = None if method in ("next_sentence", "regress") else Results()
    answers = [blank] * len(records)
    filled = [i for i, record in enumerate(records) if not record.is_blank]
    while filled:
        try:
            results = _predict(model, method, [records[i] for i in filled], top_k, words)
        except TextError as error:
            record = records[filled.pop(error.index)]
            failure = DataError(f"{record.location}: {error.reason}")
            if skipped is None:
                raise failure from None
            skipped(failure)
        else:
            for i, result in zip(filled, results, strict=True):
                answers[i] = result
            break
    return answers


def _predict(
    model: Predictor, method: Method, records: Sequence[Record], top_k: int, words: bool
) -> Sequence[Any]:
    columns: list[list[Any]] = [list(column) for column in zip(*(r.texts for r in records), strict=True)]
    first: list[Any] = columns[0]  # texts, or lists of words
    second: Any = columns[1] if len(columns) > 1 else None
    match method:
        case "fill_mask":
            return model.fill_mask(first, top_k)
        case "classify":
            return model.classify(first, second, top_k)
        case "next_sentence":
            return model.next_sentence(first, second)
        case "regress":
            return model.regress(first, second)
        case "tag":
            words = words or model.has_plain_tags or any(isinstance(text, list) for text in first)
            return model.tag_words(first) if words else model.tag(first)
        case "answer":
            return model.answer(first, second, top_k)
        case "choose":
            return model.choose(first, second, top_k)


# A worker process may have several threads; a model computes in one of them at a time.
_computing = Lock()


@dataclass(frozen=True)
class RemoteModel:
    """A model that each worker process of a cluster loads once.

    Attributes:
        directory: the absolute path of the model directory.
        files: the names, sizes and times of its files, so that a worker notices another model there.
        device, precision: as in `bertie.load`.
    """

    directory: Path
    files: tuple[tuple[str, int, int], ...]
    device: str
    precision: Precision

    @classmethod
    def of(cls, directory: Path, device: str, precision: Precision) -> "RemoteModel":
        """Describe a model directory as it is now."""
        directory = directory.absolute()
        states = [(path.name, path.stat()) for path in sorted(directory.iterdir())]
        files = tuple((name, state.st_size, state.st_mtime_ns) for name, state in states)
        return cls(directory, files, device, precision)


class RemoteAnswers(NamedTuple):
    """The results of a block of records, and what happened to the others.

    These are the errors of skipped records, and the number of truncated texts.
    """

    results: list[Any]
    skipped: list[DataError]
    num_truncated: int


@lru_cache(maxsize=1)
def _load_once(model: RemoteModel) -> Predictor:
    return load(model.directory, model.device, model.precision)


def answer_remotely(
    model: RemoteModel, top_k: int, words: bool, skips: bool, records: Sequence[Record]
) -> RemoteAnswers:
    """Answer a block of records on a worker; see `answer_records`."""
    skipped: list[DataError] = []
    with _computing:
        predictor = _load_once(model)
        before = predictor.num_truncated
        results = answer_records(predictor, records, top_k, words, skipped.append if skips else None)
        return RemoteAnswers(results, skipped, predictor.num_truncated - before)


def compute_features_remotely(
    model: RemoteModel, selection: LayerSelection, words: bool, texts: Sequence[str]
) -> Features:
    """Compute the vectors of a block of texts on a worker.

    See `encode_texts` and `compute_features`.
    """
    with _computing:
        predictor = _load_once(model)
        encoded = encode_texts(texts, predictor.tokenizer, predictor.max_seq_length, words)
        return compute_features(predictor.engine, encoded, selection, predictor.config)
