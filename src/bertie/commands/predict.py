"""`bertie predict`"""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from bertie.commands.options import Json


def predict(
    directory: Annotated[Path, typer.Argument(help="A model directory.")],
    text: Annotated[list[str] | None, typer.Option(help="A text; may be given several times.")] = None,
    input: Annotated[str | None, typer.Option(help="A file with a text a line; - is standard input.")] = None,
    top_k: Annotated[int, typer.Option(min=1, help="How many answers for each text.")] = 5,
    as_json: Json = False,
) -> None:
    """Answer with a trained model; its head decides: guesses for each [MASK], or labels."""
    import bertie
    from bertie.base.errors import SettingsError
    from bertie.inference.predictors import Guess
    from bertie.model.heads import MaskedLMModel, PreTrainingModel

    if not text and input is None:
        raise SettingsError("nothing to predict: give --text or --input")
    model = bertie.load(directory)
    for line in _texts(text or [], input):
        answers: list[list[Any]]
        if isinstance(model.model, PreTrainingModel | MaskedLMModel):
            answers = [list(guesses) for guesses in model.fill_mask(line, top_k)]
        else:
            answers = [model.classify([line])[0][:top_k]]
        if as_json:
            rows = [[answer._asdict() for answer in group] for group in answers]
            print(json.dumps({"text": line, "answers": rows}, ensure_ascii=False))
            continue
        for group in answers:
            print(line)
            for answer in group:
                shown = answer.sequence if isinstance(answer, Guess) else answer.label
                print(f"  {answer.score:6.1%}  {shown}")


def _texts(given: list[str], file: str | None) -> Iterator[str]:
    """The texts of the options, then the lines of the file that are not empty."""
    from bertie.base.errors import DataError

    yield from given
    if file is None:
        return
    with ExitStack() as stack:
        try:
            lines = sys.stdin if file == "-" else stack.enter_context(open(file, encoding="utf-8"))
            for line in lines:
                if line.strip():
                    yield line.rstrip("\n")
        except FileNotFoundError:
            raise DataError(f"{file}: no such file") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{file}: not valid UTF-8 ({error.reason})") from None
