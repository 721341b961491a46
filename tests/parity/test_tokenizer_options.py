"""`strip_accents`, `tokenize_chinese_chars` and `never_split` equal `transformers`.

The peers are the slow tokenizer of `transformers` (in version 5 `BertTokenizerLegacy`) and the fast
one. They differ from each other in three ways, in which bertie follows one of both:

  NFC          The slow one composes texts first. The fast one, google's and bertie's do not.
  never_split  Only the slow one has it, and bertie.
  final sigma  The slow one, google's and bertie's lower-case it as `str.lower` does.
"""

import random
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from transformers.models.bert import tokenization_bert_legacy
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from bertie.text.tokenizer import Tokenizer
from bertie.text.unicode import UNICODE_VERSION, unicode_tables
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece import split_words

OPTIONS = list(product((True, False), (None, True, False), (True, False)))  # lower-case, strip, ideographs
STRINGS = 800  # for each of the twelve combinations of options
ODD = (
    "aBzÁéÇßİıǅΑΣςάΐйЁёўאּהֵْأإآئدّहिंदीदिल्लीไทย็์வணக்ผู้てでがガｶﾞ한국각中文字漢豈侮𠀀﹏.,'’-–!?[]()*§€$~^`"
    "\u0300\u0301\u0308\u0327\u0328\u0345\u034f\u0653\u093c\u094d\u0e33\u3099\u302e\u1b44\U0001d165\U0001d16d"
    "\u00ad\u200d\u200b\ufeff\x00\ufffd\x1c\x85 \t\n\r\u00a0\u2028\u3000\u037e\u1fef\u2126\u212b\u00c5"
)
TEXTS = (  # Article 1 of the Universal Declaration of Human Rights
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах; «Ёж, йод».",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "人人生而自由,在尊严和权利上一律平等。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "כָּל בְּנֵי אָדָם נוֹלְדוּ בְּנֵי חוֹרִין וְשָׁוִים בְּעֶרְכָּם וּבִזְכֻיּוֹתֵיהֶם.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
)

pytestmark = pytest.mark.skipif(
    unicodedata.unidata_version != UNICODE_VERSION, reason="the running Python has another Unicode version"
)


@cache
def random_strings(seed: int, count: int, alphabet: str = ODD) -> list[str]:
    generator = random.Random(seed)
    strings = []
    for _ in range(count):
        codes = [
            generator.choice(alphabet) if generator.random() < 0.9 else chr(generator.randrange(0xD7FF))
            for _ in range(generator.randrange(40))
        ]
        # The slow tokenizer drops unassigned characters, too.
        strings.append("".join(c for c in codes if unicodedata.category(c) != "Cn"))
    return strings


def make_vocabulary() -> Vocabulary:
    """Make a vocabulary of the characters that occur, with and without normalisation, and some words."""
    characters = {c for text in (ODD, *TEXTS) for form in ("NFC", "NFD") for c in _forms(text, form)}
    characters = {c for c in characters if not c.isspace()}
    words = [
        "men",
        "ένη",
        "würde",
        "Würde",
        "wurde",
        "人人",
        "##生而",
        "で",
        "##であ",
        "दिल्ली",
        "c++",
        "[e1]",
    ]
    return Vocabulary([*SPECIAL_TOKENS, *sorted(characters), *(f"##{c}" for c in sorted(characters)), *words])


def _forms(text: str, form: Any) -> Iterator[str]:
    yield from unicodedata.normalize(form, text)
    yield from unicodedata.normalize(form, text.lower())


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@cache
def is_known_difference(character: str) -> bool:
    """Whether `tokenizers` treats a character in another way, as test_tokenizers.py explains.

    Its Unicode version is newer, it drops private use characters, and a sigma is never final.
    """
    text = f"a{character}b"
    stripped = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=True).normalize_str(text)
    words = [word for word, _ in tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str(stripped)]
    codes, bounds, _ = split_words([text], unicode_tables(False, True))
    characters = codes.tobytes().decode("utf-32-le")
    return character == "Σ" or words != [characters[i:j] for i, j in pairwise(bounds)]


def has_reordered_marks(text: str) -> bool:
    """Whether a mark that is not stripped may move, so that its offsets are those of its neighbour."""
    return any(unicodedata.combining(c) and unicodedata.category(c) != "Mn" for c in text)


def is_stripped(text: str) -> bool:
    """Whether a text consists of accents and dropped characters."""
    return all(c == "\ufffd" or unicodedata.category(c) in ("Mn", "Cc", "Cf") for c in text)


def split_into_ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    encoding = tokenizer.encode_batch(texts, add_special_tokens=False)
    ids, bounds = encoding.input_ids.tolist(), encoding.bounds.tolist()
    return [ids[start:stop] for start, stop in pairwise(bounds)]


def load_slow(vocabulary: Vocabulary, folder: Path, **options: Any) -> BertTokenizerLegacy:
    vocabulary.save(folder / "vocab.txt")
    return BertTokenizerLegacy(str(folder / "vocab.txt"), split_special_tokens=True, **options)


@pytest.mark.parametrize(("lowercase", "strip_accents", "chinese"), OPTIONS)
def test_options_equal_the_fast_tokenizer(
    vocabulary: Vocabulary, tmp_path: Path, lowercase: bool, strip_accents: bool | None, chinese: bool
) -> None:
    tokenizer = Tokenizer(vocabulary, lowercase, strip_accents=strip_accents, tokenize_chinese_chars=chinese)
    fast = transformers.BertTokenizer(
        vocab=vocabulary.ids,
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        tokenize_chinese_chars=chinese,
    )._tokenizer
    fast.encode_special_tokens = True
    texts = [
        *TEXTS,
        *(text for text in random_strings(1, STRINGS) if not any(map(is_known_difference, text))),
    ]
    assert len(texts) > STRINGS // 4
    encoding = tokenizer.encode_batch(texts, add_special_tokens=False)
    for i, (text, expected) in enumerate(
        zip(texts, fast.encode_batch(texts, add_special_tokens=False), strict=True)
    ):
        rows = slice(encoding.bounds[i], encoding.bounds[i + 1])
        assert tokenizer.convert_ids_to_tokens(encoding.input_ids[rows]) == expected.tokens, text
        if has_reordered_marks(text):
            continue
        for (start, end), (expected_start, expected_end) in zip(
            encoding.offsets[rows].tolist(), expected.offsets, strict=True
        ):
            # An accent that is stripped at the end of a word belongs to its last token in bertie.
            assert start == expected_start, text
            assert end == expected_end or is_stripped(text[expected_end:end])


@pytest.mark.parametrize(("lowercase", "strip_accents", "chinese"), OPTIONS)
def test_options_equal_the_slow_tokenizer(
    vocabulary: Vocabulary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lowercase: bool,
    strip_accents: bool | None,
    chinese: bool,
) -> None:
    options = {"strip_accents": strip_accents, "tokenize_chinese_chars": chinese}
    never_split = ("[e1]", "C++", "c++", "中", "がで", "é", "unknown-word")
    slow = load_slow(vocabulary, tmp_path, do_lower_case=lowercase, never_split=never_split, **options)
    tokenizer = Tokenizer(vocabulary, lowercase, never_split=never_split, **options)
    generator = random.Random(2)
    texts = list(TEXTS)
    for text in random_strings(3, STRINGS):
        parts = [
            text,
            *generator.choices((*never_split, "C++é", " ", " ", "中", "\x00", "\u0301"), k=4),
            text[::-1],
        ]
        generator.shuffle(parts)
        texts.append("".join(parts))
    # bertie, google's and the fast tokenizer do not compose texts, so that the slow one must not either.
    unchanged = type("", (), {**vars(unicodedata), "normalize": staticmethod(_normalize_except_nfc)})
    monkeypatch.setattr(tokenization_bert_legacy, "unicodedata", unchanged)
    for text, ids in zip(texts, split_into_ids(tokenizer, texts), strict=True):
        assert tokenizer.convert_ids_to_tokens(ids) == [
            token if token in vocabulary.ids else "[UNK]"
            for token in slow._tokenize(text, split_special_tokens=True)
        ], text


def _normalize_except_nfc(form: Any, text: str) -> str:
    return text if form == "NFC" else unicodedata.normalize(form, text)
