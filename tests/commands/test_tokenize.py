"""`bertie tokenize`: reading standard input."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from bertie.commands.main import app
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

ANNOUNCE = "from bertie.base.progress import open_stdin; open_stdin()"


def test_lines_of_standard_input_are_tokenized(tmp_path: Path) -> None:
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, "well"])).save(tmp_path)
    result = CliRunner().invoke(app, ["tokenize", str(tmp_path), "--json"], input="Well\n")
    assert result.exit_code == 0
    assert '"tokens": ["[CLS]", "well", "[SEP]"]' in result.stdout
    assert "reading standard input" not in result.stderr


def test_each_token_has_the_characters_of_its_segment(tmp_path: Path) -> None:
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, "well", "Well", "Done"])).save(tmp_path)
    rows = {}
    for casing in ("--uncased", "--cased"):
        result = CliRunner().invoke(app, ["tokenize", str(tmp_path), "Well", "--pair", "Well Done", casing])
        rows[casing] = [line.split()[1:] for line in result.stdout.splitlines()]
    assert rows["--cased"] == [
        ["0", "0-0", "[CLS]"],
        ["0", "0-4", "Well", "Well"],
        ["0", "0-0", "[SEP]"],
        ["1", "0-4", "Well", "Well"],
        ["1", "5-9", "Done", "Done"],
        ["1", "0-0", "[SEP]"],
    ]
    assert [row[2:] for row in rows["--uncased"][3:5]] == [["well", "Well"], ["[UNK]", "Done"]]


def test_terminal_as_standard_input_is_announced() -> None:
    controller, terminal = pty.openpty()
    try:
        command = [sys.executable, "-c", ANNOUNCE]
        done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, check=True)
    finally:
        os.close(controller)
        os.close(terminal)
    assert done.stderr == "reading standard input; end with Ctrl-D\n"
    assert done.stdout == ""


def test_characters_that_standard_output_cannot_encode_are_escaped(tmp_path: Path) -> None:
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, "東"])).save(tmp_path)
    command = [sys.executable, "-m", "bertie", "tokenize", str(tmp_path), "東"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split()[3:] == ["\\u6771", "\\u6771"]
