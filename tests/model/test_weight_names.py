"""The table of names is a bijection, for every head."""

from typing import get_args

import pytest
import torch
import transformers
from tests.parity.transformers_peer import SHAPE

from bertie.model.config import BertConfig
from bertie.model.heads import EncoderModel, Model
from bertie.model.weight_names import NAMES, their_names

CONFIG = BertConfig(**SHAPE)


@pytest.mark.parametrize("kind", get_args(Model | EncoderModel), ids=lambda kind: kind.architecture)
def test_every_weight_of_theirs_is_one_of_ours(kind):
    labels = {"num_labels": 3} if "Classification" in kind.architecture else {}
    with torch.device("meta"):
        ours = kind(CONFIG, **labels)
        theirs = getattr(transformers, kind.architecture)(transformers.BertConfig(**SHAPE, **labels))
    prefix = "bert." if kind is EncoderModel else ""
    # The tied decoder is not a weight of its own.
    expected = {prefix + name: weight.shape for name, weight in theirs.named_parameters()}
    found = {}
    for name, weight in ours.state_dict().items():
        for their_name, part in zip(their_names(name), weight.chunk(len(their_names(name))), strict=True):
            assert their_name not in found
            found[their_name] = part.shape
    assert found == expected


def test_no_two_of_ours_have_a_name_of_theirs_in_common():
    theirs = [name for names in NAMES.values() for name in names]
    assert len(theirs) == len(set(theirs))
    assert their_names("bert.layers.11.qkv.weight") == tuple(
        f"bert.encoder.layer.11.attention.self.{part}.weight" for part in ("query", "key", "value")
    )
