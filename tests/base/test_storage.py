"""Inputs and outputs by URL: the same bytes as from local files, and errors of one line."""

import gzip
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from tests.inference.small_models import save_small
from typer.testing import CliRunner

import bertie
from bertie.base import storage
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.storage import RemotePath, as_path
from bertie.commands.main import app
from bertie.corpus import input_splits
from bertie.corpus.prepared import Corpus
from bertie.corpus.readers import list_inputs
from bertie.corpus.remote_corpora import fetch_corpus
from bertie.inference.records import read_records
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

WORDS = ["all", "is", "well", "in", "this", "town", "."]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make texts of several formats and a tokenizer, with a cache and tasks for the test only."""
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS])).save(tmp_path / "tokenizer")
    text = tmp_path / "text"
    (text / ".hidden").mkdir(parents=True)
    (text / ".hidden/x.txt").write_text("Not read.")
    lines = [json.dumps({"text": " ".join(WORDS[: i % 7]) + " ." * i}) + "\n" for i in range(60)]
    (text / "a.jsonl").write_text("".join(lines[:40]))
    (text / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[30:]).encode()))
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["All is well.", "Is this town in?"]}), text / "c.parquet"
    )
    monkeypatch.setattr(input_splits, "TASK_BYTES", 1000)
    monkeypatch.setattr(storage, "cache_root", lambda: tmp_path / "cache")
    return tmp_path


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """Return the file system of memory:// URLs, which is emptied afterwards."""
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def put(fs: fsspec.AbstractFileSystem, source: Path, target: str) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            fs.pipe_file(f"{target}/{file.relative_to(source)}", file.read_bytes())


def read_tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_squads_json_is_read_from_a_url(memory: fsspec.AbstractFileSystem) -> None:
    paragraph = {"context": "A cat sat.", "qas": [{"id": "q1", "question": "Who sat?"}]}
    memory.pipe_file("/dev.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}).encode())
    (record,) = read_records(RemotePath("memory://dev.json"), "squad", {"question": "q", "context": "c"})
    assert record.row == {"id": "q1", "q": "Who sat?", "c": "A cat sat."}
    assert record.texts == ("Who sat?", "A cat sat.")
    assert record.location == "memory://dev.json, question q1"


def test_urls_give_the_bytes_of_local_files(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    put(memory, folder / "text", "/data/text")
    options = {"tokenizer": folder / "tokenizer", "workers": 1, "held_out": 0.1}
    local = bertie.prepare(folder / "text", out=folder / "local", **options)
    remote = bertie.prepare("memory://data/text", out="memory://data/corpus", **options)
    assert read_tree(remote.path) == read_tree(folder / "local") == read_tree(local.path)
    written = {name.removeprefix("/data/corpus/") for name in memory.find("/data/corpus")}
    assert written == read_tree(remote.path).keys()
    shutil.rmtree(folder / "cache")
    again = Corpus.open(fetch_corpus(RemotePath("memory://data/corpus")))
    again.verify()
    assert again.manifest == local.manifest
    with pytest.raises(SettingsError, match="memory://data/corpus: exists already"):
        bertie.prepare("memory://data/text/*.jsonl", out="memory://data/corpus", **options)
    with pytest.raises(SettingsError, match="pass workers=1"):
        bertie.prepare("memory://data/text", out=folder / "x", tokenizer=folder / "tokenizer", workers=2)
    words = [
        bertie.learn_vocabulary(text, size=120, workers=1).vocabulary.tokens
        for text in ("memory://data/text", folder / "text", (folder / "text").as_uri())
    ]
    assert words[0] == words[1] == words[2]


def test_damaged_remote_corpus_is_not_used(
    folder: Path, memory: fsspec.AbstractFileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"tokenizer": folder / "tokenizer", "workers": 1}
    bertie.prepare(folder / "text", out="memory://data/corpus", **options)
    shutil.rmtree(folder / "cache")
    capsys.readouterr()
    fetch_corpus(RemotePath("memory://data/corpus"))
    assert "copying memory://data/corpus (" in capsys.readouterr().err
    copy = fetch_corpus(RemotePath("memory://data/corpus"))
    assert capsys.readouterr().err == ""
    (copy / "train-00000/tokens.bin").write_bytes(b"damage")
    Corpus.open(fetch_corpus(RemotePath("memory://data/corpus"))).verify()
    assert "copying memory://data/corpus (" in capsys.readouterr().err
    memory.pipe_file("/data/corpus/train-00000/tokens.bin", b"damage")
    shutil.rmtree(folder / "cache")
    with pytest.raises(DataError, match=r"memory://data/corpus/train-00000/tokens\.bin: damaged"):
        fetch_corpus(RemotePath("memory://data/corpus"))
    memory.rm_file("/data/corpus/manifest.json")
    with pytest.raises(DataError, match="memory://data/corpus: not a prepared corpus"):
        fetch_corpus(RemotePath("memory://data/corpus"))


def test_cut_upload_leaves_nothing_that_is_believed(
    folder: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"tokenizer": folder / "tokenizer", "workers": 1}
    put_file, calls = type(memory).put_file, []

    def put_or_fail(self: fsspec.AbstractFileSystem, source: str, target: str, **more: object) -> None:
        calls.append(target)
        if len(calls) % 5 == 4:
            raise ConnectionError("reset by peer")
        put_file(self, source, target, **more)

    bertie.prepare(folder / "text/a.jsonl", out="memory://data/corpus", **options)
    monkeypatch.setattr(type(memory), "put_file", put_or_fail)
    with pytest.raises(BertieError, match=r"memory://data/corpus: cannot be .* run the command again"):
        bertie.prepare(folder / "text", out="memory://data/corpus", force=True, **options)
    assert memory.find("/data/corpus")
    with pytest.raises(DataError, match="memory://data/corpus: not a prepared corpus"):
        fetch_corpus(RemotePath("memory://data/corpus"))
    monkeypatch.undo()
    monkeypatch.setattr(storage, "cache_root", lambda: folder / "cache")
    bertie.prepare(folder / "text", out="memory://data/corpus", **options)
    shutil.rmtree(folder / "cache")
    Corpus.open(fetch_corpus(RemotePath("memory://data/corpus"))).verify()


def test_threads_fetch_whole_folders(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    for number in range(8):
        memory.pipe(f"/data/many/{number}", b"x")

    def fetch(_: int) -> bytes:
        copy = storage.fetch_directory(RemotePath("memory://data/many"))
        return b"".join((copy / str(number)).read_bytes() for number in range(8))

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(fetch, range(20))) == {b"x" * 8}


def test_a_fetched_folder_keeps_its_content(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    """While one caller reads it, another may fetch the folder of the URL, which has changed."""
    copies = []
    for content in (b"old", b"old", b"new"):
        memory.pipe("/data/changing/file", content)
        copies.append(storage.fetch_directory(RemotePath("memory://data/changing")))
    assert copies[0] == copies[1]
    assert [(copy / "file").read_bytes() for copy in copies] == [b"old", b"old", b"new"]
    assert len([*copies[0].parent.iterdir()]) == 2


def test_only_the_files_of_the_folder_itself_are_fetched(
    folder: Path, memory: fsspec.AbstractFileSystem
) -> None:
    for name, content in {"config.json": b"new", "old/config.json": b"old", "old/vocab.txt": b"old"}.items():
        memory.pipe(f"/data/model/{name}", content)
    assert read_tree(storage.fetch_directory(RemotePath("memory://data/model"))) == {"config.json": b"new"}


def test_tokenizers_have_urls(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    url, options = "memory://data/words", {"size": 120, "workers": 1}
    bertie.learn_vocabulary(folder / "text", folder / "words", **options)
    for again in ({}, {"force": True}):
        bertie.learn_vocabulary(folder / "text", url, **options, **again)
        assert read_tree(storage.fetch_directory(RemotePath(url))) == read_tree(folder / "words")
    with pytest.raises(SettingsError, match="memory://data/words: exists already; choose another URL"):
        bertie.learn_vocabulary(folder / "text", url, **options)
    assert not list((folder / "cache").glob("remote/*/words"))
    corpora = [
        bertie.prepare(folder / "text", tokenizer=words, out=folder / f"corpus{i}", workers=1)
        for i, words in enumerate((folder / "words", url))
    ]
    assert corpora[0].manifest == corpora[1].manifest
    with pytest.raises(DataError, match="memory://data/nothing: no such file or folder"):
        bertie.prepare(folder / "text", tokenizer="memory://data/nothing", out=folder / "x", workers=1)


@pytest.mark.parametrize("suffix", ["txt", "csv", "jsonl", "parquet"])
@pytest.mark.parametrize("command", ["predict", "embed", "features"])
def test_models_read_and_write_urls(
    folder: Path, memory: fsspec.AbstractFileSystem, command: str, suffix: str
) -> None:
    model = save_small(folder, "classifier")
    texts = ["the cat sat", "a dog ran"]
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / "in.parquet")
    else:
        lines = [json.dumps({"text": text}) for text in texts] if suffix == "jsonl" else texts
        lines = ["text", *lines] if suffix == "csv" else lines
        (folder / f"in.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    memory.put_file(str(folder / f"in.{suffix}"), f"/data/in.{suffix}")
    out = {"predict": "out.jsonl", "embed": "out.parquet", "features": "out.parquet"}[command]
    for place in (str(folder), "memory://data"):
        arguments = [command, str(model), "--input", f"{place}/in.{suffix}", "--out", f"{place}/{out}"]
        result = CliRunner().invoke(app, arguments)
        assert not result.exception, result.exception
    assert memory.cat_file(f"/data/{out}") == (folder / out).read_bytes()
    assert str(CliRunner().invoke(app, arguments).exception).startswith(
        f"memory://data/{out}: exists already"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["pretrain", "--corpus", "corpus", "--out", "s3://data/run"],
        ["reproduce", "table5", "--data", "data", "--text", "text", "--out", "s3://data/run"],
        ["convert", "model", "s3://data/model", "--to", "huggingface"],
        ["prepare", "text", "--tokenizer", "tokenizer", "--part", "1/2", "--out", "s3://data/corpus"],
        ["predict", "s3://data/model", "--text", "a"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_other_urls_are_refused_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(folder)
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, BertieError)
    assert str(error).startswith("s3:/")
    if arguments[0] in ("pretrain", "reproduce", "convert"):
        assert str(error).endswith("this output cannot be a URL; write to a local path and copy it")
    if arguments[0] != "prepare":
        assert "s3://data/" in str(error)
    assert len(str(error).splitlines()) == 1
    assert not Path("s3:").exists()


def test_bucket_is_missed_before_the_work(
    folder: Path, memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory://` has no buckets, so writing fails as in S3 without one."""

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    for name in ("pipe_file", "put_file"):
        monkeypatch.setattr(type(memory), name, refuse)
    missing = r"cannot be written \(The specified bucket does not exist\); create the bucket"
    with pytest.raises(BertieError, match=f"memory://none/corpus: {missing}"):
        bertie.prepare(folder / "text", tokenizer=folder / "tokenizer", out="memory://none/corpus", workers=1)
    with pytest.raises(BertieError, match=f"memory://none/words: {missing}"):
        bertie.learn_vocabulary(folder / "text", "memory://none/words", size=120, workers=1)
    assert not (folder / "cache").exists()


def test_changed_and_missing_files_are_one_line(folder: Path, memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/data/a.txt", b"All is well.")
    (file,) = list_inputs(["memory://data/*.txt"])
    memory.pipe_file("/data/a.txt", b"All is not well.")
    with pytest.raises(BertieError, match=r"memory://data/a\.txt: changed after this command had listed it"):
        file.open("rb")
    (file,) = list_inputs(["memory://data/*.txt"])
    of_a_worker = pickle.loads(pickle.dumps(file))
    memory.pipe_file("/data/a.txt", b"All is not good.")  # of the same size
    for path in (file, of_a_worker):
        with pytest.raises(BertieError, match=r"memory://data/a\.txt: changed after this command"):
            path.open("rb")
    with pytest.raises(DataError, match=r"memory://data/none: no such file or folder"):
        list_inputs(["memory://data/none"])
    with pytest.raises(SettingsError, match="nosuch://x: unknown protocol"):
        list_inputs(["nosuch://x"])


def test_metadata_and_caches_of_a_remote_data_set_are_not_listed(memory: fsspec.AbstractFileSystem) -> None:
    for name in ("data-0.arrow", "cache-1.arrow", "dataset_info.json", "state.json"):
        memory.pipe_file(f"/data/set/train/{name}", b"x")
    memory.pipe_file("/data/set/dataset_dict.json", b"x")
    assert list(map(str, list_inputs(["memory://data/set"]))) == ["memory://data/set/train/data-0.arrow"]


class NoCredentialsError(Exception):
    """The name of botocore's error."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            PermissionError("Forbidden\nRequest 7"),
            "access denied (Forbidden); check the credentials and the permissions",
        ),
        (NoCredentialsError("Unable to locate"), "no valid credentials (Unable to locate); set them up"),
        (
            ConnectionError(),
            "cannot be read or written (ConnectionError: ConnectionError); check the URL and the connection, "
            "then run the command again",
        ),
    ],
)
def test_errors_of_a_store_are_one_line(error: Exception, message: str) -> None:
    with pytest.raises(BertieError) as raised, storage.remote_errors(RemotePath("s3://bucket/a")):
        raise error
    assert str(raised.value) == f"s3://bucket/a: {message}"


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(BertieError, match=r"gs://bucket/a: gs:// needs another package; pip install gcsfs"):
        list_inputs(["gs://bucket/a"])


def test_url_keeps_its_form() -> None:
    path = as_path("s3://bucket/folder/a.jsonl.gz")
    assert (str(path), str(path.parent), path.suffix) == (
        "s3://bucket/folder/a.jsonl.gz",
        "s3://bucket/folder",
        ".gz",
    )
    assert str(path.absolute()) == str(path)
    assert not isinstance(as_path("folder/a:b"), RemotePath)


@pytest.mark.parametrize("path", ["/a/b.txt", "/a b/100 %/é.txt", "/a%20b"])
def test_url_of_a_local_file_is_its_path(path: str) -> None:
    assert as_path(Path(path).as_uri()) == Path(path)
    assert as_path(Path(path).as_uri().replace("//", "//localhost", 1)) == Path(path)
    assert not isinstance(as_path(f"FILE://{path}"), RemotePath)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert [as_path("~/a"), as_path("~"), as_path("./~")] == [Path("/home/me/a"), Path("/home/me"), Path("~")]
    assert as_path(Path("./~/a")) == Path("~/a")  # a folder with this name
    assert as_path("~ 2 drafts.txt") == Path("~ 2 drafts.txt")


def test_local_files_need_no_fsspec(folder: Path) -> None:
    script = (
        f"import sys, bertie; bertie.prepare({str(folder / 'text/a.jsonl')!r}, tokenizer="
        f"{str(folder / 'tokenizer')!r}, out={str(folder / 'out')!r}, workers=1); "
        "sys.exit('fsspec' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


@pytest.fixture(params=[{}])
def s3(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator["S3Server"]:
    """A server with these variables in its environment."""
    pytest.importorskip("moto.server", reason="needs moto[server], see make test-cloud")
    pytest.importorskip("s3fs")
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = S3Server(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    server.start()
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # each has its endpoint
    yield server
    server.stop()


class S3Server:
    """moto's server, on a free port."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(
            command,
            env=os.environ | self.variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def put(self, source: Path) -> fsspec.AbstractFileSystem:
        fs = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
        fs.mkdir("data")
        put(fs, source, "data/text")
        return fs


@pytest.mark.slow
def test_s3_gives_the_bytes_of_local_files_also_after_the_server_was_killed(
    folder: Path, s3: S3Server
) -> None:
    s3.put(folder / "text")
    options = {"tokenizer": folder / "tokenizer", "held_out": 0.1}
    local = bertie.prepare(folder / "text", out=folder / "local", workers=1, **options)
    remote = bertie.prepare("s3://data/text", out="s3://data/corpus", workers=2, **options)
    assert read_tree(remote.path) == read_tree(local.path)

    parts = folder / "again/parts"
    script = f"""
import bertie
from bertie.commands.main import app
from bertie.corpus import input_splits
input_splits.TASK_BYTES = 1000
bertie.prepare("s3://data/text", tokenizer={str(folder / "tokenizer")!r}, out={str(folder / "again")!r},
    held_out=0.1, workers=1)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    while not list(parts.glob("0*")):
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(s3.process.pid, signal.SIGKILL)
    _, error = process.communicate()
    assert process.returncode
    line = error.splitlines()[-1]
    assert "s3://data/text/" in line
    assert "cannot be read or written" in line
    s3.stop()
    s3.start()
    with pytest.raises(DataError, match="s3://data/text: no such file or folder"):
        bertie.prepare("s3://data/text", out=folder / "again", workers=1, **options)
    s3.put(folder / "text")  # the server keeps objects in memory, so their times are new
    bertie.prepare("s3://data/text", out=folder / "again", workers=1, **options)
    assert read_tree(folder / "again") == read_tree(local.path)


@pytest.mark.slow
def test_refusals_of_s3_are_one_line(folder: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="s3://nobucket/text: no such file or folder"):
        list_inputs(["s3://nobucket/text"])
    with pytest.raises(BertieError, match=r"s3://nobucket/corpus: cannot be written .* create the bucket"):
        bertie.prepare(folder / "text", tokenizer=folder / "tokenizer", out="s3://nobucket/corpus", workers=1)
    with pytest.raises(BertieError, match=r"s3://nobucket/words: cannot be written .* create the bucket"):
        bertie.learn_vocabulary(folder / "text", "s3://nobucket/words", size=120, workers=1)
    assert not (folder / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize("s3", [{"INITIAL_NO_AUTH_ACTION_COUNT": "0"}], indirect=True)
def test_credentials_that_s3_refuses_are_one_line(
    folder: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = r"s3://data/\S+: access denied \(.*\); check the credentials and the permissions"
    options = {"tokenizer": folder / "tokenizer", "workers": 1}
    with pytest.raises(BertieError, match=refused):
        bertie.prepare("s3://data/text", out=folder / "corpus", **options)
    with pytest.raises(BertieError, match=refused):
        bertie.prepare(folder / "text", out="s3://data/corpus", **options)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(folder / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(BertieError, match=r"s3://data/\S+: no valid credentials \(Unable to locate"):
        bertie.prepare("s3://data/text", out=folder / "corpus", **options)


@pytest.mark.slow
def test_killed_upload_to_s3_leaves_nothing_that_is_believed(folder: Path, s3: S3Server) -> None:
    fs = s3.put(folder / "text")
    script = f"""
import os, signal, s3fs
import bertie
from bertie.corpus import input_splits
input_splits.TASK_BYTES = 1000
put_file, calls = s3fs.S3FileSystem.put_file, []
def put_or_die(*arguments, **options):
    calls.append(0)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    put_file(*arguments, **options)
s3fs.S3FileSystem.put_file = put_or_die
bertie.prepare("s3://data/text", tokenizer={str(folder / "tokenizer")!r}, out="s3://data/corpus", workers=1)
"""
    environment = os.environ | {"BERTIE_CACHE": str(folder / "cache")}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(fs.find("data/corpus")) == 3
    with pytest.raises(DataError, match="s3://data/corpus: not a prepared corpus"):
        fetch_corpus(RemotePath("s3://data/corpus"))
    options = {"tokenizer": folder / "tokenizer", "workers": 1}
    local = bertie.prepare(folder / "text", out=folder / "local", **options)
    again = bertie.prepare("s3://data/text", out="s3://data/corpus", **options)
    assert read_tree(again.path) == read_tree(local.path)
