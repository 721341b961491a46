"""Case and accents of the words of a text: Article 1 of the Universal Declaration of Human Rights."""

import unicodedata
from collections import Counter

import pytest

from bertie.text.casing import Casing, measure_casing

ENGLISH = "All human beings are born free and equal in dignity and rights. They are endowed with reason. "
ARTICLE_1 = {
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Каждый человек.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Japanese": "すべて の 人間 は 、 生まれ ながら に して 自由 で あり 、 尊厳 と 権利 と に ついて 平等",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "Chinese": "人 人 生 而 自 由 , 在 尊 严 和 权 利 上 一 律 平 等 。",
    "Hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
}


def measure(text: str) -> Casing:
    counts = Counter(text.split())
    return measure_casing(counts, counts.values())


@pytest.mark.parametrize("language", ARTICLE_1)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_languages_with_accents_or_without_case_need_a_cased_vocabulary(language: str, form: str) -> None:
    casing = measure(unicodedata.normalize(form, ARTICLE_1[language]))  # type: ignore[arg-type]
    assert casing.needs_cased
    assert (casing.with_case < 0.5) == (language in ("Hindi", "Japanese", "Korean", "Chinese", "Hebrew"))
    if language in ("Korean", "Chinese", "Hebrew"):
        assert casing.accented == 0
        assert casing.example is None
    else:
        assert casing.accented > 0.05


def test_english_does_not_need_a_cased_vocabulary() -> None:
    casing = measure(ENGLISH * 10 + "naïve café 1984 — 中")
    assert not casing.needs_cased
    assert casing.example in (("naïve", "naive"), ("café", "cafe"))
    assert casing.accented == pytest.approx(2 / 173)


@pytest.mark.parametrize(
    ("words", "needs_cased"),
    [
        ({"and": 98, "naïve": 2}, False),
        ({"and": 97, "naïve": 3}, True),
        ({"and": 5, "中": 5}, False),
        ({"and": 4, "中": 5}, True),
    ],
)
def test_two_percent_of_accents_and_half_without_case_are_allowed(
    words: dict[str, int], needs_cased: bool
) -> None:
    assert measure_casing(words, words.values()).needs_cased == needs_cased


def test_example_is_the_most_frequent_accented_word() -> None:
    words = {"दिल्ली": 3, "Élan": 2, "und": 10, "...": 50}
    assert measure_casing(words, words.values()) == Casing(12 / 15, 5 / 15, ("दिल्ली", "दिलली"))
    assert measure_casing([], []) == Casing(0, 0, None)
