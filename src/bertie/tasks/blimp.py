"""BLiMP: minimal pairs of an acceptable and an unacceptable sentence.

See Warstadt et al., arXiv:1912.00582. BLiMP has 67 paradigms, each a file of 1,000 pairs that test one
phenomenon. A language model is right on a pair if the acceptable sentence has the higher log-likelihood.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertie.base.arrays import Bools, Float64s
from bertie.base.errors import DataError
from bertie.base.rows import format_suffix, read_rows

NUM_PARADIGMS = 67  # Warstadt et al., Table 2
_COLUMNS = ("sentence_good", "sentence_bad", "linguistics_term")


class Paradigm(NamedTuple):
    """The minimal pairs of one file.

    Attributes:
        name: the name of the file without its suffixes, such as `adjunct_island`.
        phenomenon: the phenomenon that the paradigm tests, BLiMP's `linguistics_term`.
        good: the acceptable sentences.
        bad: the unacceptable sentence of each pair.
    """

    name: str
    phenomenon: str
    good: list[str]
    bad: list[str]


def read_blimp(path: Path) -> list[Paradigm]:
    """Read the .jsonl files of a folder, or one file; they may be compressed.

    Raises:
        DataError: there is no such folder or file, two files have the same name, or a line is malformed.
        SettingsError: a line lacks one of the keys that BLiMP has.
    """
    if not path.exists():
        raise DataError(f"{path}: no such folder; give the folder data of github.com/alexwarstadt/blimp")
    files = sorted(file for file in path.iterdir() if _is_jsonl(file)) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no .jsonl files; give the folder data of github.com/alexwarstadt/blimp")
    paradigms: dict[str, Paradigm] = {}
    for file in files:
        paradigm = _read_paradigm(file)
        if paradigm.name in paradigms:
            raise DataError(f"{file}: a second file of {paradigm.name}; remove one of the two")
        paradigms[paradigm.name] = paradigm
    return list(paradigms.values())


def _is_jsonl(file: Path) -> bool:
    return format_suffix(file) == ".jsonl"


def _read_paradigm(file: Path) -> Paradigm:
    rows = read_rows(file, _COLUMNS)
    for column in _COLUMNS:
        for i, value in enumerate(rows.columns[column]):
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"{rows.location(i)}: {column} is not a text; write one, or remove the line")
    good, bad, phenomena = (rows.columns[column] for column in _COLUMNS)
    return Paradigm(file.name.partition(".jsonl")[0], phenomena[0], good, bad)


class BlimpScores(NamedTuple):
    """Fractions of pairs that a model gets right, in percent.

    Attributes:
        accuracy: over all pairs.
        pairs: the number of pairs.
        paradigms: by paradigm, that is, by file.
        phenomena: by phenomenon, over the pairs of its paradigms.
    """

    accuracy: float
    pairs: int
    paradigms: dict[str, float]
    phenomena: dict[str, float]


def score(paradigms: Sequence[Paradigm], log_likelihoods: Float64s) -> BlimpScores:
    """Score all pairs; a pair of equal log-likelihoods is wrong.

    Args:
        paradigms: the paradigms.
        log_likelihoods: of all sentences; for each paradigm, of the `good` ones, then of the `bad` ones.
    """
    ends = np.cumsum([2 * len(paradigm.good) for paradigm in paradigms])
    right = {}
    for paradigm, values in zip(paradigms, np.split(log_likelihoods, ends[:-1]), strict=True):
        good, bad = values.reshape(2, -1)
        right[paradigm.name] = good > bad
    by_phenomenon = {
        phenomenon: np.concatenate([right[p.name] for p in paradigms if p.phenomenon == phenomenon])
        for phenomenon in sorted({paradigm.phenomenon for paradigm in paradigms})
    }
    every = np.concatenate([*right.values()])
    return BlimpScores(_percent(every), len(every), _percents(right), _percents(by_phenomenon))


def _percents(groups: Mapping[str, Bools]) -> dict[str, float]:
    return {name: _percent(is_right) for name, is_right in groups.items()}


def _percent(is_right: Bools) -> float:
    return float(100 * is_right.sum() / len(is_right))
