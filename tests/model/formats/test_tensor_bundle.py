"""Tensor bundles: a real one byte for byte, TensorFlow's own protocol buffers, every type, all damage."""

import numpy as np
import pytest
import torch
from tensorboard.compat.proto import tensor_shape_pb2, types_pb2, versions_pb2
from tests.model.damage import damaged

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


def write_by_hand(prefix, shards, entries, header=tensor_bundle.HEADER):
    """A checkpoint of several data files, and entries as they are to be."""
    for number, data in enumerate(shards):
        tensor_bundle._shard_path(prefix, number, len(shards)).write_bytes(data)
    items = [(name.encode(), tensor_bundle._entry_bytes(entry)) for name, entry in sorted(entries.items())]
    write_table(index_path(prefix), [(b"", header), *items])


def test_what_is_written_is_read(tmp_path):
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    bundle = read_bundle(tmp_path / "model.ckpt")
    assert list(bundle.entries) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        stored = bundle.read(name)
        assert (stored.dtype, bundle.entries[name].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(stored, tensor)


def test_a_real_checkpoint_is_written_as_tensorflow_did(shared_data, tmp_path):
    real = shared_data / "checkpoints/keras_bert_tf1_tiny/bert_model.ckpt"
    bundle = read_bundle(real)
    write_bundle(tmp_path / real.name, {name: bundle.read(name) for name in bundle.entries})
    for suffix in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"{real.name}{suffix}").read_bytes() == real.with_name(
            real.name + suffix
        ).read_bytes()


def test_tensorflow_reads_what_is_written(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    reader = tensorflow.train.load_checkpoint(str(tmp_path / "model.ckpt"))
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(reader.get_tensor(name), tensor)


def test_messages_are_those_of_protobuf():
    """TensorBoard has not the bundle's own messages, but those that they are made of."""
    for size in ((), (0,), (1, 300), (30522, 1024)):
        shape = tensor_shape_pb2.TensorShapeProto(
            dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=n) for n in size]
        ).SerializeToString()
        data = tensor_bundle._entry_bytes(Entry(1, size, 0, 0, 0, 7, sliced=False))
        assert data == b"\x08\x01\x12" + bytes([len(shape)]) + shape + b"\x35\x07\0\0\0"
        assert tensor_bundle._entry(data).shape == size
    version = versions_pb2.VersionDef(producer=1).SerializeToString()
    assert b"\x08\x01\x1a" + bytes([len(version)]) + version == tensor_bundle.HEADER
    assert tensor_bundle.BFLOAT16 == types_pb2.DT_BFLOAT16
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}
    for number, dtype in DTYPES.items():
        assert number == getattr(types_pb2, f"DT_{names.get(dtype.name, dtype.name.upper())}")


@pytest.mark.parametrize("byteorder", "<>")
def test_several_data_files_of_either_byte_order(tmp_path, byteorder):
    prefix, values = tmp_path / "model.ckpt-12", torch.linspace(-3, 3, 7)
    rounded = values.bfloat16()
    parts = [
        values.numpy().astype(f"{byteorder}f4").tobytes(),
        rounded.view(torch.int16).numpy().astype(f"{byteorder}i2").tobytes(),
    ]
    entries = {
        "exact": Entry(1, (7,), 0, 0, 28, masked_crc32c(parts[0]), sliced=False),
        "rounded": Entry(14, (7,), 1, 2, 14, masked_crc32c(parts[1]), sliced=False),
    }
    header = tensor_bundle._field(1, 2) + tensor_bundle._field(2, int(byteorder == ">"))
    write_by_hand(prefix, [parts[0], b"__" + parts[1]], entries, header)
    bundle = read_bundle(prefix)
    np.testing.assert_array_equal(bundle.read("exact"), values.numpy())
    np.testing.assert_array_equal(bundle.read("rounded"), rounded.float().numpy())
    (tmp_path / "model.ckpt-12.data-00001-of-00002").unlink()
    with pytest.raises(ModelError, match="data-00001-of-00002: cannot be read"):
        read_bundle(prefix).read("rounded")


def test_what_cannot_be_read_is_named(tmp_path):
    prefix = tmp_path / "model.ckpt"
    entries = {
        "graph": Entry(7, (), 0, 0, 3, 0, sliced=False),
        "table": Entry(1, (4,), 0, 0, 16, 0, sliced=True),
    }
    write_by_hand(prefix, [b"abc"], {"graph": entries["graph"]})
    items = read_table(index_path(prefix))
    piece = (b"\0\1table", b"\x08\x01")  # the key of a piece is no name
    sliced = tensor_bundle._entry_bytes(entries["table"]) + tensor_bundle._field(7, b"")
    write_table(index_path(prefix), [items[0], piece, items[1], (b"table", sliced)])
    bundle = read_bundle(prefix)
    assert list(bundle.entries) == ["graph", "table"]
    with pytest.raises(ModelError, match="graph has TensorFlow's type number 7"):
        bundle.read("graph")
    with pytest.raises(ModelError, match="table is partitioned"):
        bundle.read("table")


@pytest.mark.parametrize("items", [[], [(b"key", b"of LevelDB")], [(b"", b"\x08\x01"), (b"name", b"\x0e")]])
def test_other_tables_are_refused(tmp_path, items):
    write_table(tmp_path / "db.index", items)
    with pytest.raises(ModelError, match="not of a TensorFlow checkpoint"):
        read_bundle(tmp_path / "db")


def outcome(prefix):
    try:
        bundle = read_bundle(prefix)
        return {name: bundle.read(name) for name in bundle.entries}
    except ModelError as error:
        return str(error)


def test_damage_is_noticed_or_does_not_matter(tmp_path):
    prefix = tmp_path / "model.ckpt"
    tensors = {name: TENSORS[name] for name in ("bert/kernel", "bert/bias", "global_step")}
    write_bundle(prefix, tensors)
    data_path = tmp_path / "model.ckpt.data-00000-of-00001"
    for path in (index_path(prefix), data_path):
        whole = path.read_bytes()
        for changed in damaged(whole):
            path.write_bytes(changed)
            result = outcome(prefix)
            if isinstance(result, str):
                assert result.startswith(f"{path}: ")
            else:
                assert path != data_path  # of the data every byte matters
                assert all(np.array_equal(result[name], tensors[name]) for name in tensors)
        path.write_bytes(whole)


@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_tensor_is_named(tmp_path, cut):
    write_bundle(tmp_path / "model.ckpt", TENSORS)
    path = tmp_path / "model.ckpt.data-00000-of-00001"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if cut else data[:-1] + bytes([data[-1] ^ 1]))
    bundle = read_bundle(tmp_path / "model.ckpt")
    bundle.read("bert/kernel")
    with pytest.raises(ModelError, match="cut off in half" if cut else "half is damaged"):
        bundle.read("half")
