"""Compare bertie's inference on a CPU with every other way to run the same encoder there.

All sides turn a list of strings into an array of vectors with all-MiniLM-L6-v2 (6 × 384, at most 256
tokens), each on one thread. In float32: sentence-transformers, ONNX Runtime with the graph that its own
optimizer fuses, OpenVINO and CTranslate2; in int8: ONNX Runtime's dynamic quantization, CTranslate2 and
OpenVINO with the static quantization of NNCF. On a processor with bfloat16 instructions there are also rows
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import nncf
import numpy as np
import onnxruntime
import openvino
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import bertie
from bertie.inference.export import export
from bertie.model.formats.onnx import Quantization
from measure import Row, checkpoint, chunks, compare, paragraphs, take_turns, timed

BATCH = 32  # sentence-transformers' default
FASTEMBED_BATCH = 256  # fastembed's default
AMOUNTS = {"paragraphs": 128, "sentences": 256, "single": 64}  # texts in a round
BARS = {("paragraphs", "float32"): 1.6, ("sentences", "float32"): 2.0}  # 1 for all others
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
Texts = list[str]
Vectors = np.ndarray
Embed = Callable[[Texts], Vectors]
Infer = Callable[[dict[str, np.ndarray]], np.ndarray]  # inputs (N, S) → hidden states (N, S, H)


def embed_sorted(tokenizer: Any, infer: Infer, texts: Texts) -> Vectors:
    """Embed texts as sentence-transformers does: sorted by length, in padded batches, the mean of tokens."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    vectors = embed_in_order(tokenizer, infer, BATCH, [texts[index] for index in order])
    restored = np.empty_like(vectors)
    restored[order] = vectors
    return restored


def embed_in_order(tokenizer: Any, infer: Infer, batch: int, texts: Texts) -> Vectors:
    """Embed texts in padded batches, in their order."""
    vectors = []
    for part in chunks(texts, batch):
        inputs = tokenizer(list(part), padding=True, truncation=True, max_length=256, return_tensors="np")
        mask = inputs["attention_mask"][:, :, None]
        pooled = (infer({name: inputs[name] for name in INPUTS}) * mask).sum(1) / mask.sum(1)
        vectors.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
    return np.concatenate(vectors).astype(np.float32)


def onnx_runtime(file: Path) -> Infer:
    """Load a graph into ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(["last_hidden_state"], inputs)[0]


def open_vino(file: Path, precision: str = "f32") -> Infer:
    """Compile a graph with OpenVINO."""
    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return lambda inputs: compiled(inputs)[0]


def ctranslate(folder: Path, precision: str) -> Infer:
    """Load a converted model into CTranslate2."""
    encoder = ctranslate2.Encoder(str(folder), device="cpu", compute_type=precision, intra_threads=1)

    def infer(inputs: dict[str, np.ndarray]) -> np.ndarray:
        lengths = inputs["attention_mask"].sum(1).astype(np.int32)
        view = ctranslate2.StorageView.from_array
        ids = view(np.ascontiguousarray(inputs["input_ids"], dtype=np.int32))
        return np.asarray(encoder.forward_batch(ids, view(lengths)).last_hidden_state)

    return infer


class HiddenStates(torch.nn.Module):
    """A BertModel with the inputs in the order of INPUTS and one output."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the hidden states of the last layer, (N, S, H)."""
        hidden: torch.Tensor = self.model(**dict(zip(INPUTS, inputs, strict=True))).last_hidden_state
        return hidden


def write_onnx(source: Path, folder: Path) -> None:
    """Write `float32.onnx`, `fused.onnx` and `int8.onnx`, with the tools of torch and ONNX Runtime."""
    model = AutoModel.from_pretrained(source, attn_implementation="eager").eval()
    example = torch.ones((2, 8), dtype=torch.int64)
    axes = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, "last_hidden_state")}
    torch.onnx.export(
        HiddenStates(model),
        (example,) * len(INPUTS),
        folder / "float32.onnx",
        input_names=list(INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    heads, hidden = model.config.num_attention_heads, model.config.hidden_size
    fused = optimizer.optimize_model(
        str(folder / "float32.onnx"), "bert", num_heads=heads, hidden_size=hidden, opt_level=1
    )
    fused.save_model_to_file(str(folder / "fused.onnx"))
    # The settings of sentence-transformers' export_dynamic_quantized_onnx_model for AVX2.
    quantize_dynamic(
        folder / "float32.onnx",
        folder / "int8.onnx",
        per_channel=True,
        weight_type=QuantType.QUInt8,
        reduce_range=True,
    )


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


def has_bfloat16() -> bool:
    """Return whether this processor multiplies in bfloat16."""
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def make_sides(source: Path, folder: Path) -> dict[str, dict[str, Embed]]:
    """Load a model into all engines: the sides by precision and name."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    write_onnx(source, folder)
    write_openvino_int8(tokenizer, folder)
    ctranslate2.converters.TransformersConverter(str(source)).convert(str(folder / "ctranslate2"))
    for name, quantization in {"onnx": Quantization(), "onnx-int8": Quantization(layers=True)}.items():
        export(source, folder / name, quantization)
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
    sides: dict[str, dict[str, Embed]] = {
        "float32": {
            "bertie": bertie.load(source, "cpu").embed,
            "bertie, exported": bertie.load(folder / "onnx").embed,
            "sentence-transformers": SentenceTransformer(str(source), device="cpu").encode,
        },
        "int8": {"bertie, exported": bertie.load(folder / "onnx-int8").embed},
    }
    for precision, engines in infer.items():
        for name, run in engines.items():
            sides[precision][name] = partial(embed_sorted, tokenizer, run)
        unsorted = partial(embed_in_order, tokenizer, engines["ONNX Runtime"], FASTEMBED_BATCH)
        sides[precision]["ONNX Runtime, unsorted"] = unsorted
    if has_bfloat16():
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


def read_texts(kind: str) -> Texts:
    """Return the texts of a round."""
    texts = paragraphs(1200)
    if kind != "paragraphs":
        texts = split_sentences(texts)
    return texts[: AMOUNTS[kind]]


def one_by_one(embed: Embed, texts: Texts) -> Vectors:
    """Embed texts in calls of their own."""
    return np.concatenate([embed([text]) for text in texts])


def percentiles(embed: Embed, texts: Texts) -> str:
    """Return the median and the 99th percentile of the milliseconds of processor time of one text."""
    milliseconds = [timed(partial(embed, [text])).processor * 1000 for text in texts]
    return "{:.1f}, {:.1f}".format(*np.percentile(milliseconds, [50, 99]))


def rows(rounds: int) -> Iterator[Row]:
    """Compare paragraphs, sentences and single sentences in both precisions."""
    with tempfile.TemporaryDirectory() as folder:
        sides = make_sides(checkpoint(), Path(folder))
        for kind in AMOUNTS:
            texts = read_texts(kind)
            exact = sides["float32"]["bertie"](texts)
            for precision, engines in sides.items():
                if kind == "single":
                    engines = {name: partial(one_by_one, embed) for name, embed in engines.items()}
                yield compare_engines(kind, precision, engines, texts, exact, rounds)


def compare_engines(
    kind: str, precision: str, engines: dict[str, Embed], texts: Texts, exact: Vectors, rounds: int
) -> Row:
    """Compare the fastest engine of bertie with the fastest peer."""
    seconds = take_turns({name: partial(embed, texts) for name, embed in engines.items()}, rounds)
    cost = {name: statistics.median(taken.processor for taken in seconds[name]) for name in engines}
    ours = min((name for name in engines if name.startswith("bertie")), key=cost.__getitem__)
    peer = min((name for name in engines if not name.startswith("bertie")), key=cost.__getitem__)
    cosine = {name: float((embed(texts) * exact).sum(1).mean()) for name, embed in engines.items()}
    each = "; ".join(f"{name} {len(texts) / cost[name]:.1f}, {cosine[name]:.4f}" for name in engines)
    if kind == "single":
        latencies = (f"{name} {percentiles(embed, texts)}" for name, embed in engines.items())
        each += f". Milliseconds, p50 and p99: {'; '.join(latencies)}"
    return compare(
        f"inference-{kind}-{precision}",
        f"embed {kind if kind != 'single' else 'single sentences'}, 6 × 384, {precision} ({ours})",
        peer,
        "texts/s",
        len(texts),
        seconds[ours],
        seconds[peer],
        BARS.get((kind, precision), 1.0),
        f"texts/s and mean cosine with bertie in float32: {each}.",
    )
