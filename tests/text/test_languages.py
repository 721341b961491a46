"""Codes of languages, and advice about names that are not codes."""

import re

import pytest
import sentencex

from bertie.base.errors import SettingsError
from bertie.text.languages import LANGUAGES, OTHER_CODES, WITH_RULES, check_language


def test_codes_of_sentencex_and_iso_639_1_are_accepted() -> None:
    assert len(LANGUAGES) == 184
    for code in (*LANGUAGES, *OTHER_CODES, *WITH_RULES.split(", ")):
        check_language(code)


def test_languages_with_rules_differ_from_english() -> None:
    text = "Am 3. Okt. kam Hr. Dr. Maier z.B. um 5 Uhr. Er ging bzw. lief."
    assert "de" in WITH_RULES
    assert sentencex.segment("de", text) != sentencex.segment("en", text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("german", "de"),
        ("German", "de"),
        ("Hebrw", "he"),
        ("de_DE", "de"),
        ("EN", "en"),
        ("norwegian nynorsk", "nn"),
        ("xx", None),
        ("", None),
    ],
)
def test_other_strings_are_rejected_with_the_nearest_code(text: str, code: str | None) -> None:
    with pytest.raises(SettingsError, match=f"language {text}: not an ISO 639-1 code; ") as caught:
        check_language(text)
    suggestion = re.search(r"did you mean (\S+)\?", str(caught.value))
    assert (suggestion[1] if suggestion else None) == code
    if code:
        check_language(code)
