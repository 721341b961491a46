"""Compare bertie's classification of short texts on a CPU with `transformers`' text-classification pipeline.

All sides turn a list of strings into labels with all-MiniLM-L6-v2 (6 × 384), each on one thread. The model is
fine-tuned on 2,048 phrases of SST-2, and the texts are sentences of its dev set. The pipeline reads them in
batches of 32, in their order or, "sorted", the longest first. In int8 torch's dynamic quantization
converts its model. The other peer in int8 is ONNX Runtime's dynamic quantization, run as the sorted pipeline.

A row compares the fastest engine of bertie with the fastest peer. Its note has all sides, and the fraction of
labels on which each agrees with bertie in float32.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import bertie
from bertie.inference.export import export
from bertie.model.formats.onnx import Quantization
from engines import BATCH, Compute, Rows, Texts, in_batches, longest_first, onnx_runtime
from inference import INT8, compare_engines, one_by_one, quantize, write_graph
from measure import DATA, Row, checkpoint

FOLDER = DATA / "glue" / "SST-2"
TRAINING = {"max_training_examples": 2048, "epochs": 1, "max_seq_length": 64, "keep_best": False}
RATE = {"optimizer.learning_rate": 1e-4}
AMOUNTS = {"sentences": 256, "single": 64}  # texts in a round


def read_texts() -> Texts:
    """Return the sentences of SST-2's dev set."""
    lines = (FOLDER / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.rsplit("\t", 1)[0] for line in lines]


def classify(model: bertie.Predictor, texts: Texts) -> Rows:
    """Return bertie's labels, indices."""
    return np.array([model.labels.index(labels[0].label) for labels in model.classify(texts)])


def fraction_equal(labels: Rows, others: Rows) -> float:
    """Return how many of the labels are equal."""
    return float((labels == others).mean())


def transformers_pipeline(source: Path, *, int8: bool = False) -> Compute:
    """Load a model into the pipeline, which returns indices of labels here."""
    model = AutoModelForSequenceClassification.from_pretrained(source).eval()
    indices = model.config.label2id
    if int8:
        model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    tokenizer = AutoTokenizer.from_pretrained(source)
    run = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    return lambda texts: np.array([indices[answer["label"]] for answer in run(texts, batch_size=BATCH)])


def make_sides(source: Path, folder: Path) -> dict[str, dict[str, Compute]]:
    """Load a model into all engines: the sides by precision and name."""
    for name, quantization in {"onnx": Quantization(), "onnx-int8": INT8}.items():
        export(source, folder / name, quantization)
    model = AutoModelForSequenceClassification.from_pretrained(source, attn_implementation="eager")
    write_graph(model, folder / "float32.onnx")
    quantize(folder / "float32.onnx", folder / "int8.onnx")
    tokenizer, infer = AutoTokenizer.from_pretrained(source), onnx_runtime(folder / "int8.onnx")
    logits = partial(in_batches, tokenizer, infer, BATCH)
    floats, integers = transformers_pipeline(source), transformers_pipeline(source, int8=True)
    return {
        "float32": {
            "bertie": partial(classify, bertie.load(source, "cpu")),
            "bertie, exported": partial(classify, bertie.load(folder / "onnx")),
            "pipeline": floats,
            "pipeline, sorted": partial(longest_first, floats),
        },
        "int8": {
            "bertie": partial(classify, bertie.load(source, "cpu", "int8")),
            "bertie, exported": partial(classify, bertie.load(folder / "onnx-int8")),
            "pipeline": integers,
            "pipeline, sorted": partial(longest_first, integers),
            "ONNX Runtime": lambda texts: longest_first(logits, texts).argmax(1),
        },
    }


def rows(rounds: int) -> Iterator[Row]:
    """Compare sentences and single sentences in both precisions."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = bertie.finetune(
            checkpoint(), task="sst-2", data=FOLDER, out=folder / "run", settings=TRAINING | RATE
        )
        sides = make_sides(run.model_directory, folder)
        for kind, amount in AMOUNTS.items():
            texts = read_texts()[:amount]
            exact = sides["float32"]["bertie"](texts)
            agreement = "fraction of labels as bertie's in float32", partial(fraction_equal, exact)
            for precision, engines in sides.items():
                if kind == "single":
                    engines = {name: partial(one_by_one, compute) for name, compute in engines.items()}
                name = f"classify-{kind}-{precision}"
                claim = f"classify {kind if kind != 'single' else 'single sentences'}, 6 × 384, {precision}"
                yield compare_engines(
                    name, claim, engines, texts, agreement, rounds, 1.0, is_single=kind == "single"
                )
