"""Hostile files are refused in one line before anything of the size that they name is allocated."""

import bz2
import gzip
import json
import lzma
import resource
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import onnx
import pyarrow.parquet
import pytest
import zstandard
from onnx import TensorProto, helper
from tests.inference.small_models import TOKENIZER, save_small

import bertie
from bertie.base import compression, tables
from bertie.base import rows as rows_module
from bertie.base.compression import open_binary
from bertie.base.errors import BertieError, DataError, ModelError
from bertie.base.parquet_pages import read_chunks
from bertie.base.rows import read_rows, read_unquoted
from bertie.base.storage import RemotePath
from bertie.base.tables import read_arrow_columns, read_parquet_columns
from bertie.base.texts import escape_markdown
from bertie.inference.records import read_arrow_batches, read_records
from bertie.model.formats import tensor_bundle
from bertie.model.formats.sorted_table import decompress_snappy, encode_varint
from bertie.model.formats.tensor_bundle import Entry, index_path, read_bundle, write_bundle, write_table
from bertie.tasks.conll import read_conll

ROOM = 600 << 20  # bytes of address space that a test may allocate


@pytest.fixture(autouse=True)
def limited_memory() -> Iterator[None]:
    """Let an allocation of more than `ROOM` bytes fail."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    pool = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # mimalloc reserves many times what it uses
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    pyarrow.set_memory_pool(pool)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory as others write it, without sums."""
    directory = save_small(tmp_path, "classifier")
    (directory / "SHA256SUMS").unlink(missing_ok=True)
    return directory


def error_of(directory: Path) -> str:
    with pytest.raises(BertieError) as error:
        bertie.load(directory)
    assert str(error.value).isprintable()
    return str(error.value).removeprefix(f"{directory}/")


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "type_vocab_size",
    ],
)
@pytest.mark.parametrize("value", [10**9, 10**30])
def test_absurd_sizes_are_refused(model: Path, key: str, value: int) -> None:
    edit(model / "config.json", **{key: value})
    assert error_of(model).startswith("config.json: ")


def test_sizes_that_contradict_the_weights_allocate_nothing(model: Path) -> None:
    """Each of the two layers would have 16 TB."""
    edit(model / "config.json", hidden_size=2**20, num_attention_heads=1)
    assert "has shape" in error_of(model)


def test_a_billion_labels_are_refused(model: Path) -> None:
    edit(model / "config.json", num_labels=10**9, id2label=None)
    assert error_of(model).startswith("config.json: num_labels")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "modules.json"])
def test_deep_json_is_refused(model: Path, file: str) -> None:
    (model / file).write_text('{"a":' * 100_000)
    assert error_of(model).startswith(f"{file}: not ")


@pytest.mark.parametrize("path", ["../secret", "/etc", "0_Transformer/../../secret"])
def test_modules_outside_the_directory_are_refused(model: Path, path: str) -> None:
    modules = [{"type": "Transformer", "path": path}, {"type": "Pooling", "path": "1_Pooling"}]
    (model / "modules.json").write_text(json.dumps(modules))
    assert error_of(model).startswith(f"modules.json: 0.path is '{path}': not a folder inside the model's")


HEADER = {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}


@pytest.mark.parametrize("length", [None, 2**40, 2**63])
def test_safetensors_that_promise_terabytes_are_refused(model: Path, length: int | None) -> None:
    header = json.dumps(HEADER).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", length or len(header)) + header)
    assert error_of(model).startswith("model.safetensors: damaged safetensors file (")


def test_bundle_that_promises_terabytes_is_refused(tmp_path: Path) -> None:
    prefix = tmp_path / "model.ckpt"
    write_bundle(prefix, {"a": np.ones(2, np.float32)})
    for shape, size in (((10**12,), 8), ((2,), 10**13), ((2**63,), 2**62)):
        entry = Entry(1, shape, 0, 0, size, 0, is_sliced=False)
        items = [(b"", tensor_bundle.HEADER), (b"a", tensor_bundle._encode_entry(entry))]
        write_table(index_path(prefix), items)
        with pytest.raises(ModelError, match=r"a is damaged|truncated in a|do not fit its shape"):
            read_bundle(prefix).read("a")


def test_snappy_block_that_promises_terabytes_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        decompress_snappy(encode_varint(10**12) + b"\0a")


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_bomb_of_one_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(compression, "MAX_LINE_BYTES", 4 << 20)
    file = tmp_path / f"bomb.txt{suffix}"
    file.write_bytes(COMPRESSORS[suffix](bytes(16 << 20)))
    with pytest.raises(DataError, match=r"decompresses to a line of more than 4,194,304 bytes; split"):
        list(_lines(file))
    file.write_bytes(COMPRESSORS[suffix]((b"a" * (1 << 20) + b"\n") * 16))
    assert len(list(_lines(file))) == 16


def _lines(file: Path) -> Iterator[bytes]:
    with open_binary(file) as lines:
        yield from lines


def test_bomb_of_many_lines_needs_little_memory(tmp_path: Path) -> None:
    """700 MB, more than `ROOM`."""
    file = tmp_path / "bomb.txt.zst"
    compressor = zstandard.ZstdCompressor().compressobj()
    with file.open("wb") as output:
        for _ in range(44):
            output.write(compressor.compress(b"\n" * (1 << 24)))
        output.write(compressor.flush())
    with open_binary(file) as lines:
        assert sum(len(chunk) for chunk in iter(lambda: lines.read(1 << 20), b"")) == 44 << 24


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize(
    ("name", "line", "read"),
    [
        ("rows.csv", b"text\n", lambda path: read_rows(path, ["text"])),
        ("rows.tsv", b"text\n", lambda path: read_rows(path, ["text"])),
        ("malformed.csv", b'text\n"a"b\n', lambda path: read_rows(path, ["text"], skipped=[])),
        ("rows.jsonl", b'{"text": 1}\n', lambda path: read_rows(path, ["text"])),
        ("glue.tsv", b"text\n", lambda path: read_unquoted(path, ["text"])),
        ("words.conll", b"text\n", lambda path: read_conll(path, labelled=False)),
    ],
)
def test_bomb_of_many_rows_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    name: str,
    line: bytes,
    read: Callable[[Path], object],
) -> None:
    """Its lines are short, and the rows of all are held in memory."""
    monkeypatch.setattr(rows_module, "_MAX_TABLE_BYTES", 1 << 18)
    file = tmp_path / f"{name}{suffix}"
    file.write_bytes(COMPRESSORS[suffix](line * 1_000))
    read(file)
    file.write_bytes(COMPRESSORS[suffix](line * 10_000))
    with pytest.raises(DataError, match=r"decompresses to lines of more than 262,144 bytes, .*; split the"):
        read(file)
    plain = tmp_path / name
    plain.write_bytes(line * 10_000)
    read(plain)


@pytest.fixture(scope="module")
def parquet_bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 1 kB whose rows share one value of 20 MB, so that 256 rows have 5 GB.

    It is written before memory is limited.
    """
    file = tmp_path_factory.mktemp("parquet") / "bomb.parquet"
    rows = pyarrow.DictionaryArray.from_arrays(np.zeros(1000, np.int32), ["a" * 20_000_000])
    options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False}
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), file, **options)
    assert file.stat().st_size < 2000
    return file


def test_parquet_rows_that_share_a_huge_value_need_little_memory(parquet_bomb: Path) -> None:
    rows = islice(read_parquet_columns(parquet_bomb, {"text": "--column"}), 5)
    assert [len(values["text"] or b"") for _, values in rows] == [20_000_000] * 5
    assert next(read_arrow_batches(parquet_bomb, "text", 256))[2].num_rows == 3


def test_parquet_table_larger_than_the_limit_is_refused(
    parquet_bomb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_MAX_TABLE_BYTES", 1 << 27)
    with pytest.raises(DataError, match=r"bomb.parquet: the columns have more than .*; split the file"):
        read_rows(parquet_bomb, ["text"])


def test_parquet_table_of_too_many_small_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_MAX_TABLE_BYTES", 1 << 22)
    file = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.nulls(1_000_000)}), file)
    with pytest.raises(DataError, match=r"bomb.parquet: the columns have more than .*; split the file"):
        read_rows(file, ["text"])


def test_parquet_page_larger_than_the_limit_is_refused(
    parquet_bomb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MAX_PAGE_BYTES", 1 << 24)
    with pytest.raises(DataError, match=r"a page decompresses to 20,000,004 bytes, more than 16,777,216"):
        read_rows(parquet_bomb, ["text"])


def write_lists(file: Path, values: pyarrow.Array, lengths: list[int], **options: Any) -> Path:
    lists = pyarrow.ListArray.from_arrays(np.cumsum([0, *lengths]), values)
    table = pyarrow.table({"text": ["a"] * len(lists), "words": lists})
    pyarrow.parquet.write_table(table, file, compression="zstd", store_schema=False, **options)
    return file


def shared_word(size: int, count: int) -> pyarrow.DictionaryArray:
    return pyarrow.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["a" * size])


@pytest.mark.parametrize(
    "read",
    [
        lambda file: read_rows(file, ["text", "words"]),
        lambda file: read_records(file, "parquet", {"text": "text"}),
    ],
)
def test_parquet_list_that_shares_a_huge_value_is_refused(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    """The list of the second row has 20 GB."""
    file = write_lists(tmp_path / "bomb.parquet", shared_word(1_000_000, 20_000), [1, 19_998, 1])
    assert file.stat().st_size < 10_000
    with pytest.raises(
        DataError, match=r"bomb.parquet: a row needs 19,998,.* bytes in one column, more than"
    ):
        list(read(file))
    assert len(read_rows(file, ["text"])) == 3


def test_parquet_lists_that_share_a_large_value_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists of 200 rows have 2 GB."""
    file = write_lists(tmp_path / "shared.parquet", shared_word(1_000_000, 2000), [10] * 200)
    sizes = [batch.num_rows for _, _, batch in read_arrow_batches(file, "text", 256)]
    assert sum(sizes) == 200
    assert max(sizes) * 10_000_000 <= 1 << 26
    monkeypatch.setattr(rows_module, "_MAX_TABLE_BYTES", 1 << 27)
    with pytest.raises(DataError, match=r"shared.parquet: the columns have more than .*; split the file"):
        read_rows(file, ["words"])


@pytest.mark.parametrize("dtype", [pyarrow.string(), pyarrow.int64(), pyarrow.binary(8)], ids=str)
def test_parquet_lists_of_too_many_values_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: pyarrow.DataType
) -> None:
    """The pages of the values have some bytes, however many values there are."""
    values = pyarrow.nulls(10_000_000, dtype)
    file = write_lists(tmp_path / "bomb.parquet", values, [10_000_000])
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(tables, "_MAX_GROUP_BYTES", 1 << 25)
    with pytest.raises(
        DataError, match=r"the lists of column 'words' need .* bytes in a row group, more than"
    ):
        read_rows(file, ["words"])


def test_parquet_lists_that_share_prefixes_are_refused(tmp_path: Path) -> None:
    values = pyarrow.array([f"{'a' * 1_000_000}{i}" for i in range(100)])
    options = {"use_dictionary": False, "column_encoding": {"words.list.element": "DELTA_BYTE_ARRAY"}}
    file = write_lists(tmp_path / "bomb.parquet", values, [100], **options)
    assert file.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"the lists of column 'words' have the encoding DELTA_BYTE_ARRAY"):
        read_rows(file, ["words"])


def test_dictionary_page_of_more_entries_than_bytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 100}), file, compression="none")
    content = bytearray(file.read_bytes())
    # DictionaryPageHeader: one entry, in the encoding PLAIN, as zigzag numbers.
    at = content.index(b"\x15\x02\x15\x00", 4) + 1
    content[at] = 127
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"bomb.parquet: damaged or truncated \(a page header has no valid"):
        read_rows(file, ["text"])


def test_list_of_more_floats_than_bytes_is_damage(tmp_path: Path) -> None:
    """Found by atheris: floats were read behind the end of the metadata, without end."""
    metadata = b"\x49\xf7" + b"\xff" * 8 + b"\x7f"  # field 4, a list of 2**63 - 1 floats
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + metadata + len(metadata).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(EOFError, match="cut off"):
        read_chunks(tmp_path / "a.parquet")


def test_remote_parquet_files_are_limited(parquet_bomb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemotePath("memory://bomb.parquet")
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/bomb.parquet", parquet_bomb.read_bytes())
    rows = islice(read_parquet_columns(remote, {"text": "--column"}), 5)
    assert [len(values["text"] or b"") for _, values in rows] == [20_000_000] * 5
    monkeypatch.setattr(tables, "_MAX_PAGE_BYTES", 1 << 24)
    with pytest.raises(DataError, match=r"memory://bomb.parquet: a page decompresses to 20,000,004 bytes"):
        next(read_parquet_columns(remote, {"text": "--column"}))
    fs.rm_file("/bomb.parquet")


def test_arrow_rows_that_share_a_huge_value_need_little_memory(tmp_path: Path) -> None:
    """Its 1000 rows have 20 GB."""
    file = tmp_path / "bomb.arrow"
    table = pyarrow.table({"text": shared_word(20_000_000, 1000)})
    with pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    rows = islice(read_arrow_columns(file, {"text": "--column"}), 5)
    assert [len(values["text"] or b"") for _, values in rows] == [20_000_000] * 5


@pytest.mark.parametrize("create", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_arrow_batch_that_decompresses_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: Callable[..., Any]
) -> None:
    file = tmp_path / "bomb.arrow"
    table = pyarrow.table({"text": ["a" * 20_000_000]})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with create(file, table.schema, options=options) as writer:
        writer.write_table(table)
    assert file.stat().st_size < 10_000
    assert len(list(read_arrow_columns(file, {"text": "--column"}))) == 1
    monkeypatch.setattr(tables, "_MAX_PAGE_BYTES", 1 << 24)
    with pytest.raises(DataError, match=r"bomb.arrow: a record batch decompresses to 20,000,\d+ bytes, more"):
        next(read_arrow_columns(file, {"text": "--column"}))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "link.bin"])
def test_external_data_outside_the_directory_is_refused(tmp_path: Path, location: str) -> None:
    directory = save_small(tmp_path, "encoder")
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (directory / "link.bin").symlink_to(tmp_path / "secret.bin")
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    value = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [4])
    node = helper.make_node("Identity", ["w"], ["last_hidden_state"])
    graph = helper.make_graph([node], "g", [], [value], [tensor])
    (directory / "model.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    assert error_of(directory).startswith("model.onnx: ")


def test_added_tokens_are_no_regular_expressions(tmp_path: Path) -> None:
    """This one would take longer than the universe exists."""
    token = "(a+)+$"
    directory = tmp_path / "tokenizer"
    TOKENIZER.save(directory)
    tokens = [{"id": len(TOKENIZER.vocabulary), "content": token, "special": True}]
    edit(directory / "tokenizer.json", added_tokens=tokens)
    tokenizer = bertie.Tokenizer.load(directory)
    assert [added.content for added in tokenizer.added_tokens] == [token]
    assert tokenizer.encode("a" * 60 + "b").input_ids.tolist().count(len(TOKENIZER.vocabulary)) == 0


@pytest.mark.parametrize("text", ["<script>a()</script>", '"><img onerror=a()>', "[a](javascript:b)"])
def test_markup_in_a_model_card_is_text(text: str) -> None:
    escaped = escape_markdown(f"{text}\n# title | **bold**")
    assert "\n" not in escaped
    for mark in "<>[]|*":
        assert escaped.count(mark) == escaped.count(f"\\{mark}")
