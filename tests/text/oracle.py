"""The tokenizer by its definition, slow and plain: google-research/bert's rules, read with `unicodedata`.

Nothing here uses the tables or the kernels of bertie.
"""

import unicodedata

ASCII_SYMBOLS = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
CJK_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
IDEOGRAPHS = {chr(code) for first, last in CJK_BLOCKS for code in range(first, last + 1)}


def clean(text: str) -> str:
    """Control characters, NUL and U+FFFD go; ideographs stand alone."""
    kept = []
    for c in text:
        if c in "\t\n\r":
            kept.append(" ")
        elif c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cf"):
            continue
        elif c in IDEOGRAPHS:
            kept.append(f" {c} ")
        else:
            kept.append(c)
    return "".join(kept)


def split(text: str, lowercase: bool) -> list[str]:
    """The words of a text."""
    words = []
    for chunk in clean(text).split():
        if lowercase:
            decomposed = unicodedata.normalize("NFD", chunk.lower())
            chunk = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        word = ""
        for c in chunk:
            if c in ASCII_SYMBOLS or unicodedata.category(c)[0] == "P":
                words.extend([word, c])
                word = ""
            else:
                word += c
        words.append(word)
    return [word for word in words if word]


def pieces(word: str, ids: dict[str, int], unknown: int, max_word_characters: int) -> list[int]:
    """Longest match first, from the left."""
    if len(word) > max_word_characters:
        return [unknown]
    found = []
    begin = 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            piece = ("##" if begin else "") + word[begin:end]
            if piece in ids:
                found.append(ids[piece])
                begin = end
                break
        else:
            return [unknown]
    return found
