"""Added tokens: read from the files of all years, recognised in a text, kept on the way out."""

import json
import re

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import ModelError
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
    """A tokenizer's directory with [E1], [/E1] and [unused1] as special tokens."""
    special = [*ADDED, "[unused1]"]
    ids = {**ADDED, "[unused1]": 5}
    if year == 2025:
        theirs = transformers.BertTokenizer({token: i for i, token in enumerate(TOKENS)})
        theirs.add_special_tokens({"extra_special_tokens": special})
        theirs.save_pretrained(path)
        return
    (path / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    if year == 2019:
        (path / "added_tokens.json").write_text(json.dumps(ADDED))
        (path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": special}))
    if year == 2021:  # entries of the map with their flags
        (path / "added_tokens.json").write_text(json.dumps(ADDED))
        entries = [flags(token) for token in special]
        (path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": entries}))
    if year == 2023:
        config = {"added_tokens_decoder": {str(ids[token]): flags(token) for token in special}}
        (path / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("year", [2019, 2021, 2023, 2025])
def test_tokens_survive_the_way_in_and_out(tmp_path, year):
    write(tmp_path, year)
    ours = Tokenizer.load(tmp_path)
    assert ours.vocabulary.tokens == (*TOKENS, *ADDED)
    assert set(ours.added_tokens) == {*ADDED, "[unused1]"}
    ours.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == ours.fingerprint
    assert set(again.added_tokens) == set(ours.added_tokens)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert len(theirs) == len(ours.vocabulary)
    assert set(theirs.all_special_tokens) == {*SPECIAL_TOKENS, *ours.added_tokens}
    for text in TEXTS:
        expected = theirs(text, return_offsets_mapping=True)
        encoding = ours.encode(text)
        assert encoding.input_ids.tolist() == expected["input_ids"], text
        assert encoding.offsets.tolist() == [list(pair) for pair in expected["offset_mapping"]], text
        assert ours.decode(encoding.input_ids) == theirs.decode(encoding.input_ids, skip_special_tokens=True)


PLAIN = Tokenizer(Vocabulary([*TOKENS, *ADDED]))
MARKED = Tokenizer(PLAIN.vocabulary, added_tokens=tuple(ADDED))


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", " ", ".", "é", "[E1]", "[/E1]"]), max_size=9), max_size=5)
)
def test_a_text_is_the_sum_of_its_parts(texts):
    """Between special tokens a text is what it is by itself, with later offsets and words."""
    texts = ["".join(text) for text in texts]
    encoding = MARKED.encode_batch(texts, add_special_tokens=False)
    for i, text in enumerate(texts):
        rows = []
        words = 0
        for part in re.finditer(r"\[/?E1\]|[^\[]+", text):
            if part[0] in ADDED:
                rows.append((ADDED[part[0]], part.start(), part.end(), words))
            else:
                alone = PLAIN.encode_batch([part[0]], add_special_tokens=False)
                rows += [
                    (token, begin + part.start(), end + part.start(), word + words)
                    for token, (begin, end), word in zip(
                        alone.input_ids.tolist(), alone.offsets.tolist(), alone.word_ids.tolist(), strict=True
                    )
                ]
            words = rows[-1][3] + 1 if rows else 0
        cut = slice(encoding.bounds[i], encoding.bounds[i + 1])
        found = np.column_stack([encoding.input_ids, encoding.offsets, encoding.word_ids])[cut]
        assert found.tolist() == [list(row) for row in rows]


def test_without_being_special_they_are_plain_text():
    assert "[E1]" not in PLAIN.tokens(PLAIN.encode("a [E1]").input_ids)
    assert PLAIN.fingerprint != MARKED.fingerprint


def test_pairs_and_cuts_count_them_as_one():
    encoding = MARKED.encode("a [E1] b", "[/E1] a", max_length=6)
    assert MARKED.tokens(encoding.input_ids) == ["[CLS]", "a", "[E1]", "[SEP]", "[/E1]", "[SEP]"]


def test_the_longest_one_is_taken(tmp_path):
    tokens = [*TOKENS, "<a", "<ab", "<ab>"]
    tokenizer = Tokenizer(Vocabulary(tokens), added_tokens=("<a", "<ab", "<ab>"))
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("<ab", "a<abb<ab><a", "<<a>b"):
        assert tokenizer.encode(text).input_ids.tolist() == theirs(text)["input_ids"]


def test_the_name_of_the_list_is_what_all_versions_read(tmp_path):
    """transformers 4 fails at a list under the name of transformers 5."""
    MARKED.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["additional_special_tokens"] == list(ADDED)
    assert "extra_special_tokens" not in config


def test_an_id_behind_a_gap_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": len(TOKENS) + 5}))
    with pytest.raises(ModelError, match=rf"the added token '\[E1\]' has the id {len(TOKENS) + 5}"):
        Tokenizer.load(tmp_path)
