"""A slow reference tokenizer: google-research/bert's rules with `unicodedata`.

It uses neither the tables nor the kernels of bertie.
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
    """Remove control characters, NUL and U+FFFD, and put spaces around ideographs."""
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
    """Split a text into normalised words."""
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


def match(word: str, ids: dict[str, int], unk_id: int, max_word_characters: int) -> list[int]:
    """Match the longest token first, from left to right."""
    if len(word) > max_word_characters:
        return [unk_id]
    matched = []
    begin = 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            token = ("##" if begin else "") + word[begin:end]
            if token in ids:
                matched.append(ids[token])
                begin = end
                break
        else:
            return [unk_id]
    return matched
