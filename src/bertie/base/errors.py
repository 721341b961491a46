"""The exceptions that bertie raises for its users.

    BertieError          base class; the command line prints the message and exits with status 2
    ├── SettingsError    a setting or an option: names the key, and the nearest known one
    ├── DataError        an input file: names the file, and the line where there is one
    └── ModelError       a model, tokenizer or checkpoint that is damaged, missing or does not fit

Each message is one line. It names the file, line or key, the problem and the remedy. Programming
errors are plain `assert`s and have no class here.
"""

import re

_CONTROLS = re.compile(r"[\x00-\x08\n-\x1f\x7f-\x9f]")


class BertieError(Exception):
    """An error that the user can fix; the message is one line that says how."""

    def __str__(self) -> str:
        return escape_controls(super().__str__())


class SettingsError(BertieError):
    """A setting or an option is unknown, or its value is invalid."""


class DataError(BertieError):
    """An input file is missing, damaged, empty or malformed."""


class ModelError(BertieError):
    """A model directory, tokenizer or checkpoint is missing, damaged or does not fit."""


def escape_controls(text: str) -> str:
    """Write the line breaks and control characters of a text, such as a file's name, as `\\n` or `\\x1b`.

    A message then has one line and cannot change how the terminal shows it. Tabs stay.
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
