"""Compare bertie's inference on a CPU with every other way to run an encoder of BERT-Base's size (12 × 768).

The sides are the same as in `inference.py`. The weights are random, so the cosines say nothing about the
int8 of trained models. There is no row for paragraphs, since a round of all engines would take more than a
minute.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoTokenizer, BertConfig, BertModel

from inference import compare_model
from measure import Row, checkpoint

AMOUNTS = {"sentences": 64, "single": 8}  # texts in a round


def write_model(folder: Path) -> Path:
    """Write a sentence-transformers model with random weights and the tokenizer of the 6 × 384 one."""
    torch.manual_seed(0)
    # CTranslate2's converter reads `position_embedding_type`.
    config = BertConfig(position_embedding_type="absolute")  # type: ignore[call-arg]
    BertModel(config).save_pretrained(folder / "encoder")
    AutoTokenizer.from_pretrained(checkpoint()).save_pretrained(folder / "encoder")
    encoder = Transformer(str(folder / "encoder"), max_seq_length=256)
    modules = [encoder, Pooling(encoder.get_embedding_dimension()), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


def rows(rounds: int) -> Iterator[Row]:
    """Compare sentences and single sentences in all precisions."""
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder))
        yield from compare_model(source, "inference-base", "12 × 768", AMOUNTS, {}, rounds)
