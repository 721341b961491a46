"""Answers in the shapes of `transformers`' pipelines, which huggingface_hub's InferenceClient reads."""

from collections.abc import Sequence
from typing import Any

from bertie.inference.results import Answer, Entity, Method, TaggedWord
from bertie.inference.writers import as_json


def as_pipeline(method: Method, answers: Any, labels: Sequence[str], top_k: int | None) -> Any:
    """What a pipeline answers for one row, as JSON has it.

    Args:
        method: of the model.
        answers: what the method gives for the row.
        labels: the model's.
        top_k: as the request says; None where it does not.
    """
    match method:
        case "fill_mask":  # a list for each [MASK], unless there is only one
            return as_json(answers[0] if len(answers) == 1 else answers)
        case "classify":
            return [as_json(answers)]
        case "rate":
            return [[{"label": labels[0], "score": answers}]]
        case "tag":
            return [_tagged(found) for found in answers]
        case "answer":
            named = [_span(found) for found in answers]
            return named[0] if named and top_k in (None, 1) else named
        case "next_sentence" | "choose":
            raise AssertionError(f"there is no pipeline that can {method}")


def _tagged(found: Entity | TaggedWord) -> dict[str, Any]:
    if isinstance(found, TaggedWord):
        return {"entity": found.tag, "score": found.score, "word": found.word, "start": None, "end": None}
    label, word, start, end, score = found
    return {"entity_group": label, "score": score, "word": word, "start": start, "end": end}


def _span(found: Answer) -> dict[str, Any]:
    text, start, end, score = found
    return {"answer": text, "score": score, "start": start, "end": end}
