"""Fuzz the parsers of binary files with atheris (libFuzzer), by hand.

    pip install atheris
    python scripts/fuzz.py PARSER FOLDER [OPTION OF libFuzzer ...]

FOLDER gets small valid files to start from, and every input that reaches new code. An input ends the
program if it raises anything but BertieError, or takes over 10 s or 1 GiB of memory. Keep it as a
test in tests/model/formats/test_fuzz.py.

    python scripts/fuzz.py bundle build/fuzz/bundle -max_total_time=240
"""

import json
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import atheris
import numpy as np

from bertie.base.errors import BertieError

with atheris.instrument_imports(
    include=[
        "bertie.base.parquet_pages",
        "bertie.corpus.manifest",
        "bertie.corpus.shards",
        "bertie.model.formats.huggingface",
        "bertie.model.formats.sorted_table",
        "bertie.model.formats.tensor_bundle",
    ]
):
    from bertie.base import parquet_pages
    from bertie.corpus import manifest, shards
    from bertie.model.formats import huggingface, sorted_table, tensor_bundle

LIMITS = ["-rss_limit_mb=1536", "-timeout=10", "-max_len=4096"]  # torch has about 500 MB
VOCABULARY = 90


class AnyChecksum(int):
    """Equal to every number, so that the fuzzer gets beyond the checksums."""

    def __ne__(self, other: object) -> bool:
        return False


def read_bundle(data: bytes, folder: Path) -> None:
    """Read an index, and every tensor that it names."""
    prefix = folder / "model.ckpt"
    tensor_bundle.index_path(prefix).write_bytes(data)
    bundle = tensor_bundle.read_bundle(prefix)
    for name in bundle.entries:
        with suppress(BertieError):
            bundle.read(name)


def read_shard(data: bytes, folder: Path) -> None:
    """Read a shard from its files, which are one after the other, after the length of each in a byte."""
    sizes, position = data[:4].ljust(4, b"\0"), 4
    names = ("tokens", "sentence_ends", "document_ends", "block_ends")
    for name, size in zip(names, sizes, strict=True):
        (folder / f"{name}.bin").write_bytes(data[position : position + size])
        position += size
    shards.check_shard(folder, VOCABULARY)
    shard = shards.read_shard(folder, VOCABULARY)
    assert len(shard.tokens) == (shard.sentence_ends[-1] if len(shard.sentence_ends) else 0)
    shards.cut_blocks(shard)


def read_manifest(data: bytes, folder: Path) -> None:
    """Read the manifest of a corpus."""
    with suppress(ValueError, RecursionError):  # read_json reports these
        manifest.read_manifest(folder, json.loads(data))


def read_safetensors(data: bytes, folder: Path) -> None:
    """Read weights from a file with a fuzzed header, of the right length."""
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(data)) + data + bytes(64))
    huggingface.read_weights(file)


def read_onnx(data: bytes, folder: Path) -> None:
    """Load a graph in ONNX Runtime, which is not instrumented."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    with suppress(Exception):  # OnnxEngine makes one line of any of its errors
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def read_parquet(data: bytes, folder: Path) -> None:
    """Read the sizes of the pages of a Parquet file."""
    file = folder / "table.parquet"
    file.write_bytes(data)
    with suppress(EOFError, ValueError, OverflowError):  # iterate_batches reports these
        for chunk in chain.from_iterable(parquet_pages.read_chunks(file)):
            with file.open("rb") as opened:
                parquet_pages.read_pages(opened, chunk)


def seed_bundle(folder: Path) -> list[bytes]:
    tensor_bundle.write_bundle(folder / "a", {f"layer_{n}/w": np.ones(4, np.float32) for n in range(20)})
    return [(folder / "a.index").read_bytes()]


def seed_shard(folder: Path) -> list[bytes]:
    ends = np.array([2, 3], "<i8").tobytes()
    return [bytes([6, 16, 8, 8]) + bytes(6) + ends + np.array([2, 1], "<i8").tobytes()]


def seed_manifest(folder: Path) -> list[bytes]:
    names = ("tokens", "sentence_ends", "document_ends")
    content = manifest.Manifest(
        tokenizer_fingerprint="0",
        vocabulary_size=VOCABULARY,
        settings={},
        train=manifest.SplitCounts(documents=1, sentences=1, tokens=4),
        held_out=manifest.SplitCounts(),
        duplicates_dropped=0,
        empty_documents_dropped=0,
        empty_sentences_dropped=0,
        files={f"train-00000/{name}.bin": manifest.FileRecord(size=8, sha256="0") for name in names},
    )
    return [content.model_dump_json().encode()]


def seed_safetensors(folder: Path) -> list[bytes]:
    header = {
        "a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]},
        "__metadata__": {"format": "pt"},
    }
    return [json.dumps(header).encode()]


def seed_onnx(folder: Path) -> list[bytes]:
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 2]) for name in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2, 3, 4])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return [onnx.ModelProto.SerializeToString(model)]


def seed_parquet(folder: Path) -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": ["a", "b", "c"] * 9, "labels": [["a"], [], ["b", "c"]] * 9})
    parquet.write_table(table, folder / "a.parquet", data_page_size=32, row_group_size=9)
    return [(folder / "a.parquet").read_bytes()]


PARSERS: dict[str, tuple[Callable[[bytes, Path], None], Callable[[Path], list[bytes]]]] = {
    "bundle": (read_bundle, seed_bundle),
    "shard": (read_shard, seed_shard),
    "manifest": (read_manifest, seed_manifest),
    "safetensors": (read_safetensors, seed_safetensors),
    "onnx": (read_onnx, seed_onnx),
    "parquet": (read_parquet, seed_parquet),
}


def main() -> None:
    """Fuzz a parser until libFuzzer stops."""
    name, corpus, *options = sys.argv[1:]
    read, seed = PARSERS[name]
    checksum: Any = AnyChecksum()
    sorted_table.masked_crc32c = tensor_bundle.masked_crc32c = lambda data: checksum
    Path(corpus).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    if name == "bundle":
        tensor_bundle.write_bundle(folder / "model.ckpt", {"a": np.ones(64, np.float32)})
    for number, content in enumerate(seed(folder)):
        (Path(corpus) / f"seed-{number}").write_bytes(content)

    def test(data: bytes) -> None:
        with suppress(BertieError):
            read(data, folder)

    atheris.Setup([sys.argv[0], corpus, *LIMITS, *options], test)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
