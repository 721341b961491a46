"""Format results as `transformers`' pipelines do, for `InferenceClient`."""

from collections.abc import Sequence
from typing import Any

from bertie.inference.results import Answer, Entity, Method, TaggedWord
from bertie.inference.writers import as_json


def as_pipeline(method: Method, results: Any, labels: Sequence[str], top_k: int | None) -> Any:
    """Return the results for one row as the JSON values of a pipeline.

    Args:
        method: the main method of the model's head.
        results: the results of the method for the row.
        labels: the model's labels.
        top_k: the request's `top_k`; None if it has none.
    """
    match method:
        case "fill_mask":  # one list for each [MASK]; for one [MASK], its list
            return as_json(results[0] if len(results) == 1 else results)
        case "classify":
            return [as_json(results)]
        case "regress":
            return [[{"label": labels[0], "score": results}]]
        case "tag":
            return [_entity_json(result) for result in results]
        case "answer":
            answers = [_answer_json(answer) for answer in results]
            return answers[0] if answers and top_k in (None, 1) else answers
        case "next_sentence" | "choose":
            raise AssertionError(f"{method} has no pipeline")


def _entity_json(result: Entity | TaggedWord) -> dict[str, Any]:
    if isinstance(result, TaggedWord):
        return {"entity": result.tag, "score": result.score, "word": result.word, "start": None, "end": None}
    return {
        "entity_group": result.label,
        "score": result.score,
        "word": result.text,
        "start": result.start,
        "end": result.end,
    }


def _answer_json(answer: Answer) -> dict[str, Any]:
    return {"answer": answer.text, "score": answer.score, "start": answer.start, "end": answer.end}
