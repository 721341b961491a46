"""Compare continued pre-training with and without more entries in the vocabulary.

    python benchmarks/extended_vocabulary.py MODEL TEXT HELD_OUT OUT [--add 2000]
        [--steps 500] [--length 128] [--words 5000]

TEXT is a folder of text in the new domain, and HELD_OUT a file of other text with one passage a line.
Three models continue from MODEL on TEXT with the same settings and number of steps: one with the old
tokenizer; one with a tokenizer that is extended on TEXT, whose new rows start as the mean of their old
tokens; and the same with random new rows.

Losses per token cannot be compared between tokenizers. So random words of HELD_OUT are scored whole:
-log P(word | the rest of its passage), where the tokens of the word are predicted one by one from left
to right, and the current and later tokens of the word are masked (PLL-word-l2r of Kauf and Ivanova,
arXiv:2305.10588). No model sees a part of a word before it has predicted it. The sum is divided by the
number of characters (bits per character) or of words (perplexity per word). All models score the same
words.
"""

import argparse
import math
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import torch

import bertie
from bertie.corpus.readers import list_inputs
from bertie.corpus.word_counts import count_tokenized_words
from bertie.model.batch import PackedBatch, pack
from bertie.model.formats.directory import ModelMetadata, find_new_entries, read_metadata
from bertie.model.formats.weights import load_initial_weights, load_model, save_model
from bertie.model.heads import PreTrainingModel

MAX_LENGTH = 128  # tokens of a passage; longer ones are left out
BATCH = 64
SEED = 7
LEARNING_RATE = 4e-4  # a fifth of the rate of `tiny-laptop` (docs/pretraining.md)


def tokens_per_word(tokenizer: bertie.Tokenizer, files: list[Path]) -> float:
    words, counts = count_tokenized_words(files, tokenizer, workers=1)
    return float(np.dot([len(ids) for ids in words], counts) / counts.sum())


def draw_words(passages: list[str], tokenizer: bertie.Tokenizer, count: int) -> list[tuple[int, int]]:
    """Draw words, as the index of their passage and the index of the word in it."""
    encoding = tokenizer.encode_batch(passages)
    rows = [
        (passage, word)
        for passage, (start, stop) in enumerate(pairwise(encoding.bounds.tolist()))
        if stop - start <= MAX_LENGTH
        for word in sorted({*encoding.word_ids[start + 1 : stop - 1].tolist()})
    ]
    chosen = np.random.default_rng(SEED).permutation(len(rows))[:count]
    return [rows[index] for index in sorted(chosen.tolist())]


def word_losses(path: Path, passages: list[str], words: list[tuple[int, int]]) -> npt.NDArray[np.float64]:
    """Return -log P of each word in nats: float64 (n,)."""
    model, metadata = load_model(path)
    assert isinstance(model, PreTrainingModel)
    losses = np.zeros(len(words))
    rows = list(_mask_words(passages, words, metadata))
    with torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            logits, _ = model(_pack(part))
            labels = torch.tensor([label for _, _, _, label in part])
            nats = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
            np.add.at(losses, [word for word, *_ in part], nats.numpy())
    return losses


Row = tuple[int, npt.NDArray[np.int32], int, int]  # word, input ids, position to predict, its id


def _mask_words(passages: list[str], words: list[tuple[int, int]], metadata: ModelMetadata) -> Iterator[Row]:
    tokenizer = metadata.tokenizer
    encoding = tokenizer.encode_batch(passages)
    for index, (passage, word) in enumerate(words):
        start, stop = encoding.bounds[passage : passage + 2]
        ids, word_ids = encoding.input_ids[start:stop], encoding.word_ids[start:stop].copy()
        word_ids[[0, -1]] = -1  # [CLS] and [SEP]
        positions = np.flatnonzero(word_ids == word)
        for nth, position in enumerate(positions):
            masked = ids.copy()
            masked[positions[nth:]] = tokenizer.vocabulary.mask_id
            yield index, masked, int(position), int(ids[position])


def _pack(rows: list[Row]) -> PackedBatch:
    bounds = np.cumsum([0, *(len(ids) for _, ids, _, _ in rows)])
    ids = np.concatenate([ids for _, ids, _, _ in rows])
    positions = np.array([position for _, _, position, _ in rows]) + bounds[:-1]
    return pack(ids, np.zeros_like(ids), bounds, masked_positions=positions)


def save_extended(path: Path, initial: Path, tokenizer: bertie.Tokenizer, random_rows: bool) -> None:
    """Save the model as it is extended, before any training."""
    config = read_metadata(initial).config
    size = max(config.vocab_size, len(tokenizer.vocabulary))
    config = config.model_copy(update={"vocab_size": size})
    torch.manual_seed(SEED)
    model = PreTrainingModel(config)
    new_entries = find_new_entries(initial, tokenizer)
    load_initial_weights(initial, model, new_entries)
    if random_rows:
        rows = model.bert.embeddings.word_embeddings.weight.data
        rows[list(new_entries)] = config.initializer_range * torch.randn(len(new_entries), rows.shape[1])
    save_model(path, model, ModelMetadata(config, model.architecture, (), tokenizer), "")


def measure_words(
    passages: list[str], words: list[tuple[int, int]], tokenizer: bertie.Tokenizer
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the length of each word in characters, and whether the tokenizer splits it."""
    encoding = tokenizer.encode_batch(passages)
    lengths, is_split = [], []
    for passage, word in words:
        inner = slice(encoding.bounds[passage] + 1, encoding.bounds[passage + 1] - 1)
        spans = encoding.offsets[inner][encoding.word_ids[inner] == word]
        lengths.append(int(spans[-1, 1] - spans[0, 0]))
        is_split.append(len(spans) > 1)
    return np.array(lengths), np.array(is_split)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "text", "held_out", "out"):
        parser.add_argument(name, type=Path)
    for option, default in (("add", 2000), ("steps", 500), ("length", 128), ("words", 5000)):
        parser.add_argument(f"--{option}", type=int, default=default)
    arguments = parser.parse_args()
    model, text, held_out, out = arguments.model, arguments.text, arguments.held_out, arguments.out
    old = bertie.Tokenizer.load(model)
    new = bertie.extend_tokenizer(model, text, out=out / "extended", add=arguments.add, workers=1)
    for name, tokenizer in (("old", old), ("extended", new)):
        of_text, of_held_out = (tokens_per_word(tokenizer, list_inputs([path])) for path in (text, held_out))
        print(f"{name}: tokens per word {of_text:.3f} on the text, {of_held_out:.3f} held out", flush=True)
    passages = held_out.read_text(encoding="utf-8").splitlines()
    words = draw_words(passages, old, arguments.words)
    lengths, is_split = measure_words(passages, words, old)
    print(f"{len(words):,} words, {lengths.sum():,} characters; the old tokenizer splits {is_split.sum():,}")

    def score(name: str, when: str, path: Path) -> npt.NDArray[np.float64]:
        bits = word_losses(path, passages, words) / math.log(2)
        for group, chosen in (("all", is_split | True), ("split", is_split), ("whole", ~is_split)):
            per_character, perplexity = bits[chosen].sum() / lengths[chosen].sum(), 2 ** bits[chosen].mean()
            scores = f"{per_character:.3f} bits per character, perplexity per word {perplexity:,.0f}"
            print(f"{name}, {when}, {group} words: {scores}", flush=True)
        return bits

    save_extended(out / "mean", model, new, random_rows=False)
    save_extended(out / "random", model, new, random_rows=True)
    for name, path in (("old", model), ("mean", out / "mean"), ("random", out / "random")):
        score(name, "before", path)
    for name, initial, tokenizer_path in (
        ("old", model, model),
        ("mean", model, out / "extended"),
        ("random", out / "random", out / "extended"),
    ):
        corpus = out / f"corpus-{name}"
        bertie.prepare(text, tokenizer=tokenizer_path, out=corpus, held_out=0.05, workers=1)
        settings = {
            "phases.0.steps": arguments.steps,
            "phases.0.max_seq_length": arguments.length,
            "warmup_steps": arguments.steps // 10,
            "optimizer.learning_rate": LEARNING_RATE,
            "held_out_examples": 256,
        }
        run = bertie.pretrain(
            "continue", corpus=corpus, out=out / f"run-{name}", init=initial, settings=settings
        )
        bits = score(name, "after", run.model_directory)
        if name == "old":
            bits_of_old = bits
            continue
        differences = (bits - bits_of_old) / lengths.mean()
        error = differences.std(ddof=1) / math.sqrt(len(words))
        print(f"{name} - old: {differences.mean():+.3f} ± {error:.3f} (standard error) bits per character")


if __name__ == "__main__":
    main()
