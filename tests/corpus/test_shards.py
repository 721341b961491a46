"""Shards are read back as written, and no damaged one reaches a kernel."""

import random
import re
from itertools import compress, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.corpus.google_oracle import Document
from tests.corpus.shards_for_tests import list_documents, make_shard

from bertie.base.errors import DataError
from bertie.corpus import shards as shards_module
from bertie.corpus.shards import (
    check_shard,
    read_shard,
    select_documents,
    write_block_ends,
    write_shard,
)

FIVE = [[[5 + i, 6, 7], [8]] * 20 for i in range(5)]
SENTENCE = st.lists(st.integers(0, 65_535), min_size=1, max_size=4)
DOCUMENTS = st.lists(st.lists(SENTENCE, min_size=1, max_size=4), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(DOCUMENTS, max_size=3), st.sampled_from([65_536, 65_537]))
def test_pieces_are_written_as_one_shard(
    tmp_path: Path, pieces: list[list[Document]], vocabulary_size: int
) -> None:
    write_shard(tmp_path, map(make_shard, pieces), vocabulary_size)
    shard = read_shard(tmp_path, vocabulary_size)
    assert list_documents(shard) == [document for piece in pieces for document in piece]
    assert shard.tokens.dtype == (np.uint16 if vocabulary_size <= 65_536 else np.uint32)


@given(DOCUMENTS, st.data())
def test_select_documents_copies_the_selected_ones(documents: list[Document], data: st.DataObject) -> None:
    if documents:
        first = data.draw(st.integers(0, len(documents) - 1))
        is_selected = data.draw(st.lists(st.booleans(), min_size=1, max_size=len(documents) - first))
        selected = select_documents(make_shard(documents), first, np.array(is_selected))
        assert list_documents(selected) == list(compress(documents[first:], is_selected))


@pytest.mark.parametrize("seed", range(60))
def test_no_damaged_shard_reaches_a_kernel(tmp_path: Path, seed: int) -> None:
    """A shard with a flipped bit or a changed value is refused, or its structure is whole."""
    rng = random.Random(seed)
    write_shard(tmp_path, [make_shard(FIVE)], 90)
    write_block_ends(tmp_path, 90)
    names = ["tokens.bin", "sentence_ends.bin", "document_ends.bin", "block_ends.bin"]
    file = tmp_path / rng.choice(names)
    content = bytearray(file.read_bytes())
    if seed % 3:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    else:
        start = 8 * rng.randrange(len(content) // 8)
        content[start : start + 8] = rng.choice([bytes(8), b"\xff" * 8, bytes(7) + b"\x40"])
    file.write_bytes(content)
    try:
        check_shard(tmp_path, 90)
    except DataError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert re.fullmatch(rf"{re.escape(str(file))}: damaged.*; copy the corpus again.*", message)
        return
    shard = read_shard(tmp_path, 90)
    assert shard.tokens.max() < 90
    nested = (shard.block_ends, shard.document_ends, shard.sentence_ends, shard.tokens)
    for ends, inner in pairwise(nested):
        assert (np.diff(ends, prepend=0) > 0).all()
        assert ends[-1] == len(inner)


def test_ends_are_checked_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "CHECKED_AT_ONCE", 4)
    write_shard(tmp_path, [make_shard(FIVE)], 90)
    ends = np.fromfile(tmp_path / "sentence_ends.bin", "<i8")
    ends[4] = ends[3]
    ends.tofile(tmp_path / "sentence_ends.bin")
    with pytest.raises(DataError, match="its ends do not increase"):
        check_shard(tmp_path, 90)
