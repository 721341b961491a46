"""Compare bertie's inference on a CPU with every other way to run the same encoder there.

All sides turn a list of strings into an array of vectors with all-MiniLM-L6-v2 (6 × 384, at most 256
tokens), each on one thread. In float32: sentence-transformers, ONNX Runtime with the graph that its own
optimizer fuses, OpenVINO and CTranslate2; in int8: ONNX Runtime's dynamic quantization, CTranslate2 and
OpenVINO with the static quantization of NNCF. Weights of bertie in int8 have 8 bits on a processor with VNNI,
and 7 on others. On a processor that multiplies bfloat16 faster than float32 there are also rows
in bfloat16, whose peers are sentence-transformers and OpenVINO, and all of int8. Those
that are not libraries for texts are run as sentence-transformers runs them: the texts sorted by length, in
batches of 32. "unsorted" is fastembed's way: ONNX Runtime, batches of 256 in the order of the texts.

A row compares the fastest engine of bertie with the fastest peer. Its note has all sides, the mean cosine of
their vectors with those of bertie in float32, and for single texts the median and the 99th percentile of the
milliseconds of processor time.
"""

import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import nncf
import numpy as np
import openvino
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import bertie
from bertie.inference.export import export
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.onnx_engine import has_vnni
from bertie.model.formats.onnx import Quantization
from engines import (
    INPUTS,
    Compute,
    Rows,
    Texts,
    ctranslate,
    embed_in_order,
    embed_sorted,
    onnx_runtime,
    open_vino,
)
from measure import Row, checkpoint, compare, paragraphs, take_turns, timed

FASTEMBED_BATCH = 256  # fastembed's default
AMOUNTS = {"paragraphs": 128, "sentences": 256, "single": 64}  # texts in a round
INT8 = Quantization(layers=True, weight_bits=8 if has_vnni() else 7)
BARS = {("paragraphs", "float32"): 1.6, ("sentences", "float32"): 2.0}  # 1 for all others


class FirstOutput(torch.nn.Module):
    """A model with the inputs in the order of INPUTS and one output."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of the last layer, (N, S, H), or the logits of a classifier."""
        output: torch.Tensor = self.model(**dict(zip(INPUTS, inputs, strict=True)))[0]
        return output


def write_graph(model: torch.nn.Module, file: Path) -> None:
    """Write a model of `transformers` with eager attention in ONNX, with the tool of torch."""
    torch.onnx.export(
        FirstOutput(model.eval()),
        (torch.ones((2, 8), dtype=torch.int64),) * len(INPUTS),
        file,
        input_names=list(INPUTS),
        output_names=["output"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in INPUTS},
        opset_version=17,
        dynamo=False,
    )


def write_onnx(source: Path, folder: Path) -> None:
    """Write `float32.onnx`, `fused.onnx` and `int8.onnx`, with the tools of torch and ONNX Runtime."""
    model = AutoModel.from_pretrained(source, attn_implementation="eager")
    write_graph(model, folder / "float32.onnx")
    heads, hidden = model.config.num_attention_heads, model.config.hidden_size
    fused = optimizer.optimize_model(
        str(folder / "float32.onnx"), "bert", num_heads=heads, hidden_size=hidden, opt_level=1
    )
    fused.save_model_to_file(str(folder / "fused.onnx"))
    quantize(folder / "float32.onnx", folder / "int8.onnx")


def quantize(source: Path, output: Path) -> None:
    """Quantize a graph as sentence-transformers' export_dynamic_quantized_onnx_model does for AVX2."""
    quantize_dynamic(source, output, per_channel=True, weight_type=QuantType.QUInt8, reduce_range=True)


def write_openvino_int8(tokenizer: Any, folder: Path) -> None:
    """Write `int8.xml`, quantized on 64 sentences that are not measured."""
    sentences = split_sentences(paragraphs(1200))[-64:]
    batches = [tokenizer([text], truncation=True, max_length=256, return_tensors="np") for text in sentences]
    quantized = nncf.quantize(
        openvino.Core().read_model(folder / "float32.onnx"),
        nncf.Dataset([{name: batch[name] for name in INPUTS} for batch in batches]),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
    )
    openvino.save_model(quantized, folder / "int8.xml", compress_to_fp16=False)


def make_sides(source: Path, folder: Path) -> dict[str, dict[str, Compute]]:
    """Load a model into all engines: the sides by precision and name."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    write_onnx(source, folder)
    write_openvino_int8(tokenizer, folder)
    ctranslate2.converters.TransformersConverter(str(source)).convert(str(folder / "ctranslate2"))
    export(source, folder / "onnx", Quantization())
    export(source, folder / "onnx-int8", INT8)
    infer = {
        "float32": {
            "ONNX Runtime": onnx_runtime(folder / "fused.onnx"),
            "OpenVINO": open_vino(folder / "float32.onnx"),
            "CTranslate2": ctranslate(folder / "ctranslate2", "float32"),
        },
        "int8": {
            "ONNX Runtime": onnx_runtime(folder / "int8.onnx"),
            "CTranslate2": ctranslate(folder / "ctranslate2", "int8"),
            "OpenVINO": open_vino(folder / "int8.xml"),
        },
    }
    sides: dict[str, dict[str, Compute]] = {
        "float32": {
            "bertie": bertie.load(source, "cpu").embed,
            "bertie, exported": bertie.load(folder / "onnx").embed,
            "sentence-transformers": SentenceTransformer(str(source), device="cpu").encode,
        },
        "int8": {
            "bertie": bertie.load(source, "cpu", "int8").embed,
            "bertie, exported": bertie.load(folder / "onnx-int8").embed,
        },
    }
    for precision, engines in infer.items():
        for name, run in engines.items():
            sides[precision][name] = partial(embed_sorted, tokenizer, run)
        unsorted = partial(embed_in_order, tokenizer, engines["ONNX Runtime"], FASTEMBED_BATCH)
        sides[precision]["ONNX Runtime, unsorted"] = unsorted
    if Hardware(device="cpu").resolved().precision == "bfloat16":
        sides["bfloat16"] = {
            "bertie": bertie.load(source, "cpu", "bfloat16").embed,
            "bertie, exported": bertie.load(folder / "onnx", precision="bfloat16").embed,
            "sentence-transformers": half_precision(source).encode,
            "OpenVINO": partial(embed_sorted, tokenizer, open_vino(folder / "float32.onnx", "bf16")),
            "CTranslate2, int8": sides["int8"]["CTranslate2"],
            "OpenVINO, int8": sides["int8"]["OpenVINO"],
        }
    return sides


def half_precision(source: Path) -> SentenceTransformer:
    """Load a model into sentence-transformers in bfloat16."""
    return SentenceTransformer(str(source), device="cpu", model_kwargs={"dtype": torch.bfloat16})


def split_sentences(texts: Texts) -> Texts:
    """Split paragraphs into sentences."""
    return [sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+", text)]


def read_texts(kind: str, amount: int) -> Texts:
    """Return the texts of a round."""
    texts = paragraphs(1200)
    if kind != "paragraphs":
        texts = split_sentences(texts)
    return texts[:amount]


def mean_cosine(vectors: Rows, others: Rows) -> float:
    """Return the mean cosine of vectors of length 1 with others."""
    return float((vectors * others).sum(1).mean())


def one_by_one(compute: Compute, texts: Texts) -> Rows:
    """Compute the rows of texts, with one call for each text."""
    return np.concatenate([compute([text]) for text in texts])


def percentiles(compute: Compute, texts: Texts) -> str:
    """Return the median and the 99th percentile of the milliseconds of processor time of one text."""
    milliseconds = [timed(partial(compute, [text])).processor * 1000 for text in texts]
    return "{:.1f}, {:.1f}".format(*np.percentile(milliseconds, [50, 99]))


def rows(rounds: int) -> Iterator[Row]:
    """Compare paragraphs, sentences and single sentences in all precisions."""
    yield from compare_model(checkpoint(), "inference", "6 × 384", AMOUNTS, BARS, rounds)


def compare_model(
    source: Path,
    group: str,
    size: str,
    amounts: Mapping[str, int],
    bars: Mapping[tuple[str, str], float],
    rounds: int,
) -> Iterator[Row]:
    """Compare the engines with a model.

    Args:
        source: its directory, of sentence-transformers
        group: the rows are GROUP-KIND-PRECISION
        size: the size of the model, for the claim
        amounts: the texts in a round, by kind
        bars: the ratio to reach by kind and precision, 1 where there is none
        rounds: of a measurement
    """
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(source, Path(folder))
        for kind, amount in amounts.items():
            texts = read_texts(kind, amount)
            exact = sides["float32"]["bertie"](texts)
            agreement = "mean cosine with bertie in float32", partial(mean_cosine, exact)
            for precision, engines in sides.items():
                if kind == "single":
                    engines = {name: partial(one_by_one, embed) for name, embed in engines.items()}
                claim = f"embed {kind if kind != 'single' else 'single sentences'}, {size}, {precision}"
                bar = bars.get((kind, precision), 1.0)
                name = f"{group}-{kind}-{precision}"
                yield compare_engines(
                    name, claim, engines, texts, agreement, rounds, bar, is_single=kind == "single"
                )


def compare_engines(
    name: str,
    claim: str,
    engines: Mapping[str, Compute],
    texts: Texts,
    agreement: tuple[str, Callable[[Rows], float]],
    rounds: int,
    bar: float,
    is_single: bool,
) -> Row:
    """Compare the fastest engine of bertie with the fastest peer.

    Args:
        name, claim, bar: see `Row`
        engines: the sides; the names of bertie's engines begin with "bertie"
        texts: of a round
        agreement: what to say of an engine's rows beside its speed, and its name
        rounds: of the measurement
        is_single: whether to measure the latency of each text
    """
    seconds = take_turns({side: partial(compute, texts) for side, compute in engines.items()}, rounds)
    cost = {side: statistics.median(taken.processor for taken in seconds[side]) for side in engines}
    ours = min((side for side in engines if side.startswith("bertie")), key=cost.__getitem__)
    peer = min((side for side in engines if not side.startswith("bertie")), key=cost.__getitem__)
    title, agree = agreement
    agreed = {side: agree(compute(texts)) for side, compute in engines.items()}
    each = "; ".join(f"{side} {len(texts) / cost[side]:.1f}, {agreed[side]:.4f}" for side in engines)
    if is_single:
        latencies = (f"{side} {percentiles(compute, texts)}" for side, compute in engines.items())
        each += f". Milliseconds, p50 and p99: {'; '.join(latencies)}"
    return compare(
        name,
        f"{claim} ({ours})",
        peer,
        "texts/s",
        len(texts),
        seconds[ours],
        seconds[peer],
        bar,
        f"texts/s and {title}: {each}.",
    )
