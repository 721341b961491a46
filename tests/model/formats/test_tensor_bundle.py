"""Tensor bundles: a real one byte for byte, protocol buffers, types, damage."""

import numpy as np
import pytest
import torch
from tensorboard.compat.proto import tensor_shape_pb2, types_pb2, versions_pb2
from tests.model.damage import damaged_versions

from bertie.base.errors import ModelError
from bertie.model.formats import tensor_bundle
from bertie.model.formats.crc32c import masked_crc32c
from bertie.model.formats.sorted_table import read_table, write_table
from bertie.model.formats.tensor_bundle import DTYPES, Entry, index_path, read_bundle, write_bundle

RANDOM = np.random.default_rng(0)
TENSORS = {
    "bert/kernel": RANDOM.normal(size=(3, 5)).astype(np.float32),
    "bert/bias": RANDOM.normal(size=5),
    "global_step": np.array(1234567890123),
    "half": RANDOM.normal(size=(2, 1, 2)).astype(np.float16),
    "empty": np.empty((0, 4), np.int32),
}


def write_checkpoint(prefix, shards, entries, header=tensor_bundle.HEADER):
    """Write a checkpoint from the bytes of its data files and its index entries."""
    for i, data in enumerate(shards):
        tensor_bundle._shard_path(prefix, i, len(shards)).write_bytes(data)
    items = [(name.encode(), tensor_bundle._encode_entry(entry)) for name, entry in sorted(entries.items())]
    write_table(index_path(prefix), [(b"", header), *items])


def test_tensors_survive_a_round_trip(tmp_path):
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    bundle = read_bundle(tmp_path / "model.ckpt")
    assert list(bundle.entries) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        stored = bundle.read(name)
        assert (stored.dtype, bundle.entries[name].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(stored, tensor)


def test_real_checkpoint_is_rewritten_byte_for_byte(shared_data, tmp_path):
    real = shared_data / "checkpoints/keras_bert_tf1_tiny/bert_model.ckpt"
    bundle = read_bundle(real)
    write_bundle(tmp_path / real.name, {name: bundle.read(name) for name in bundle.entries})
    for suffix in (".index", ".data-00000-of-00001"):
        original = real.with_name(real.name + suffix)
        assert (tmp_path / original.name).read_bytes() == original.read_bytes()


def test_tensorflow_reads_a_written_bundle(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    reader = tensorflow.train.load_checkpoint(str(tmp_path / "model.ckpt"))
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(reader.get_tensor(name), tensor)


def test_messages_equal_those_of_protobuf():
    """TensorBoard has only the messages that are nested in the bundle's messages."""
    for size in ((), (0,), (1, 300), (30522, 1024)):
        shape = tensor_shape_pb2.TensorShapeProto(
            dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=n) for n in size]
        ).SerializeToString()
        data = tensor_bundle._encode_entry(Entry(1, size, 0, 0, 0, 7, is_sliced=False))
        assert data == b"\x08\x01\x12" + bytes([len(shape)]) + shape + b"\x35\x07\0\0\0"
        assert tensor_bundle._decode_entry(data).shape == size
    version = versions_pb2.VersionDef(producer=1).SerializeToString()
    assert b"\x08\x01\x1a" + bytes([len(version)]) + version == tensor_bundle.HEADER
    assert tensor_bundle.BFLOAT16 == types_pb2.DT_BFLOAT16
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}
    for code, dtype in DTYPES.items():
        assert code == getattr(types_pb2, f"DT_{names.get(dtype.name, dtype.name.upper())}")


@pytest.mark.parametrize("byteorder", "<>")
def test_several_data_files_of_either_byte_order(tmp_path, byteorder):
    prefix, values = tmp_path / "model.ckpt-12", torch.linspace(-3, 3, 7)
    rounded = values.bfloat16()
    parts = [
        values.numpy().astype(f"{byteorder}f4").tobytes(),
        rounded.view(torch.int16).numpy().astype(f"{byteorder}i2").tobytes(),
    ]
    entries = {
        "exact": Entry(1, (7,), 0, 0, 28, masked_crc32c(parts[0]), is_sliced=False),
        "rounded": Entry(14, (7,), 1, 2, 14, masked_crc32c(parts[1]), is_sliced=False),
    }
    header = tensor_bundle._encode_field(1, 2) + tensor_bundle._encode_field(2, int(byteorder == ">"))
    write_checkpoint(prefix, [parts[0], b"__" + parts[1]], entries, header)
    bundle = read_bundle(prefix)
    np.testing.assert_array_equal(bundle.read("exact"), values.numpy())
    np.testing.assert_array_equal(bundle.read("rounded"), rounded.float().numpy())
    (tmp_path / "model.ckpt-12.data-00001-of-00002").unlink()
    with pytest.raises(ModelError, match="data-00001-of-00002: cannot be read"):
        read_bundle(prefix).read("rounded")


def test_unsupported_tensors_are_rejected_when_read(tmp_path):
    prefix = tmp_path / "model.ckpt"
    text = Entry(7, (), 0, 0, 3, 0, is_sliced=False)
    partitioned = Entry(1, (4,), 0, 0, 16, 0, is_sliced=True)
    write_checkpoint(prefix, [b"abc"], {"graph": text})
    items = read_table(index_path(prefix))
    slice_item = (b"\0\1table", b"\x08\x01")  # the key of a slice is not the name of a tensor
    sliced = tensor_bundle._encode_entry(partitioned) + tensor_bundle._encode_field(7, b"")
    write_table(index_path(prefix), [items[0], slice_item, items[1], (b"table", sliced)])
    bundle = read_bundle(prefix)
    assert list(bundle.entries) == ["graph", "table"]
    with pytest.raises(ModelError, match="graph has TensorFlow's type 7"):
        bundle.read("graph")
    with pytest.raises(ModelError, match="table is partitioned"):
        bundle.read("table")


@pytest.mark.parametrize("items", [[], [(b"key", b"of LevelDB")], [(b"", b"\x08\x01"), (b"name", b"\x0e")]])
def test_other_tables_are_rejected(tmp_path, items):
    write_table(tmp_path / "db.index", items)
    with pytest.raises(ModelError, match=r"not the index of a TensorFlow checkpoint \("):
        read_bundle(tmp_path / "db")


def read_or_message(prefix):
    try:
        bundle = read_bundle(prefix)
        return {name: bundle.read(name) for name in bundle.entries}
    except ModelError as error:
        return str(error)


def test_damage_is_detected_or_harmless(tmp_path):
    prefix = tmp_path / "model.ckpt"
    tensors = {name: TENSORS[name] for name in ("bert/kernel", "bert/bias", "global_step")}
    write_bundle(prefix, tensors)
    data_path = tmp_path / "model.ckpt.data-00000-of-00001"
    for path in (index_path(prefix), data_path):
        original = path.read_bytes()
        for damaged in damaged_versions(original):
            path.write_bytes(damaged)
            result = read_or_message(prefix)
            if isinstance(result, str):
                assert result.startswith(f"{path}: ")
            else:
                assert path != data_path  # no byte of the data is harmless
                assert all(np.array_equal(result[name], tensors[name]) for name in tensors)
        path.write_bytes(original)


@pytest.mark.parametrize("truncated", [True, False])
def test_damage_error_names_the_tensor(tmp_path, truncated):
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    path = tmp_path / "model.ckpt.data-00000-of-00001"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if truncated else data[:-1] + bytes([data[-1] ^ 1]))
    bundle = read_bundle(tmp_path / "model.ckpt")
    bundle.read("bert/kernel")
    with pytest.raises(ModelError, match="truncated in half" if truncated else "half is damaged"):
        bundle.read("half")
