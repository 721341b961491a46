"""`transformers` loads the directory of an extended tokenizer, and gives the same ids."""

from itertools import pairwise
from pathlib import Path

import pytest
import transformers

import bertie


@pytest.mark.parametrize(("name", "fill_unused"), [("uncased_en", False), ("cased_en", True)])
def test_extended_tokenizer_gives_the_ids_of_transformers(
    shared_data: Path, tmp_path: Path, name: str, fill_unused: bool
) -> None:
    rows = (shared_data / "ner" / "bc5cdr" / "train.tsv").read_text(encoding="utf-8").split("\n\n")[:500]
    sentences = [" ".join(row.split("\t")[0] for row in block.split("\n")) for block in rows]
    (tmp_path / "text.txt").write_text("\n".join(sentences), encoding="utf-8")
    lowercase = name == "uncased_en"
    vocabulary = str(shared_data / "vocab" / name / "vocab.txt")
    peer = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=lowercase, model_max_length=256)
    peer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    peer.save_pretrained(tmp_path / "old")
    old = bertie.Tokenizer.load(tmp_path / "old")
    new = bertie.extend_tokenizer(
        tmp_path / "old", tmp_path / "text.txt", tmp_path / "new", add=90, fill_unused=fill_unused, workers=1
    )
    extended = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert (extended.model_max_length, len(extended)) == (256, len(new.vocabulary))
    assert len(new.vocabulary) - len(old.vocabulary) == (0 if fill_unused else 90)
    texts = [*sentences, "[E1] naloxone", "Naloxone reversed the antihypertensive effect, ÉTUDE — ελλάδα"]
    encoding = new.encode_batch(texts)
    expected = extended(texts)["input_ids"]
    assert [encoding.input_ids[a:b].tolist() for a, b in pairwise(encoding.bounds)] == expected
    assert len(encoding.input_ids) < 0.94 * len(old.encode_batch(texts).input_ids)
    used = {*encoding.input_ids.tolist()}
    changed = [
        i for i, token in enumerate(new.vocabulary.tokens) if old.vocabulary.tokens[i : i + 1] != (token,)
    ]
    assert len(changed) == 90
    assert used.issuperset(changed)
    kept = {i for i in range(len(old.vocabulary)) if i not in changed}
    assert all(new.vocabulary.tokens[i] == old.vocabulary.tokens[i] for i in kept)
