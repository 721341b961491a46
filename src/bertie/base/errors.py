"""The errors a user can meet.

    BertieError          one line, no traceback: the command line prints it and exits 2
    ├── SettingsError    a setting or an option: names the key and the nearest known one
    ├── DataError        an input: names the file, and the line where there is one
    └── ModelError       a model, tokenizer or checkpoint that is damaged, absent or does not fit

Each message names the file, the line or the key, and what to do. Programming errors are plain `assert`s.
"""


class BertieError(Exception):
    """Something the user can mend; the message is one line that says how."""


class SettingsError(BertieError):
    """A setting or an option is unknown, or its value cannot be used."""


class DataError(BertieError):
    """An input file is missing, damaged, empty or not of the expected form."""


class ModelError(BertieError):
    """A model directory, tokenizer or checkpoint is absent, damaged or does not fit."""
