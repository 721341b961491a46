"""Compare ways to train a classifier from few labels.

    python benchmarks/few_labels.py MODEL DATA OUT.jsonl [--task sst-2] [--labels 8 16]
        [--seeds 0 1 2] [--methods frozen plain contrastive contrastive-pooled finetune finetune-pairs]
        [--rates 5e-5 1e-4] [--contrastive-rate 2e-5] [--max-texts 3200]

DATA is a folder with glue/SST-2 and squad/. The tasks are SST-2 (two classes) and `articles`, which
asks to which of ten Wikipedia articles a question of SQuAD belongs. The seed draws the labelled texts,
the pairs and the order of training. The methods:

    frozen              logistic regression on the encoder's vectors: the mean over the tokens, scaled
                        to length 1
    plain               fine-tuning of an ordinary classifier, at each of the rates
    contrastive         SetFit (Tunstall et al., arXiv:2209.11055): the cosine of two texts learns
                        whether they have the same label; then a logistic regression on the vectors
    contrastive-pooled  the same on the pooler's vectors, which an ordinary classifier reads
    finetune            plain fine-tuning with `bertie finetune`, at each of the rates
    finetune-pairs      `bertie finetune --set contrastive_pairs=40`, fewer pairs with `--max-texts`

Plain fine-tuning has 50 epochs. Contrastive training draws 40 pairs for each text, half of them with
the same label. Either reads at most about `--max-texts` texts. Each row of OUT.jsonl has the accuracy on dev
in percent and the seconds of processor time for training (for the whole run, if it is `finetune`). Rows
that exist are not computed again.
"""

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F

import bertie
from bertie.base.arrays import Int64s
from bertie.model.batch import PackedBatch, pack_selected
from bertie.model.config import ClassifierPooling
from bertie.model.formats.weights import load_weights
from bertie.model.heads import ClassificationModel
from bertie.training.contrastive import fit_logistic_regression
from bertie.training.finetuning import InitialModel
from bertie.training.optimizers import OptimizerSettings, build_optimizer

BATCH = 16  # texts in plain fine-tuning, pairs in contrastive training: SetFit's
EPOCHS = 50  # of plain fine-tuning, as SetFit's comparison
ITERATIONS = 20  # pairs of each text with the same label, and as many with another: SetFit's R
MAX_LENGTH = 64  # tokens
MIN_WORDS = 5  # of a training text; many of SST-2's are single words
DEV_PER_CLASS = 100  # of `articles`
NUM_ARTICLES = 10
METHODS = ["frozen", "plain", "contrastive", "contrastive-pooled", "finetune", "finetune-pairs"]


class Texts(NamedTuple):
    texts: list[str]
    labels: Int64s


def read_sst2(data: Path) -> tuple[Texts, Texts]:
    """Return the training texts and dev."""
    parts = []
    for name in ("train", "dev"):
        lines = (data / "glue" / "SST-2" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        rows = dict(line.rsplit("\t", 1) for line in lines)  # the phrases of train.tsv repeat
        chosen = [text for text in rows if name == "dev" or len(text.split()) >= MIN_WORDS]
        parts.append(Texts(chosen, np.array([int(rows[text]) for text in chosen])))
    return parts[0], parts[1]


def read_articles(data: Path) -> tuple[Texts, Texts]:
    """Return questions on the articles with the most questions; the dev part is a random one."""
    questions: dict[str, set[str]] = defaultdict(set)
    for file in sorted((data / "squad").glob("*.json")):
        for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                questions[article["title"]] |= {qa["question"].strip() for qa in paragraph["qas"]}
    titles = sorted(questions, key=lambda title: (-len(questions[title]), title))[:NUM_ARTICLES]
    parts: list[tuple[list[str], list[int]]] = [([], []), ([], [])]
    for label, title in enumerate(titles):
        texts = np.random.default_rng(0).permutation(sorted(questions[title])).tolist()
        for part, chosen in enumerate((texts[DEV_PER_CLASS:], texts[:DEV_PER_CLASS])):
            parts[part][0].extend(chosen)
            parts[part][1].extend([label] * len(chosen))
    train, dev = (Texts(texts, np.array(labels)) for texts, labels in parts)
    return train, dev


TASKS: dict[str, Callable[[Path], tuple[Texts, Texts]]] = {"sst-2": read_sst2, "articles": read_articles}


def draw(pool: Texts, per_class: int, seed: int) -> Texts:
    """Draw `per_class` texts of each class."""
    generator = np.random.default_rng([seed, per_class])
    classes = [np.flatnonzero(pool.labels == label) for label in np.unique(pool.labels)]
    chosen = np.concatenate([generator.choice(rows, per_class, replace=False) for rows in classes])
    return Texts([pool.texts[row] for row in chosen], pool.labels[chosen])


class Encoded:
    """Encoded texts with their labels."""

    def __init__(self, texts: Texts, start: InitialModel) -> None:
        self.encoding = start.tokenizer.encode_batch(texts.texts, max_length=MAX_LENGTH)
        self.labels = texts.labels

    def batch(self, rows: Int64s) -> PackedBatch:
        encoding = self.encoding
        return pack_selected(encoding.input_ids, encoding.token_type_ids, encoding.bounds, rows, self.labels)


def apply(
    model: ClassificationModel, function: Callable[[PackedBatch], torch.Tensor], texts: Encoded
) -> torch.Tensor:
    """Return what `function` computes for each text, (N, …)."""
    model.eval()
    parts = np.split(np.arange(len(texts.labels)), range(64, len(texts.labels), 64))
    with torch.inference_mode():
        return torch.cat([function(texts.batch(rows)) for rows in parts])


def build(start: InitialModel, num_labels: int, seed: int, pooling: ClassifierPooling) -> ClassificationModel:
    torch.manual_seed(seed)
    model = ClassificationModel(start.config, num_labels, pooling=pooling)
    assert start.weights is not None
    load_weights(start.weights, model, prefix="bert.")
    return model


def optimize(model: ClassificationModel, losses: Iterator[torch.Tensor], steps: int, rate: float) -> None:
    """Train with AdamW; the rate rises for a tenth of the steps, then falls linearly."""
    model.train()
    optimizer = build_optimizer(model, OptimizerSettings(learning_rate=rate, bias_correction=True))
    warmup = steps // 10
    for step in range(steps):
        progress = (step + 1) / warmup if step < warmup else (steps - step) / (steps - warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate * progress
        next(losses).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def classification_losses(model: ClassificationModel, texts: Encoded, seed: int) -> Iterator[torch.Tensor]:
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(texts.labels))
        for start in range(0, len(order), BATCH):
            batch = texts.batch(order[start : start + BATCH])
            assert batch.labels is not None
            yield F.cross_entropy(model(batch), batch.labels)


def pair_losses(model: ClassificationModel, texts: Encoded, seed: int) -> Iterator[torch.Tensor]:
    """Yield the squared error of the cosines: 1 for texts of a label, 0 for others, half of each."""
    generator = np.random.default_rng(seed)
    labels = texts.labels
    while True:
        same = np.arange(BATCH) % 2 == 0
        first = generator.integers(len(labels), size=BATCH)
        candidates = (labels[first][:, None] == labels) == same[:, None]
        candidates[np.arange(BATCH), first] = False
        second = np.array([generator.choice(np.flatnonzero(row)) for row in candidates])
        rows, sides = np.unique([first, second], return_inverse=True)  # a text is encoded once per batch
        vectors = F.normalize(model.pool(texts.batch(rows)))[torch.from_numpy(sides.reshape(2, -1))]
        yield F.mse_loss((vectors[0] * vectors[1]).sum(1), torch.from_numpy(same.astype(np.float32)))


def run_command(options: argparse.Namespace, cell: dict[str, Any], train: Texts, dev: Texts) -> Any:
    """Train and evaluate one cell with `bertie.finetune`; return as `run` does."""
    n = len(train.labels)
    settings = {"epochs": min(EPOCHS, options.max_texts // n), "optimizer.learning_rate": cell["rate"]}
    if cell["method"] == "finetune-pairs":
        settings = {"contrastive_pairs": min(2 * ITERATIONS, options.max_texts // 2 // n)}  # its own defaults
    settings |= {"batch_size": BATCH, "max_seq_length": MAX_LENGTH, "seed": cell["seed"], "keep_best": False}
    rows = [
        [{"text": text, "label": f"class {label}"} for text, label in zip(*texts, strict=True)]
        for texts in (train, dev)
    ]
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        result = bertie.finetune(
            options.model, train=rows[0], dev=rows[1], out=Path(folder) / "run", settings=settings
        )
        return result.scores["dev"]["accuracy"], time.process_time() - began


def run(
    options: argparse.Namespace, cell: dict[str, Any], start: InitialModel, pool: Texts, dev_texts: Texts
) -> Any:
    """Train and evaluate one cell; return the accuracy in percent and the seconds of training."""
    seed, method = cell["seed"], cell["method"]
    train_texts = draw(pool, cell["labels"], seed)
    if method.startswith("finetune"):
        return run_command(options, cell, train_texts, dev_texts)
    train, dev = Encoded(train_texts, start), Encoded(dev_texts, start)
    n = len(train.labels)
    pooling: ClassifierPooling = "pooler" if method in ("plain", "contrastive-pooled") else "mean"
    model = build(start, len(np.unique(pool.labels)), seed, pooling)
    began = time.process_time()
    if method == "plain":
        steps = min(EPOCHS * n, options.max_texts) // BATCH
        optimize(model, classification_losses(model, train, seed), steps, cell["rate"])
        seconds = time.process_time() - began
        predicted = apply(model, model, dev).argmax(1).numpy()
    else:
        if method != "frozen":
            steps = min(2 * ITERATIONS * n, options.max_texts // 2) // BATCH
            optimize(model, pair_losses(model, train, seed), steps, cell["rate"])
        vectors = apply(model, model.pool, train).numpy()
        weight, bias = fit_logistic_regression(vectors, train.labels, model.classifier.out_features)
        seconds = time.process_time() - began
        predicted = (apply(model, model.pool, dev) @ weight.float().T + bias.float()).argmax(1).numpy()
    return 100 * float((predicted == dev.labels).mean()), seconds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", choices=list(TASKS), default="sst-2")
    parser.add_argument("--labels", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-5, 1e-4])
    parser.add_argument("--contrastive-rate", type=float, default=2e-5)
    parser.add_argument("--max-texts", type=int, default=3200)
    return parser.parse_args()


def main() -> None:
    options = parse()
    start = InitialModel.load(options.model)
    pool, dev_texts = TASKS[options.task](options.data)
    done = []
    if options.out.exists():
        done = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    for seed in options.seeds:
        for labels in options.labels:
            for method in options.methods:
                contrastive = [0.0 if method == "frozen" else options.contrastive_rate]
                for rate in options.rates if method in ("plain", "finetune") else contrastive:
                    cell = {"model": options.model.name, "task": options.task, "labels": labels}
                    cell |= {"method": method, "rate": rate, "seed": seed}
                    cell |= {"max_texts": options.max_texts}
                    if any(row | cell == row for row in done):
                        continue
                    accuracy, seconds = run(options, cell, start, pool, dev_texts)
                    row = cell | {"accuracy": round(accuracy, 2), "seconds": round(seconds, 1)}
                    print(json.dumps(row), flush=True)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
