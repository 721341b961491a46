"""Measure the TensorFlow checkpoint format, read and written without TensorFlow.

The model is BERT-Base for pre-training with random weights. The rows compare the checksums with zlib's
CRC-32 of the same bytes, and writing and reading the checkpoint with bertie's model directory
(safetensors, without checksums).
"""

import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

from bertie.model.config import BertConfig
from bertie.model.formats import tensorflow, weights
from bertie.model.formats.crc32c import masked_crc32c
from bertie.model.formats.directory import ModelMetadata
from bertie.model.heads import PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from measure import Row, compare, take_turns


def random_model(config: BertConfig) -> PreTrainingModel:
    with torch.device("meta"):
        model = PreTrainingModel(config)
    model.to_empty(device="cpu")
    for weight in model.parameters():
        torch.nn.init.uniform_(weight)
    return model


def rows(rounds: int) -> Iterator[Row]:
    """Compare writing, reading and checksums."""
    model = random_model(BertConfig())
    metadata = ModelMetadata(BertConfig(), model.architecture, (), Tokenizer(Vocabulary(SPECIAL_TOKENS)))
    with tempfile.TemporaryDirectory() as folder:
        data = b""
        checkpoint, directory = Path(folder, "tensorflow"), Path(folder, "bertie")
        work = {
            "write": (
                lambda: tensorflow.save_model(checkpoint, model, metadata),
                lambda: weights.save_model(directory, model, metadata, ""),
            ),
            "read": (lambda: tensorflow.load_model(checkpoint), lambda: weights.load_model(directory)),
            "checksum": (lambda: masked_crc32c(data), lambda: zlib.crc32(data)),
        }
        for name, (ours, theirs) in work.items():
            if name == "checksum":
                data = (checkpoint / f"{tensorflow.CHECKPOINT_NAME}.data-00000-of-00001").read_bytes()
            seconds = take_turns({"ours": ours, "theirs": theirs}, rounds)
            size = (checkpoint / f"{tensorflow.CHECKPOINT_NAME}.data-00000-of-00001").stat().st_size / 1e9
            yield compare(
                f"tensorflow-{name}",
                "the checksum of a TensorFlow checkpoint"
                if name == "checksum"
                else f"{name} a TensorFlow checkpoint",
                "CRC-32 of zlib" if name == "checksum" else "bertie's model directory",
                "GB/s",
                size,
                seconds["ours"],
                seconds["theirs"],
            )
