"""Every command's help says what becomes of its output when the command is killed."""

import pytest
import typer.main

from bertie.commands.main import app

WHOLE = "The output appears whole or not at all, even if the command is killed."
RESUMES = "The same command resumes a run that was stopped or killed"
RESUMES_WITH_OPTION = "--resume resumes a run that was stopped or killed."
WRITES_NOTHING = ""  # evaluate writes with --add-to-report, which replaces two files of a run atomically
SENTENCES = {
    "vocab": WHOLE,
    "prepare": RESUMES,
    "pretrain": RESUMES_WITH_OPTION,
    "finetune": RESUMES_WITH_OPTION,
    "search": RESUMES,
    "evaluate": WRITES_NOTHING,
    "predict": WHOLE,
    "embed": WHOLE,
    "features": WHOLE,
    "submission": WHOLE,
    "tokenize": WRITES_NOTHING,
    "convert": WHOLE,
    "export": WHOLE,
    "serve": WRITES_NOTHING,
    "inspect": WRITES_NOTHING,
    "reproduce": RESUMES,
    "doctor": WRITES_NOTHING,
    "demo": RESUMES,
}


def test_every_command_is_in_the_table() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert commands.keys() == SENTENCES.keys()


@pytest.mark.parametrize("name", SENTENCES)
def test_help_says_whether_a_killed_command_can_resume(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    text = " ".join(command.help.split())
    known = (WHOLE, RESUMES, RESUMES_WITH_OPTION)
    assert [sentence for sentence in known if sentence in text] == (
        [SENTENCES[name]] if SENTENCES[name] else []
    )
