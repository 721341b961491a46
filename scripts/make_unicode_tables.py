"""Make src/bertie/text/unicode.npz from the running Python's Unicode data.

    python scripts/make_unicode_tables.py

bertie.text.unicode describes the tables. Run this only to move to another Unicode version: it
changes the fingerprint of every tokenizer.
"""

import sys
import unicodedata

import numpy as np
import numpy.typing as npt

from bertie.text import unicode
from bertie.text.unicode import BLOCK_BITS, FLAG_BITS, TABLES_FILE, UNICODE_VERSION

CJK_RANGES = (  # google-research/bert tokenization.py, _is_chinese_char
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
OTHER_ALPHABETIC_SYMBOLS = (  # of category So: circled and squared letters (Unicode, PropList.txt)
    (0x24B6, 0x24E9),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)
JOINERS = "\u200c\u200d"  # property Join_Control


def is_word_character(character: str) -> bool:
    r"""Return whether `\w` matches a character in Rust's regular expressions (UTS #18, Annex C)."""
    category = unicodedata.category(character)
    return (
        category[0] in "LM"
        or category in ("Nd", "Nl", "Pc")
        or character in JOINERS
        or any(first <= ord(character) <= last for first, last in OTHER_ALPHABETIC_SYMBOLS)
    )


def is_punctuation(character: str) -> bool:
    """Return whether a character is an ASCII symbol or in a category P*."""
    is_symbol = "!" <= character <= "~" and not character.isalnum()
    return is_symbol or unicodedata.category(character).startswith("P")


def flags(character: str) -> int:
    """Return the flags of a character that do not depend on its normalisation."""
    code, category = ord(character), unicodedata.category(character)
    if character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
        return unicode.SPACE
    if category in ("Cc", "Cf") or code == 0xFFFD:
        # Dropped before the text is lower-cased, so its case does not matter.
        return unicode.DROPPED | unicode.WORD_CHARACTER * is_word_character(character)
    # Python shows the properties Cased and Case_Ignorable only by their effect on a final sigma.
    is_cased = f"{character}Σ".lower()[-1] == "ς"
    is_ignorable = not is_cased and f"A{character}Σ".lower()[-1] == "ς"
    return (
        unicode.PUNCTUATION * is_punctuation(character)
        | unicode.CJK * any(first <= code <= last for first, last in CJK_RANGES)
        | unicode.CASED * is_cased
        | unicode.IGNORABLE * is_ignorable
        | unicode.WORD_CHARACTER * is_word_character(character)
    )


def make_entries(
    all_flags: list[int], lowercase: bool, strip_accents: bool, sequences: list[int]
) -> npt.NDArray[np.uint32]:
    """Return the entry of every code point, and append its sequences to `sequences`."""
    entries = np.zeros(sys.maxunicode + 1, dtype=np.uint32)
    for code in range(sys.maxunicode + 1):
        character, entry = chr(code), all_flags[code]
        replacement = decomposed = character.lower() if lowercase else character
        if strip_accents:
            decomposed = unicodedata.normalize("NFD", replacement)
            replacement = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        if entry & (unicode.DROPPED | unicode.SPACE):
            replacement = character
        elif strip_accents:
            first = unicodedata.normalize("NFD", character)[0]
            entry |= unicode.MARK * (unicodedata.combining(first) != 0)
        if len(replacement) == 1 and replacement != character:
            entry |= unicode.MAPPED | ord(replacement) << FLAG_BITS
        elif len(replacement) != 1:
            entry |= unicode.SEQUENCE | (len(sequences) << 2 | len(replacement)) << FLAG_BITS
            sequences.extend(map(ord, replacement))
            # The kernel assumes this of characters that become none or several.
            assert len(replacement) <= unicode.LONGEST_SEQUENCE
            assert not entry & unicode.CJK
            assert not any(is_punctuation(c) for c in replacement)
            assert all(map(unicodedata.combining, decomposed)) or not unicodedata.combining(decomposed[0])
        entries[code] = entry
    return entries


def main() -> None:
    """Write the tables."""
    running = unicodedata.unidata_version
    if running != UNICODE_VERSION:
        sys.exit(
            f"this Python has Unicode {running}, but bertie.text.unicode has {UNICODE_VERSION}; use another "
            "Python, or change UNICODE_VERSION"
        )
    all_flags = [flags(chr(code)) for code in range(sys.maxunicode + 1)]
    sequences: list[int] = []
    entries = np.stack(
        [
            make_entries(all_flags, lowercase, strip_accents, sequences)
            for lowercase in (False, True)
            for strip_accents in (False, True)
        ]
    )
    blocks, block_of = np.unique(entries.reshape(-1, 1 << BLOCK_BITS), axis=0, return_inverse=True)
    combining_class = [unicodedata.combining(chr(code)) for code in range(sys.maxunicode + 1)]
    marks = [
        code
        for code, value in enumerate(combining_class)
        if value and unicodedata.category(chr(code)) != "Mn"
    ]
    np.savez_compressed(
        TABLES_FILE,
        block_of=block_of.reshape(len(entries), -1).astype(np.uint16),
        entries=blocks.reshape(-1),
        sequences=np.array(sequences, dtype=np.uint32),
        marks=np.array(marks, dtype=np.uint32),
        mark_classes=np.array([combining_class[code] for code in marks], dtype=np.uint8),
    )
    print(f"{TABLES_FILE}: Unicode {running}, {len(blocks)} blocks")


if __name__ == "__main__":
    main()
