"""`bertie tokenize`: show the tokens of a text."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import Json, NoVerify, check_stdout, local_path_argument


def tokenize(
    directory: Annotated[
        Path, local_path_argument("A tokenizer or model directory, or a vocab.txt.", "TOKENIZER")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="The texts; by default every line of standard input."),
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A second segment for every text.")] = None,
    cased: Annotated[
        bool | None, typer.Option("--cased/--uncased", help="Override the casing of the directory.")
    ] = None,
    as_json: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Show the tokens of a text, their ids and positions."""
    from bertie.base.progress import open_stdin
    from bertie.base.rows import decode_lines
    from bertie.text.tokenizer import Tokenizer

    check_stdout()
    tokenizer = Tokenizer.load(directory, lowercase=None if cased is None else not cased)
    for text in texts or decode_lines(open_stdin(), "standard input"):
        encoding = tokenizer.encode(text, pair)
        tokens = tokenizer.convert_ids_to_tokens(encoding.input_ids)
        rows = zip(
            tokens,
            encoding.input_ids.tolist(),
            encoding.token_type_ids.tolist(),
            encoding.offsets.tolist(),
            strict=True,
        )
        if as_json:
            row = {
                "text": text,
                "tokens": tokens,
                "input_ids": encoding.input_ids.tolist(),
                "token_type_ids": encoding.token_type_ids.tolist(),
                "offsets": encoding.offsets.tolist(),
            }
            print(json.dumps(row, ensure_ascii=False))
            continue
        for token, token_id, segment, (start, end) in rows:
            source = (text, pair or "")[segment][start:end]
            print(f"{token_id:>7}  {segment}  {start:>5}-{end:<5}  {token:<20}  {source}".rstrip())
