"""Measure how costs grow with the work: text, vocabulary, lengths, models, corpora, processes and clients.

    python benchmarks/scaling.py network             # the bytes that a rank sends in a step, computed
    python benchmarks/scaling.py processes CORPUS    # two processes of `bertie pretrain` against one

The rows of `make bench` are processor time and memory for amounts of work that grow by factors of 4.

The shards of the large corpora are hard links to one shard of real size (2^25 tokens), so that 10^11
tokens need 100 MB of disk. What a process computes, maps and allocates is as in a corpus of that size;
only the reading from the disk is not, because the shard stays in the page cache.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from bertie.corpus.assembly import SHARD_TOKENS, Parts, assign_documents, part_directory
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.manifest import FileRecord, Manifest, SplitCounts, shard_name, write_manifest
from bertie.corpus.part_writer import write_hashes
from bertie.corpus.preparation import prepare
from bertie.corpus.prepared import Corpus
from bertie.corpus.readers import list_inputs, read_documents
from bertie.corpus.sampling import BlockSlice, ExampleStream
from bertie.corpus.shards import Shard, write_block_ends, write_shard
from bertie.corpus.word_counts import count_words
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece_trainer import learn_vocabulary
from measure import (
    DATA,
    UNCASED,
    WIKIPEDIA,
    Growth,
    Seconds,
    checkpoint,
    grow,
    paragraphs,
    run,
    run_function,
    timed,
)

FACTORS = (1, 4, 16, 64)
VOCABULARY_SIZE = 30_522
SENTENCE_TOKENS, DOCUMENT_SENTENCES = 25, 20  # averages, about as in Wikipedia
SHARD_COUNTS = (15, 60, 240, 960)
PART_COUNTS = (64, 256, 1024, 4096)
PART_DOCUMENTS = 500
CHECKPOINTS_IN_A_ROW = 3
CONFIGS = ((2, 128), (4, 256), (6, 384), (12, 768))  # layers, width
RANK_COUNTS, EXAMPLES_OF_RANK, RANK_SHARDS = (1, 4, 16, 64, 256, 1024), 32, 4
CLIENT_COUNTS, TURN_SECONDS = (1, 4, 16, 64), 3.0
MOST_LINKS = 60_000  # of a file on ext4
# Two processes against one: processes, and sequences in a step. The first two compute the same steps, strong
# scaling; in the last two each process has as many sequences, weak scaling.
RUNS = ((1, 64), (2, 64), (1, 32))
RUN_STEPS, WARM_STEPS = 24, 8


@contextmanager
def stopwatch(row: dict[str, float], name: str) -> Iterator[None]:
    """Add the processor time of the block to `row`; other programs may run on the same cores."""
    begin = time.process_time()
    yield
    row[name] = time.process_time() - begin


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


def open_and_draw(corpus: str) -> None:
    """Open a corpus and draw examples in this process; print the costs as JSON."""
    path = Path(corpus)
    row: dict[str, float] = {}
    before = anonymous_mebibytes()
    with stopwatch(row, "open"):
        opened = Corpus.open(path)
    vocabulary = Tokenizer.load(path / "tokenizer").vocabulary
    with stopwatch(row, "plan"):
        stream = ExampleStream(opened.train, ExampleSettings(max_seq_length=128), vocabulary, seed=1)
    stream.next(256)  # loads compiled kernels
    with stopwatch(row, "draw"):
        for _ in range(100):
            stream.next(256)
    row["memory"] = anonymous_mebibytes() - before
    print(json.dumps(row))


def as_growths(
    claims: dict[str, tuple[str, str]], sizes: Sequence[float], measured: Sequence[dict[str, float]]
) -> Iterator[Growth]:
    """Yield a growth for each cost: `claims` has its name, claim and unit."""
    for cost, (claim, unit) in claims.items():
        costs = tuple(row[cost] for row in measured)
        yield Growth(f"growth-{cost}", claim, unit, tuple(sizes), costs)


def measure_corpus(folder: Path) -> Iterator[Growth]:
    """Open corpora of 5 · 10^8 to 3 · 10^10 tokens and draw examples, each in a new process."""
    tokens = [*SPECIAL_TOKENS, *(f"w{index}" for index in range(VOCABULARY_SIZE - len(SPECIAL_TOKENS)))]
    tokenizer = Tokenizer(Vocabulary(tokens))
    write_real_shard(folder / "shard")
    measured = []
    for count in SHARD_COUNTS:
        link_corpus(folder / "large", folder / "shard", tokenizer, count)
        measured.append(json.loads(run_function("scaling", "open_and_draw", folder / "large").output))
        shutil.rmtree(folder / "large")
    claims = {
        "open": ("open a corpus, by its tokens", "s"),
        "plan": ("plan an epoch, by the tokens of the corpus", "s"),
        "draw": ("draw 100 batches of 256 examples, by the tokens of the corpus", "s"),
        "memory": ("memory of a process that trains on a corpus, by its tokens", "MiB"),
    }
    yield from as_growths(claims, [count * SHARD_TOKENS for count in SHARD_COUNTS], measured)


def measure_assembly(folder: Path) -> Iterator[Growth]:
    """Find the duplicates among the documents of a corpus in preparation."""
    random = np.random.default_rng(0)
    costs = []
    for count in PART_COUNTS:
        for index in range(count):
            part = part_directory(folder / "parts", index)
            part.mkdir(parents=True)
            write_hashes(part, random.integers(1 << 64, size=(PART_DOCUMENTS, 2), dtype=np.uint64))
        offsets = np.arange(count + 1, dtype=np.int64) * PART_DOCUMENTS
        parts = Parts(folder / "parts", offsets, VOCABULARY_SIZE)
        costs.append(timed(lambda: assign_documents(parts, held_out=0.01)).processor)  # noqa: B023
        shutil.rmtree(folder / "parts")
    sizes = tuple(count * PART_DOCUMENTS for count in PART_COUNTS)
    yield Growth("growth-duplicates", "find duplicates among documents", "s", sizes, tuple(costs))


def measure_ranks(folder: Path) -> Iterator[Growth]:
    """Measure what one of many ranks pays for its part of a batch, and check that they share an epoch."""
    tokens = [*SPECIAL_TOKENS, *(f"w{index}" for index in range(VOCABULARY_SIZE - len(SPECIAL_TOKENS)))]
    tokenizer = Tokenizer(Vocabulary(tokens))
    link_corpus(folder / "ranks", folder / "shard", tokenizer, RANK_SHARDS)
    corpus = Corpus.open(folder / "ranks")
    settings, vocabulary = ExampleSettings(max_seq_length=128), tokenizer.vocabulary

    def open_stream(world_size: int) -> RecordingStream:
        batch_size = world_size * EXAMPLES_OF_RANK
        return RecordingStream(corpus.train, settings, vocabulary, seed=1, batch_size=batch_size)

    def make_work(world_size: float) -> Callable[[], object]:
        stream, size = open_stream(int(world_size)), int(world_size)
        return lambda: [stream.next(size * EXAMPLES_OF_RANK, 0, size) for _ in range(20)]

    growth = grow("growth-ranks", "20 batches in one of so many processes", RANK_COUNTS, make_work)
    streams = [open_stream(RANK_COUNTS[-1]) for _ in range(RANK_COUNTS[-1])]
    blocks = map(streams[0].block, range(streams[0].block_count))
    epoch = {(int(block.masking_key), n) for block in blocks for n in range(len(block.pairs))}
    drawn: list[tuple[int, int]] = []
    while not epoch <= set(drawn):
        for rank, stream in enumerate(streams):
            stream.is_recording = True
            stream.next(len(streams) * EXAMPLES_OF_RANK, rank, len(streams))
            drawn += stream.drawn
    twice = len(drawn) - len(set(drawn))
    note = f"{len(streams):,} processes drew all {len(epoch):,} examples of an epoch, {twice} of them twice."
    yield Growth(growth.name, growth.claim, growth.unit, growth.sizes, growth.costs, note=note)


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


def measure_models(folder: Path) -> Iterator[Growth]:
    """Write and read checkpoints of models of several sizes.

    A virtual machine may return memory to its host as soon as it is free for two seconds, and the next
    program that needs it waits until the host gives it back. Therefore the last of several checkpoints
    in a row is measured: its files take the memory that the checkpoint deleted just before it has left.
    """
    import torch

    from bertie.model.config import BertConfig
    from bertie.model.heads import PreTrainingModel
    from bertie.training.checkpoints import RunDirectory, TrainState
    from bertie.training.optimizers import OptimizerSettings, build_optimizer

    sizes, measured = [], []
    for layers, width in CONFIGS:
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
        with RunDirectory(folder / "run", is_main=True) as training_run:
            for step in range(CHECKPOINTS_IN_A_ROW):
                with stopwatch(row, "checkpoint-write"):
                    training_run.save(TrainState(step), model, optimizer, save_every=1, keep_checkpoints=1)
            with stopwatch(row, "checkpoint-read"):
                training_run.restore(model, CHECKPOINTS_IN_A_ROW)
                training_run.restore_moments(model, optimizer)
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
        measured.append(row)
    claims = {
        "checkpoint-write": ("write a checkpoint, by the parameters of the model", "s"),
        "checkpoint-read": ("read a checkpoint, by the parameters of the model", "s"),
    }
    yield from as_growths(claims, sizes, measured)


def measure_text(folder: Path) -> Iterator[Growth]:
    """Tokenize, prepare and learn vocabularies of more and more text."""
    lines = WIKIPEDIA.read_text(encoding="utf-8").split("\n")
    tokenizer = Tokenizer.load(UNCASED)

    def encode(part: float) -> Callable[[], object]:
        texts = lines[: int(len(lines) * part / FACTORS[-1])]
        return lambda: tokenizer.encode_batch(texts)

    yield grow("growth-tokens", "tokenize lines of Wikipedia, in 64ths of 10 MB", FACTORS, encode)

    text = "".join(line.lower() for line in lines)

    def encode_one(part: float) -> Callable[[], object]:
        one = text[: int(len(text) * part / FACTORS[-1])]
        return lambda: tokenizer.encode_batch([one])

    yield grow("growth-string", "tokenize one string, in 64ths of 10 MB", FACTORS, encode_one)

    documents = [document.text for document in read_documents(list_inputs([WIKIPEDIA])[0])]
    tokenizer.save(folder / "tokenizer")

    def prepare_part(part: float) -> Callable[[], object]:
        path = folder / f"part-{part}.jsonl"
        with path.open("w") as file:
            for copy in range(4):
                for document in documents[: int(len(documents) * part / FACTORS[-1])]:
                    print(json.dumps({"text": f"{document} {copy}"}), file=file)

        def work() -> None:
            prepare([path], folder / "tokenizer", folder / "prepared", workers=1)
            shutil.rmtree(folder / "prepared")

        return work

    yield grow("growth-documents", "prepare documents, in 64ths of 40 MB", FACTORS, prepare_part, rounds=1)

    words, counts = count_words(list_inputs([WIKIPEDIA]), True, 1)
    chosen = np.random.default_rng(0).permutation(len(words))

    def learn(part: float) -> Callable[[], object]:
        indices = chosen[: int(len(words) * part / FACTORS[-1])]
        some = [words[index] for index in indices]
        return lambda: learn_vocabulary(some, counts[indices], 1000 + len(some) // 10, "frequency")

    yield grow(
        "growth-words",
        "learn a vocabulary from distinct words, in 64ths of the words of 10 MB, with an entry for ten words",
        FACTORS,
        learn,
        rounds=1,
    )

    def encode_with(entries: float) -> Callable[[], object]:
        small = Tokenizer(Vocabulary(tokenizer.vocabulary.tokens[: int(entries)]))
        texts = lines[: len(lines) // 8]
        return lambda: small.encode_batch(texts)

    yield grow(
        "growth-vocabulary", "tokenize with more entries in the vocabulary", (2000, 8000, 30_522), encode_with
    )


def measure_steps(folder: Path) -> Iterator[Growth]:
    """Measure pre-training steps of more sequences, longer sequences, more entries and larger models."""
    import torch

    from bertie.model.config import BertConfig
    from bertie.model.engines.hardware import Hardware
    from gpu import make_examples
    from training import bertie_step

    def step(count: float = 8, length: float = 128, entries: float = 8000, layers: int = 4, width: int = 256):  # type: ignore[no-untyped-def]
        config = BertConfig(
            vocab_size=int(entries),
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )
        examples = make_examples(int(count), int(length), int(entries))
        return bertie_step(config, lambda: examples, Hardware(device="cpu", precision="float32"))

    torch.manual_seed(0)
    yield grow("growth-batch", "a step of 4 × 256 at 128, by sequences", (2, 8, 32), lambda n: step(count=n))
    yield grow(
        "growth-length",
        "a step of 4 × 256 with 8 sequences, by their length",
        (32, 128, 512),
        lambda n: step(length=n),
        note="The products of attention, 4·S·H operations a token, are a third of those with the weights, "
        "24·H², at 512 tokens, and its softmax and dropout grow with S² too.",
    )
    yield grow(
        "growth-entries",
        "a step of 4 × 256 with 8 × 128, by entries of the vocabulary",
        (2000, 8000, 32_000),
        lambda n: step(entries=n),
    )
    shapes = {
        12 * layers * width**2: (layers, width) for layers, width in ((2, 128), (4, 192), (4, 384), (8, 512))
    }
    yield grow(
        "growth-parameters",
        "a step of 8 × 128, by parameters of the layers",
        tuple(shapes),
        lambda n: step(layers=shapes[int(n)][0], width=shapes[int(n)][1]),
    )


def measure_inference(folder: Path) -> Iterator[Growth]:
    """Embed more and more texts."""
    import bertie

    model = bertie.load(checkpoint(), "cpu")
    texts = paragraphs(FACTORS[-1] * 8)

    def embed(part: float) -> Callable[[], object]:
        return lambda: model.embed(texts[: int(part) * 8])

    yield grow("growth-texts", "embed paragraphs, 6 × 384, in eights", FACTORS, embed, rounds=1)


# Becomes the parent of all processes that the command leaves, and waits for them: then they are measured too.
ADOPT = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
status = subprocess.run(sys.argv[1:]).returncode
try:
    while True:
        os.wait()
except ChildProcessError:
    sys.exit(status)
"""


def measure_workers(folder: Path) -> Iterator[Growth]:
    """Prepare the same text with more and more processes."""
    inputs = list_inputs([DATA / "text/wikipedia/*.xz"])[:4]

    def work(workers: int) -> float:
        output = folder / f"workers-{workers}"
        options: list[str | Path] = [
            "--tokenizer",
            UNCASED.parent,
            "--out",
            output,
            "--workers",
            str(workers),
            "--force",
        ]
        command = [sys.executable, "-m", "bertie", "prepare", *inputs, *options]
        return run([sys.executable, "-c", ADOPT, *command]).seconds.processor

    counts = (1, 2, 4)
    rounds = [[work(count) for count in counts] for _ in range(3)]
    costs = tuple(map(statistics.median, zip(*rounds, strict=True)))
    claim = "processor time of all processes that prepare 39 MB, by their number"
    note = (
        "Workers are forked from the command's process, after it has loaded the tokenizer and the kernels. A "
        "single worker is that process. The work itself is shared."
    )
    yield Growth("growth-workers", claim, "s", counts, costs, bar=0.1, note=note)


def measure_clients(folder: Path) -> Iterator[Growth]:
    """Ask a server from more and more clients, which are in this process on the same core."""
    from serving import ServerProcess, run_turn

    sentences = re.split(r"(?<=[.!?])\s+", " ".join(paragraphs(500)))
    sentences = [sentence for sentence in sentences if 3 <= len(sentence.split()) <= 60]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bertie", "serve", str(checkpoint()), "--port", str(port)]
    with ExitStack() as stack:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        server = ServerProcess(process, port, "/embed", "inputs")
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None, "the server has stopped"
                time.sleep(0.5)
        requests = cycle([*map(server.request, sentences)])
        asyncio.run(run_turn(server, requests, 8, 1))
        turns = [
            [asyncio.run(run_turn(server, requests, count, TURN_SECONDS)) for _ in range(3)]
            for count in CLIENT_COUNTS
        ]
    costs = tuple(statistics.median(turn.processor for turn in rounds) for rounds in turns)
    claim = "the server's processor time for a request, embed sentences, 6 × 384, by clients"
    yield Growth("growth-clients", claim, "ms", CLIENT_COUNTS, costs, bar=0.1)


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


def measure_processes(corpus: Path, rounds: int) -> None:
    """Print the strong and weak scaling of two processes with a thread each.

    The runs take turns. A ratio is the median over the rounds of the ratio within a round.
    """
    print("| model | processes | sequences | clock, s a step | processor, s | strong | weak |")
    print("|---|---|---|---|---|---|---|")
    for layers, width in CONFIGS[:2]:
        turns = [[time_pretraining(corpus, layers, width, *run) for run in RUNS] for _ in range(rounds)]
        strong = ratio(turns, 0, 1)
        weak = ratio(turns, 2, 1)
        for number, (processes, sequences) in enumerate(RUNS):
            clock, processor = (statistics.median(turn[number][kind] for turn in turns) for kind in (1, 0))
            ratios = [f"{strong} | {weak}" if processes == 2 else " | "]
            cells = [f"{layers} × {width}", processes, sequences, f"{clock:.3f}", f"{processor:.3f}", *ratios]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def ratio(turns: Sequence[Sequence[Seconds]], numerator: int, denominator: int) -> str:
    """Return the ratio of the clock and, in brackets, of the processor time."""
    clock, processor = (
        statistics.median(turn[numerator][kind] / turn[denominator][kind] for turn in turns)
        for kind in (1, 0)
    )
    return f"{clock:.2f} ({processor:.2f})"


def time_pretraining(corpus: Path, layers: int, width: int, processes: int, sequences: int) -> Seconds:
    """Pre-train with torchrun, and return what a step takes the slowest process, after the first steps."""
    with tempfile.TemporaryDirectory() as folder:
        code = "import sys, scaling; scaling.pretrain_and_record(*sys.argv[1:])"
        script = Path(folder) / "run.py"
        script.write_text(code)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        arguments = [script, corpus, folder, layers, width, sequences]
        run([sys.executable, *launcher, *map(str, arguments)], PYTHONPATH=path, OMP_NUM_THREADS="1")
        taken = [json.loads(file.read_text()) for file in Path(folder).glob("rank-*.json")]
    assert len(taken) == processes
    return Seconds(*np.max(taken, axis=0).tolist())


def pretrain_and_record(corpus: str, folder: str, layers: str, width: str, sequences: str) -> None:
    """Pre-train in a process of torchrun, and write what a step takes this process."""
    import bertie
    from bertie.training.checkpoints import RunDirectory

    times: list[Seconds] = []
    log = RunDirectory.log

    def record(run: RunDirectory, row: dict[str, Any]) -> None:  # is called on every rank
        if row["kind"] == "train":
            times.append(Seconds(time.process_time(), time.perf_counter()))
        log(run, row)

    RunDirectory.log = record  # type: ignore[method-assign, assignment]
    model = {
        "num_hidden_layers": int(layers),
        "hidden_size": int(width),
        "num_attention_heads": int(width) // 64,
        "intermediate_size": 4 * int(width),
    }
    settings = {
        "phases": [{"steps": RUN_STEPS, "max_seq_length": 128}],
        "batch_size": int(sequences),
        "log_every": WARM_STEPS,
        "held_out_examples": 1,
        "model": model,
    }
    bertie.pretrain(settings, corpus=corpus, out=Path(folder) / "run")
    step = (np.array(times[-1]) - times[0]) / (RUN_STEPS - WARM_STEPS)
    (Path(folder) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(step.tolist()))


MEASUREMENTS: tuple[Callable[[Path], Iterator[Growth]], ...] = (
    measure_text,
    measure_workers,
    measure_corpus,
    measure_assembly,
    measure_ranks,
    measure_steps,
    measure_models,
    measure_inference,
    measure_clients,
)


def rows(rounds: int) -> Iterator[Growth]:
    """Measure all growths."""
    with tempfile.TemporaryDirectory() as folder:
        for measure_growth in MEASUREMENTS:
            yield from measure_growth(Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("network", help="print the bytes that a rank sends in a step")
    processes = commands.add_parser("processes", help="time two processes of `bertie pretrain` against one")
    processes.add_argument("corpus", type=Path, help="a corpus of `bertie prepare`")
    processes.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    options = parser.parse_args()
    if options.command == "network":
        compute_network()
    else:
        measure_processes(options.corpus, options.rounds)


if __name__ == "__main__":
    main()
