"""The languages of the inputs: of each file, or of each document."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertie.base.errors import DataError, SettingsError
from bertie.base.storage import as_path
from bertie.text.languages import check_language

# The ISO 639-1 code of all inputs. For several languages: the file or folder of each by its code, or
# the codes in a column that gives the language of each document.
Language = str | Mapping[str, str | Path] | Sequence[str]


def oversampling_factors(sizes: Mapping[str, int], smoothing: float) -> dict[str, float]:
    """Return how often to repeat each language.

    The fraction of a language becomes proportional to p^S. The largest language is taken once.

    Example:
        >>> oversampling_factors({"de": 10, "en": 1000}, 0.5)
        {'de': 10.0, 'en': 1.0}
    """
    largest = max(sizes.values())
    return {language: (largest / size) ** (1 - smoothing) for language, size in sizes.items()}


def group_by_language(
    inputs: Sequence[Path], language: Language, column: str | None = None
) -> dict[str, list[Path]]:
    """Return the input files of each language, by its code.

    The codes are in alphabetical order.

    Args:
        inputs: the files.
        language: one code, the path of each language's files by its code, or the codes in `column`. A
            file below several paths has the language of the innermost.
        column: the key or column that gives the language of each document. All files are then files
            of each language.

    Raises:
        SettingsError: `language` has another type, a code is unknown, or `language` and `column` do not fit
            together.
        DataError: a file is below none of the paths, or a path has no input file.
    """
    codes = _list_codes(language)
    for code in codes:
        check_language(code)
    if column:
        if isinstance(language, str | Mapping) or len(set(codes)) < max(2, len(codes)):
            raise SettingsError(
                f"language_column = {column}: pass the code of each of its languages once, such as "
                f"--language de --language en (language=['de', 'en']); for one language, omit it"
            )
        return {code: list(inputs) for code in codes}
    if isinstance(language, str):
        return {language: list(inputs)}
    if not isinstance(language, Mapping):
        raise SettingsError(
            f"language = {', '.join(codes)}: the language of each document is unknown; pass --language "
            f"CODE=PATH with the file or folder of each, or --language-column NAME"
        )
    groups: dict[str, list[Path]] = {code: [] for code in codes}
    paths = {as_path(path).resolve(): code for code, path in language.items()}
    if len(paths) < len(language):
        raise SettingsError("language: two languages have the same path; give each its own folder")
    for file in inputs:
        resolved = file.resolve()
        below = [path for path in paths if resolved.is_relative_to(path)]
        if not below:
            raise DataError(f"{file}: no language; add --language CODE=PATH for its folder")
        groups[paths[max(below, key=lambda path: len(path.parts))]].append(file)
    if empty := [code for code, files in groups.items() if not files]:
        path = language[empty[0]]
        raise DataError(f"{path}: no input is in this path of language {empty[0]}; add it to the inputs")
    return groups


def _list_codes(language: Language) -> list[str]:
    """Return the codes in alphabetical order.

    Raise SettingsError if `language` has another type.
    """
    is_single = isinstance(language, str) or not isinstance(language, Iterable)
    codes: list[Any] = [language] if is_single else list(language)
    paths = list(language.values()) if isinstance(language, Mapping) else []
    if not all(isinstance(code, str) for code in codes) or not all(isinstance(p, str | Path) for p in paths):
        raise SettingsError(
            f"language = {language!r}: give a code such as 'en', a list of codes, or a dict from each code "
            f"to its path"
        )
    return sorted(codes)
