"""Run an encoder in ONNX Runtime, OpenVINO and CTranslate2, which are not libraries for texts.

Each is imported where it is used, so that a process that is measured has only the library that it runs.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from measure import chunks

BATCH = 32  # sentence-transformers' default
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
Texts = list[str]
Rows = np.ndarray  # one for each text
Compute = Callable[[Texts], Rows]
Inputs = dict[str, np.ndarray]  # by the names in INPUTS, each (N, S)
Infer = Callable[[Inputs], np.ndarray]  # the first output of a graph, such as hidden states (N, S, H)


def embed_sorted(tokenizer: Any, infer: Infer, texts: Texts) -> Rows:
    """Embed texts as sentence-transformers does: sorted by length, in padded batches, the mean of tokens."""
    return longest_first(partial(embed_in_order, tokenizer, infer, BATCH), texts)


def embed_in_order(tokenizer: Any, infer: Infer, batch: int, texts: Texts) -> Rows:
    """Embed texts in padded batches, in their order."""

    def embed(inputs: Inputs) -> Rows:
        mask = inputs["attention_mask"][:, :, None]
        pooled = (infer(inputs) * mask).sum(1) / mask.sum(1)
        vectors: Rows = (pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).astype(np.float32)
        return vectors

    return in_batches(tokenizer, embed, batch, texts)


def longest_first(compute: Compute, texts: Texts) -> Rows:
    """Compute a row for each text, the longest texts first."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    rows = compute([texts[index] for index in order])
    restored = np.empty_like(rows)
    restored[order] = rows
    return restored


def in_batches(tokenizer: Any, infer: Infer, batch: int, texts: Texts) -> Rows:
    """Compute a row for each text in padded batches, in their order."""
    rows = []
    for part in chunks(texts, batch):
        inputs = tokenizer(list(part), padding=True, truncation=True, max_length=256, return_tensors="np")
        rows.append(infer({name: inputs[name] for name in INPUTS}))
    return np.concatenate(rows)


def onnx_runtime(file: Path) -> Infer:
    """Load a graph with one output into ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def open_vino(file: Path, precision: str = "f32") -> Infer:
    """Compile a graph with OpenVINO."""
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return lambda inputs: compiled(inputs)[0]


def ctranslate(folder: Path, precision: str) -> Infer:
    """Load a converted model into CTranslate2."""
    import ctranslate2

    encoder = ctranslate2.Encoder(str(folder), device="cpu", compute_type=precision, intra_threads=1)

    def infer(inputs: Inputs) -> np.ndarray:
        lengths = inputs["attention_mask"].sum(1).astype(np.int32)
        view = ctranslate2.StorageView.from_array
        ids = view(np.ascontiguousarray(inputs["input_ids"], dtype=np.int32))
        return np.asarray(encoder.forward_batch(ids, view(lengths)).last_hidden_state)

    return infer
