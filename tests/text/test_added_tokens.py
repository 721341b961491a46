"""Added tokens: loaded from every file layout, recognised, and saved again."""

import json
import re

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import ModelError
from bertie.text.added_tokens import AddedToken
from bertie.text.encoding import CHUNK_CHARACTERS
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

TOKENS = [
    *SPECIAL_TOKENS,
    "[unused1]",
    "[unused2]",
    "a",
    "b",
    "##a",
    "##b",
    "ab",
    ".",
    "[",
    "]",
    "e",
    "##1",
    "1",
]
ADDED = {"[E1]": len(TOKENS), "[/E1]": len(TOKENS) + 1}
TEXTS = ["a [E1] b[/E1] ab.", "[E1]", "", "ab", "a[E1][E1]b", "[e1] a [unused1] b", "[/E1]aab[E1] x ba"]


def flags(token):
    return {
        "content": token,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }


def write(path, year):
    """Write a tokenizer directory with special tokens, in the layout of a year."""
    special = [*ADDED, "[unused1]"]
    ids = {**ADDED, "[unused1]": 5}
    if year == 2025:
        peer = transformers.BertTokenizer({token: i for i, token in enumerate(TOKENS)})
        peer.add_special_tokens({"extra_special_tokens": special})
        peer.save_pretrained(path)
        return
    (path / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    if year == 2019:
        (path / "added_tokens.json").write_text(json.dumps(ADDED))
        (path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": special}))
    if year == 2021:  # the map has entries with flags
        (path / "added_tokens.json").write_text(json.dumps(ADDED))
        entries = [flags(token) for token in special]
        (path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": entries}))
    if year == 2023:
        config = {"added_tokens_decoder": {str(ids[token]): flags(token) for token in special}}
        (path / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("year", [2019, 2021, 2023, 2025])
def test_added_tokens_round_trip(tmp_path, year):
    write(tmp_path, year)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocabulary.tokens == (*TOKENS, *ADDED)
    assert {token.content for token in tokenizer.added_tokens} == {*ADDED, "[unused1]"}
    tokenizer.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.added_tokens == tokenizer.added_tokens
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert len(peer) == len(tokenizer.vocabulary)
    assert set(peer.all_special_tokens) == {*SPECIAL_TOKENS, *ADDED, "[unused1]"}
    for text in TEXTS:
        expected = peer(text, return_offsets_mapping=True)
        encoding = tokenizer.encode(text)
        assert encoding.input_ids.tolist() == expected["input_ids"], text
        assert encoding.offsets.tolist() == [list(pair) for pair in expected["offset_mapping"]], text
        assert tokenizer.decode(encoding.input_ids) == peer.decode(
            encoding.input_ids, skip_special_tokens=True
        )


PLAIN = Tokenizer(Vocabulary([*TOKENS, *ADDED]))
MARKED = Tokenizer(PLAIN.vocabulary, added_tokens=tuple(ADDED))


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", " ", ".", "é", "[E1]", "[/E1]"]), max_size=9), max_size=5)
)
def test_encoding_equals_the_joined_encodings_of_the_parts(texts):
    """Parts between special tokens are encoded like texts, with shifted offsets."""
    texts = ["".join(text) for text in texts]
    encoding = MARKED.encode_batch(texts, add_special_tokens=False)
    for i, text in enumerate(texts):
        rows = []
        words = 0
        for part in re.finditer(r"\[/?E1\]|[^\[]+", text):
            if part[0] in ADDED:
                rows.append((ADDED[part[0]], part.start(), part.end(), words))
            else:
                encoded = PLAIN.encode_batch([part[0]], add_special_tokens=False)
                rows += [
                    (token, begin + part.start(), end + part.start(), word + words)
                    for token, (begin, end), word in zip(
                        encoded.input_ids.tolist(),
                        encoded.offsets.tolist(),
                        encoded.word_ids.tolist(),
                        strict=True,
                    )
                ]
            words = rows[-1][3] + 1 if rows else 0
        cut = slice(encoding.bounds[i], encoding.bounds[i + 1])
        actual = np.column_stack([encoding.input_ids, encoding.offsets, encoding.word_ids])[cut]
        assert actual.tolist() == [list(row) for row in rows]


def test_tokens_that_are_not_special_are_plain_text():
    assert "[E1]" not in PLAIN.convert_ids_to_tokens(PLAIN.encode("a [E1]").input_ids)
    assert PLAIN.fingerprint != MARKED.fingerprint


def test_added_token_counts_as_one_in_truncation():
    encoding = MARKED.encode("a [E1] b", "[/E1] a", max_length=6)
    assert MARKED.convert_ids_to_tokens(encoding.input_ids) == [
        "[CLS]",
        "a",
        "[E1]",
        "[SEP]",
        "[/E1]",
        "[SEP]",
    ]


def test_longest_added_token_wins(tmp_path):
    tokens = [*TOKENS, "<a", "<ab", "<ab>"]
    tokenizer = Tokenizer(Vocabulary(tokens), added_tokens=("<a", "<ab", "<ab>"))
    tokenizer.save(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("<ab", "a<abb<ab><a", "<<a>b"):
        assert tokenizer.encode(text).input_ids.tolist() == peer(text)["input_ids"]


def test_saved_key_is_readable_by_all_versions(tmp_path):
    """transformers 4 fails on a list under the key of transformers 5."""
    MARKED.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["additional_special_tokens"] == list(ADDED)
    assert "extra_special_tokens" not in config


def test_added_token_may_have_an_id_after_a_gap_but_not_that_of_another(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    last = len(TOKENS) - 1
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": last + 5}))
    assert Tokenizer.load(tmp_path).vocabulary.tokens[last:] == (TOKENS[last], "", "", "", "", "[E1]")
    for token_id, found in ((last, f"is {TOKENS[last]!r}"), (10**9, "does not exist")):
        (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": token_id}))
        with pytest.raises(ModelError, match=f"has the id {token_id}, which {re.escape(found)} in the vocab"):
            Tokenizer.load(tmp_path)


def test_added_tokens_json_has_tokens_without_flags(tmp_path):
    """Older versions of transformers wrote it; special_tokens_map.json says which tokens are special."""
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"@USER": len(TOKENS), "[E1]": len(TOKENS) + 1}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["[E1]"]}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.lowercase  # the upper-case letters of an added token do not make a vocabulary cased
    assert tokenizer.added_tokens == (
        AddedToken("@USER", only_added=True),
        AddedToken("[E1]", normalized=False, special=True, only_added=True),
    )
    ids = tokenizer.encode("a@userb [e1][E1]").input_ids.tolist()
    assert [i for i in ids if i >= len(TOKENS)] == [len(TOKENS), len(TOKENS) + 1]
    assert tokenizer.decode(ids) == "a @USER b [ e1 ]"


def test_flags_of_tokenizer_config_count(tmp_path):
    tokenizer = Tokenizer(Vocabulary([*TOKENS, "x"]), added_tokens=[AddedToken("x", lstrip=True)])
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).added_tokens == tokenizer.added_tokens
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(len(TOKENS)): {"content": "x", "rstrip": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).added_tokens == (AddedToken("x", rstrip=True),)


def test_token_without_normalised_form_is_rejected(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"\u200b": len(TOKENS)}))
    with pytest.raises(
        ModelError, match=r"nothing is left of the added token '\\u200b' when it is normalised"
    ):
        Tokenizer.load(tmp_path)


def test_lower_id_counts_if_normalised_forms_are_equal():
    tokens = [AddedToken("QX"), AddedToken("qx")]
    tokenizer = Tokenizer(Vocabulary([*TOKENS, "qx", "QX"]), added_tokens=tokens)
    assert tokenizer.encode("Qx").input_ids[1] == tokenizer.vocabulary.ids["qx"]
    assert tokenizer.replace(lowercase=False).encode("QX").input_ids[1] == tokenizer.vocabulary.ids["QX"]


def test_word_is_not_split_into_tokens_that_are_only_added():
    vocabulary = Vocabulary([*TOKENS, "abab"])
    for only_added, expected in ((True, ["ab", "##a", "##b"]), (False, ["abab"])):
        token = AddedToken("abab", normalized=False, only_added=only_added)
        tokenizer = Tokenizer(vocabulary, added_tokens=[token])
        ids = tokenizer.encode("ABAB").input_ids[1:-1]
        assert tokenizer.convert_ids_to_tokens(ids) == expected


def test_gap_before_a_token_that_is_only_added_survives_saving(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"q": len(TOKENS) + 3}))
    Tokenizer.load(tmp_path).save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").encode("aqb").input_ids[2] == len(TOKENS) + 3
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert peer("aqb")["input_ids"][2] == len(TOKENS) + 3


@pytest.mark.parametrize(
    "token", [AddedToken("qx", single_word=True), AddedToken("q", lstrip=True), AddedToken("x q")]
)
def test_long_text_has_the_tokens_of_its_lines(token):
    tokenizer = Tokenizer(Vocabulary([*TOKENS, token.content]), added_tokens=[token])
    line = f"a {token.content} b{token.content}  {token.content}a.a "
    count = 3 * CHUNK_CHARACTERS // len(line)
    short = tokenizer.encode_batch([line], add_special_tokens=False)
    long = tokenizer.encode_batch([line * count], add_special_tokens=False)
    assert long.input_ids.tolist() == short.input_ids.tolist() * count
    assert long.offsets[-1].tolist() == (short.offsets[-1] + len(line) * (count - 1)).tolist()
    assert long.word_ids[-1] == (short.word_ids[-1] + 1) * count - 1
