"""The language of each input file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertie.base.errors import DataError, SettingsError
from bertie.text.languages import check_language

# The ISO 639-1 code of all inputs; or, for several languages, the file or folder of each by its code.
Language = str | Mapping[str, str | Path]


def oversampling_factors(sizes: Mapping[str, int], smoothing: float) -> dict[str, float]:
    """Return how often to repeat each language, so that its fraction is proportional to p^S.

    The largest language is taken once.

    Example:
        >>> oversampling_factors({"de": 10, "en": 1000}, 0.5)
        {'de': 10.0, 'en': 1.0}
    """
    largest = max(sizes.values())
    return {language: (largest / size) ** (1 - smoothing) for language, size in sizes.items()}


def group_by_language(inputs: Sequence[Path], language: Language) -> dict[str, list[Path]]:
    """Return the input files of each language, by its code, in alphabetical order of the codes.

    Args:
        inputs: the files.
        language: one code, or the path of each language's files by its code. A file below several
            paths has the language of the innermost.

    Raises:
        SettingsError: a code is unknown.
        DataError: a file is below none of the paths, or a path has no input file.
    """
    codes = [language] if isinstance(language, str) else sorted(language)
    for code in codes:
        check_language(code)
    if isinstance(language, str):
        return {language: list(inputs)}
    groups: dict[str, list[Path]] = {code: [] for code in codes}
    paths = {Path(path).resolve(): code for code, path in language.items()}
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
