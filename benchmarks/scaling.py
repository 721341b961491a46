"""Measure what grows with a corpus, a model and the number of ranks, and extrapolate it.

    python benchmarks/scaling.py corpus | assembly | ranks | checkpoint | network [--folder DIR]

corpus      opens corpora of 5 · 10^8 to 10^11 tokens and draws examples from them, each in a new process
assembly    finds the duplicates among the documents of 64 to 4,096 parts of a corpus in preparation
ranks       draws the share of one of 1 to 1,024 processes; all shares make up an epoch
checkpoint  writes and reads the checkpoints of models from 2 × 128 to 12 × 768
network     computes the bytes that a rank sends in a step; nothing is measured

The shards of a corpus are hard links to one shard of real size (2^25 tokens), so that 10^11 tokens
need 100 MB of disk. What a process computes, maps and allocates is as in a corpus of that size; only
the reading from the disk is not, because the shard stays in the page cache. The last line of each
table has the exponent of the growth: 1 is linear, 0 is constant.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bertie.corpus.assembly import SHARD_TOKENS, Parts, assign_documents, part_directory, write_hashes
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.sampling import BlockSlice, ExampleStream
from bertie.corpus.shards import (
    Corpus,
    FileRecord,
    Manifest,
    Shard,
    SplitCounts,
    shard_name,
    write_block_ends,
    write_manifest,
    write_shard,
)
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

VOCABULARY_SIZE = 30_522
SENTENCE_TOKENS, DOCUMENT_SENTENCES = 25, 20  # averages, about those of Wikipedia
SHARD_COUNTS = (15, 60, 240, 960, 2981)
PART_COUNTS = (64, 256, 1024, 4096)
PART_DOCUMENTS = 500
CONFIGS = {"2 × 128": (2, 128), "4 × 256": (4, 256), "6 × 384": (6, 384), "12 × 768": (12, 768)}
RANK_COUNTS, EXAMPLES_OF_RANK, RANK_SHARDS = (1, 4, 16, 64, 256, 1024), 32, 4
MOST_LINKS = 60_000  # of a file on ext4


@contextmanager
def stopwatch(row: dict[str, float], name: str) -> Iterator[None]:
    """Add the processor time of the block to `row`; other programs may run on the same cores."""
    begin = time.process_time()
    yield
    row[name] = time.process_time() - begin


def print_table(size_name: str, rows: dict[float, dict[str, float]]) -> None:
    """Print a row for each size, and the slopes of the logarithms in the last line."""
    columns = list(next(iter(rows.values())))
    print(f"| {size_name} | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for size, row in rows.items():
        print(f"| {size:,.0f} | " + " | ".join(f"{row[column]:,.3g}" for column in columns) + " |")
    sizes = np.log(list(rows))
    slopes = [
        np.polyfit(sizes, np.log([max(row[column], 1e-9) for row in rows.values()]), 1)[0]
        for column in columns
    ]
    print("| exponent | " + " | ".join(f"{slope:.2f}" for slope in slopes) + " |", flush=True)


def write_real_shard(directory: Path) -> None:
    random = np.random.default_rng(0)
    lengths = random.geometric(1 / SENTENCE_TOKENS, SHARD_TOKENS // SENTENCE_TOKENS)
    sentence_ends = np.cumsum(lengths)
    document_lengths = random.geometric(1 / DOCUMENT_SENTENCES, len(lengths) // DOCUMENT_SENTENCES)
    document_ends = np.cumsum(document_lengths)
    document_ends = np.append(document_ends[document_ends < len(lengths)], len(lengths))
    tokens = random.integers(len(SPECIAL_TOKENS), VOCABULARY_SIZE, sentence_ends[-1]).astype(np.uint16)
    directory.mkdir()
    write_shard(directory, [Shard(tokens, sentence_ends, document_ends)], VOCABULARY_SIZE)
    write_block_ends(directory, VOCABULARY_SIZE)


def link_corpus(output: Path, shard: Path, tokenizer: Tokenizer, count: int) -> None:
    """Write a corpus whose `count` shards are all hard links to one."""
    assert count < MOST_LINKS
    (output / "tokenizer").mkdir(parents=True)
    tokenizer.save(output / "tokenizer")
    sizes = {file.name: file.stat().st_size for file in shard.iterdir()}
    files = {}
    for index in range(count):
        name = shard_name("train", index)
        (output / name).mkdir()
        for file, size in sizes.items():
            os.link(shard / file, output / name / file)
            files[f"{name}/{file}"] = FileRecord(size=size, sha256="0" * 64)
    per_shard = SplitCounts(
        documents=sizes["document_ends.bin"] // 8,
        sentences=sizes["sentence_ends.bin"] // 8,
        tokens=sizes["tokens.bin"] // 2,
    )
    manifest = Manifest(
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocabulary_size=VOCABULARY_SIZE,
        settings={},
        train=SplitCounts(**{name: value * count for name, value in per_shard.model_dump().items()}),
        held_out=SplitCounts(),
        duplicates_dropped=0,
        empty_documents_dropped=0,
        empty_sentences_dropped=0,
        files=files,
    )
    write_manifest(output, manifest)


def anonymous_mebibytes() -> float:
    """Return the resident memory of this process that is not a file's."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def open_and_draw(path: Path) -> dict[str, float]:
    """Open a corpus and draw examples; the kernels were compiled by an earlier process."""
    row: dict[str, float] = {"manifest, MB": (path / "manifest.json").stat().st_size / 1e6}
    before = anonymous_mebibytes()
    with stopwatch(row, "open, s"):
        corpus = Corpus.open(path)
    vocabulary = Tokenizer.load(path / "tokenizer").vocabulary
    with stopwatch(row, "plan an epoch, s"):
        stream = ExampleStream(corpus.train, ExampleSettings(max_seq_length=128), vocabulary, seed=1)
    with stopwatch(row, "100 batches of 256, s"):
        for _ in range(100):
            stream.next(256)
    state = json.loads(json.dumps(stream.state()))
    with stopwatch(row, "restore, s"):
        stream.restore(state)
    row["memory, MiB"] = anonymous_mebibytes() - before
    row["mapped files"] = sum(".bin" in line for line in Path("/proc/self/maps").read_text().splitlines())
    row["cursor, bytes"] = len(json.dumps(state))
    return row


def measure_corpus(folder: Path) -> None:
    tokens = [*SPECIAL_TOKENS, *(f"w{index}" for index in range(VOCABULARY_SIZE - len(SPECIAL_TOKENS)))]
    tokenizer = Tokenizer(Vocabulary(tokens))
    write_real_shard(folder / "shard")
    rows = {}
    for count in SHARD_COUNTS:
        link_corpus(folder / "corpus", folder / "shard", tokenizer, count)
        command = [sys.executable, __file__, "open", "--folder", str(folder / "corpus")]
        for _ in range(2):  # the first one compiles kernels
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows[count * SHARD_TOKENS] = json.loads(output)
        shutil.rmtree(folder / "corpus")
    print_table("tokens", rows)


def measure_assembly(folder: Path) -> None:
    random = np.random.default_rng(0)
    rows = {}
    for count in PART_COUNTS:
        row: dict[str, float] = {}
        for index in range(count):
            part = part_directory(folder / "parts", index)
            part.mkdir(parents=True)
            write_hashes(part, random.integers(1 << 64, size=(PART_DOCUMENTS, 2), dtype=np.uint64))
        offsets = np.arange(count + 1, dtype=np.int64) * PART_DOCUMENTS
        with stopwatch(row, "find duplicates, s"):
            assign_documents(Parts(folder / "parts", offsets, VOCABULARY_SIZE), held_out=0.01)
        row["documents"] = count * PART_DOCUMENTS
        rows[count] = row
        shutil.rmtree(folder / "parts")
    print_table("parts", rows)


def measure_ranks(folder: Path) -> None:
    """Measure what one of many ranks pays for its share of a batch, and check that they share an epoch."""
    write_real_shard(folder / "shard")
    tokens = [*SPECIAL_TOKENS, *(f"w{index}" for index in range(VOCABULARY_SIZE - len(SPECIAL_TOKENS)))]
    tokenizer = Tokenizer(Vocabulary(tokens))
    link_corpus(folder / "corpus", folder / "shard", tokenizer, RANK_SHARDS)
    corpus = Corpus.open(folder / "corpus")
    settings, vocabulary = ExampleSettings(max_seq_length=128), tokenizer.vocabulary

    def open_stream(world_size: int) -> RecordingStream:
        batch_size = world_size * EXAMPLES_OF_RANK
        return RecordingStream(corpus.train, settings, vocabulary, seed=1, batch_size=batch_size)

    rows = {}
    for world_size in RANK_COUNTS:
        stream, row = open_stream(world_size), dict[str, float]()
        batch_size = world_size * EXAMPLES_OF_RANK
        stream.next(batch_size, 0, world_size)  # makes the first blocks, and compiles
        with stopwatch(row, "20 batches, s"):
            for _ in range(20):
                stream.next(batch_size, 0, world_size)
        row["lanes"] = len(stream.cursors)
        rows[world_size] = row
    print_table("processes", rows)
    streams = [open_stream(RANK_COUNTS[-1]) for _ in range(RANK_COUNTS[-1])]
    blocks = map(streams[0].block, range(streams[0].block_count))
    epoch = {(int(block.masking_key), n) for block in blocks for n in range(len(block.pairs))}
    drawn: list[tuple[int, int]] = []
    while not epoch <= set(drawn):
        for rank, stream in enumerate(streams):
            stream.is_recording = True
            stream.next(len(streams) * EXAMPLES_OF_RANK, rank, len(streams))
            drawn += stream.drawn
    repeated = len(drawn) - len(set(drawn))
    print(f"{len(streams):,} processes drew all {len(epoch):,} examples of an epoch; {repeated} twice")


class RecordingStream(ExampleStream):
    """Can record which examples it draws instead of writing them: the keys of blocks, and positions."""

    is_recording = False

    def assemble(self, slices: Sequence[BlockSlice], count: int) -> Examples:
        if not self.is_recording:
            return super().assemble(slices, count)
        self.drawn = [
            (int(part.block.masking_key), position)
            for part in slices
            for position in range(part.start, part.stop)
        ]
        return super().assemble([], 0)


def measure_checkpoints(folder: Path) -> None:
    import torch

    from bertie.model.config import BertConfig
    from bertie.model.heads import PreTrainingModel
    from bertie.training.checkpoints import RunDirectory, TrainState
    from bertie.training.optimizers import build_optimizer
    from bertie.training.pretraining_settings import OptimizerSettings

    rows = {}
    for layers, width in CONFIGS.values():
        config = BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )
        model = PreTrainingModel(config)
        optimizer = build_optimizer(model, OptimizerSettings())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        row: dict[str, float] = {}
        shutil.rmtree(folder / "run", ignore_errors=True)
        with RunDirectory(folder / "run", is_main=True) as run:
            with stopwatch(row, "write, s"):
                run.save(TrainState(), model, optimizer, save_every=1, keep_checkpoints=1)
            newest = run.checkpoints()[-1]
            row["checkpoint, MB"] = sum(file.stat().st_size for file in newest.iterdir()) / 1e6
            with stopwatch(row, "read, s"):
                run.restore(model)
                run.restore_moments(model, optimizer)
        rows[sum(parameter.numel() for parameter in model.parameters())] = row
    print_table("parameters", rows)


def compute_network() -> None:
    """Print the bytes that a rank sends in a step.

    A ring all-reduce sends 2 (n - 1) / n of the gradients (Patarasuk and Yuan, 2009); sharded
    parameters are gathered for the forward pass and again for the backward pass, and gradients are
    scattered, 3 (n - 1) / n in all (Rajbhandari et al., 2020, Section 7).
    """
    print("| parameters | ranks | all-reduce, MB | sharded, MB | seconds at 10 Gbit/s | at 400 Gbit/s |")
    print("|---|---|---|---|---|---|")
    for name, parameters in {"BERT-Base": 110e6, "BERT-Large": 340e6}.items():
        for ranks in (2, 8, 64, 1000):
            reduced, sharded = (factor * (ranks - 1) / ranks * 4 * parameters for factor in (2, 3))
            seconds = [reduced * 8 / speed for speed in (10e9, 400e9)]
            print(
                f"| {name} | {ranks:,} | {reduced / 1e6:,.0f} | {sharded / 1e6:,.0f} | "
                f"{seconds[0]:.2f} | {seconds[1]:.3f} |"
            )


MEASUREMENTS: dict[str, Callable[[Path], None]] = {
    "corpus": measure_corpus,
    "assembly": measure_assembly,
    "ranks": measure_ranks,
    "checkpoint": measure_checkpoints,
    "network": lambda folder: compute_network(),
    "open": lambda folder: print(json.dumps(open_and_draw(folder))),  # what `corpus` runs
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how bertie scales.")
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--folder", type=Path, help="where to write; by default a temporary folder")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        MEASUREMENTS[arguments.what](arguments.folder)
    else:
        with tempfile.TemporaryDirectory() as folder:
            MEASUREMENTS[arguments.what](Path(folder))


if __name__ == "__main__":
    main()
