"""Time whole pre-training steps against `transformers`' BertForPreTraining.

    python benchmarks/training.py [--fused] [--bfloat16] [tiny|mini|mini-512|base ...]

Both train with AdamW on the same real examples (Wikipedia, the original uncased vocabulary) with
the paper's dropout, in one run, alternating. The time of a step includes making its batch from the
examples: bertie goes from the stream's cursor to a packed batch, `transformers` pads to the longest
sequence. The table has the medians over the steps, in tokens per second.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch
from transformers import BertConfig as TransformersConfig
from transformers import BertForPreTraining
from transformers.utils import logging

from bertie.base.settings import read_toml
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.preparation import prepare
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.shards import Corpus
from bertie.model.config import BertConfig
from bertie.model.heads import PreTrainingModel
from bertie.model.objectives import IGNORE_INDEX
from bertie.recipes import FOLDER
from bertie.text.tokenizer import Tokenizer
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from bertie.training.pretraining_setup import pack_examples

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
SIZES = {  # recipe, batch size, sequence length, measured steps
    "tiny": ("tiny", 32, 128, 15),
    "mini": ("mini", 32, 128, 9),
    "mini-512": ("mini", 8, 512, 9),
    "base": ("base", 8, 128, 5),
}
WARMUP_STEPS = 2  # not measured: they fill caches and start threads


def padded_inputs(examples: Examples) -> dict[str, torch.Tensor]:
    """Return examples in the layout of `transformers`, padded to the longest sequence."""
    lengths = np.diff(examples.bounds)
    mask = np.arange(lengths.max()) < lengths[:, None]  # (N, S)
    labels = np.full(examples.bounds[-1], IGNORE_INDEX)
    labels[examples.masked_positions] = examples.masked_labels
    inputs = {
        "attention_mask": mask.astype(np.int64),
        "next_sentence_label": examples.next_sentence_labels,
    }
    for name, values, padding in (
        ("input_ids", examples.input_ids, 0),
        ("token_type_ids", examples.token_type_ids, 0),
        ("labels", labels, IGNORE_INDEX),
    ):
        inputs[name] = np.full(mask.shape, padding, np.int64)
        inputs[name][mask] = values
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


def compare(size: str, corpus: Corpus, fused: bool, bfloat16: bool) -> None:
    """Time one size and print its row of the table."""
    recipe, batch_size, length, steps = SIZES[size]
    config = BertConfig(**read_toml(FOLDER / f"{recipe}.toml")["model"])
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    stream = ExampleStream(corpus.train, ExampleSettings(max_seq_length=length), tokenizer.vocabulary, seed=0)
    torch.manual_seed(0)
    model = PreTrainingModel(config).train()
    optimizer = build_optimizer(model, OptimizerSettings())
    reference = BertForPreTraining(TransformersConfig(**config.model_dump())).train()
    reference_optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-4, weight_decay=0.01, fused=fused)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=bfloat16)

    def bertie_step() -> int:
        (batch,) = pack_examples(stream.next(batch_size), micro_batch_tokens=10**9)
        with autocast:
            losses = model.compute_losses(batch).values()
        sum(loss.loss_sum / loss.num_targets for loss in losses).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return batch.num_tokens

    def transformers_step() -> int:
        examples = stream.next(batch_size)
        with autocast:
            loss = reference(**padded_inputs(examples)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        reference_optimizer.step()
        reference_optimizer.zero_grad()
        return int(examples.bounds[-1])

    rates: dict[str, list[float]] = {"bertie": [], "transformers": []}
    for number in range(WARMUP_STEPS + steps):
        for name, step in (("bertie", bertie_step), ("transformers", transformers_step)):
            started = time.perf_counter()
            tokens = step()
            if number >= WARMUP_STEPS:
                rates[name].append(tokens / (time.perf_counter() - started))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = statistics.median(a / b for a, b in zip(rates["bertie"], rates["transformers"], strict=True))
    batch = f"{batch_size} x {length}"
    print(
        f"{size:<9} {batch:<10} {medians['bertie']:>9,.0f} {medians['transformers']:>12,.0f}  {ratio:>5.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=f"{', '.join(SIZES)}; default: all")
    parser.add_argument("--fused", action="store_true", help="fused AdamW for transformers too")
    parser.add_argument("--bfloat16", action="store_true", help="run both forward passes under autocast")
    options = parser.parse_args()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        inputs = [DATA / "text" / "wikipedia-small" / "wiki_00"]
        prepare(inputs, DATA / "vocab" / "uncased_en", Path(folder) / "corpus", workers=1)
        corpus = Corpus.open(Path(folder) / "corpus")
        print(f"{'size':<9} {'batch':<10} {'bertie':>9} {'transformers':>12}  ratio   (tokens/s)")
        for size in options.sizes or SIZES:
            compare(size, corpus, options.fused, options.bfloat16)


if __name__ == "__main__":
    main()
