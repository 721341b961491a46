"""A whole training step against `transformers`' BertForPreTraining with AdamW, in one run, alternating.

    python benchmarks/training.py [--fused] [--bfloat16] [SIZE ...]     tiny, mini, mini-512, base; or all

`transformers` has torch's AdamW as it comes, or with --fused the fused one, as bertie has. With --bfloat16
the forward passes of both run under autocast, otherwise in float32.

Both sides learn from the same real examples (Wikipedia, the original uncased vocabulary) with the paper's
dropout, and both make their batch from those examples within the measured time: bertie from the cursor to a
packed batch, transformers by padding to the longest. The median of the steps counts.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch
from transformers import BertConfig as TheirConfig
from transformers import BertForPreTraining
from transformers.utils import logging

from bertie.base.settings import read_toml
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.preparation import prepare
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.shards import Corpus
from bertie.model.config import BertConfig
from bertie.model.heads import PreTrainingModel
from bertie.recipes import FOLDER
from bertie.text.tokenizer import Tokenizer
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from bertie.training.pretraining import pack_examples

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
SIZES = {  # recipe, batch size, sequence length, measured steps
    "tiny": ("tiny", 32, 128, 15),
    "mini": ("mini", 32, 128, 9),
    "mini-512": ("mini", 8, 512, 9),
    "base": ("base", 8, 128, 5),
}


def padded(examples: Examples) -> dict[str, torch.Tensor]:
    """The layout of `transformers`: a row a sequence, labels -100 where nothing is predicted."""
    lengths = np.diff(examples.bounds)
    mask = np.arange(lengths.max()) < lengths[:, None]
    inputs = {"attention_mask": torch.from_numpy(mask.astype(np.int64))}
    for name in ("input_ids", "token_type_ids"):
        rows = np.zeros(mask.shape, np.int64)
        rows[mask] = getattr(examples, name)
        inputs[name] = torch.from_numpy(rows)
    labels = np.full(examples.bounds[-1], -100)
    labels[examples.masked_positions] = examples.masked_labels
    rows = np.full(mask.shape, -100)
    rows[mask] = labels
    inputs["labels"] = torch.from_numpy(rows)
    inputs["next_sentence_label"] = torch.from_numpy(examples.next_sentence_labels)
    return inputs


def compare(size: str, corpus: Corpus, fused: bool, bfloat16: bool) -> None:
    """Print one row."""
    recipe, batch_size, length, steps = SIZES[size]
    config = BertConfig(**read_toml(FOLDER / f"{recipe}.toml")["model"])
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    stream = ExampleStream(corpus.train, ExampleSettings(max_seq_length=length), tokenizer.vocabulary, seed=0)
    torch.manual_seed(0)
    ours = PreTrainingModel(config).train()
    our_optimizer = build_optimizer(ours, OptimizerSettings())
    theirs = BertForPreTraining(TheirConfig(**config.model_dump())).train()
    their_optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4, weight_decay=0.01, fused=fused)

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=bfloat16)

    def our_step() -> int:
        (batch,) = pack_examples(stream.next(batch_size), micro_batch_tokens=10**9)
        with autocast:
            losses = ours.losses(batch)
        sum(objective.loss_sum / objective.targets for objective in losses.values()).backward()
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        our_optimizer.step()
        our_optimizer.zero_grad()
        return batch.num_tokens

    def their_step() -> int:
        examples = stream.next(batch_size)
        with autocast:
            loss = theirs(**padded(examples)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        their_optimizer.step()
        their_optimizer.zero_grad()
        return int(examples.bounds[-1])

    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(steps + 2):
        for name, step in (("ours", our_step), ("theirs", their_step)):
            started = time.perf_counter()
            tokens = step()
            if number >= 2:  # the first ones warm caches and threads
                rates[name].append(tokens / (time.perf_counter() - started))
    our_rate, their_rate = (statistics.median(rates[name]) for name in ("ours", "theirs"))
    ratio = statistics.median(a / b for a, b in zip(rates["ours"], rates["theirs"], strict=True))
    batch = f"{batch_size} x {length}"
    print(f"{size:<9} {batch:<10} {our_rate:>9,.0f} {their_rate:>12,.0f}  {ratio:>5.2f}", flush=True)


def main() -> None:
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        inputs = [DATA / "text" / "wikipedia-small" / "wiki_00"]
        prepare(inputs, DATA / "vocab" / "uncased_en", Path(folder) / "corpus", workers=1)
        corpus = Corpus.open(Path(folder) / "corpus")
        print(f"{'size':<9} {'batch':<10} {'bertie':>9} {'transformers':>12}  ratio   (tokens/s)")
        options = {"--fused", "--bfloat16"}
        for size in [argument for argument in sys.argv[1:] if argument not in options] or SIZES:
            compare(size, corpus, *(option in sys.argv for option in ("--fused", "--bfloat16")))


if __name__ == "__main__":
    main()
