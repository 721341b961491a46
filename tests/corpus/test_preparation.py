"""Preparation follows its definition, with the same bytes after any interruption."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.locks import lock_directory
from bertie.corpus import assembly, input_splits, preparation, preparation_plan, readers, word_counts
from bertie.corpus.part_writer import write_hashes
from bertie.corpus.preparation import PreparationOptions, prepare, prepare_part, read_skipped
from bertie.corpus.prepared import Corpus
from bertie.corpus.readers import list_inputs
from bertie.corpus.shards import Shard, cut_blocks
from bertie.text.sentences import split_sentences
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary
from bertie.text.wordpiece_trainer import learn_vocabulary

WORDS = ["Ab", "cdé", "ef", "ghi", "jk", "l", "mno"]
HOLD_OUT_A_TENTH = PreparationOptions(held_out=0.1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    words = [word.lower().replace("é", "e") for word in [*WORDS, "."]]
    Tokenizer(Vocabulary(learn_vocabulary(words, [2] * len(words), 60))).save(path)
    return path


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Make 300 documents: among them duplicates, empty ones, and a long one."""
    generator = random.Random(0)
    texts = []
    for number in range(300):
        sentences = [
            " ".join(generator.choices(WORDS, k=generator.randint(1, 9))).capitalize() + "."
            for _ in range(generator.randint(1, 9) if number != 150 else 500)
        ]
        texts.append("\n".join(sentences))
    texts[7] = texts[6]
    texts[280] = texts[290] = texts[3]
    texts[40], texts[41], texts[42] = "", " \n", "\u200b\n\ufffd"  # the last has sentences, but no tokens
    texts[50] += "\n\u200b"
    return texts


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> list[Path]:
    folder = tmp_path_factory.mktemp("inputs")
    for number, (start, stop) in enumerate([(0, 10), (10, 250), (250, 300)]):
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts[start:stop]]
        (folder / f"{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    return list_inputs([folder])


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_splits, "TASK_BYTES", 4000)


def list_documents(shards: list[Shard]) -> list[tuple[tuple[int, ...], ...]]:
    """Return the documents of shards as sentences of ids."""
    documents = []
    for shard in shards:
        sentences = [tuple(ids.tolist()) for ids in np.split(shard.tokens, shard.sentence_ends)[:-1]]
        ends = shard.document_ends.tolist()
        documents += [tuple(sentences[start:end]) for start, end in pairwise([0, *ends])]
    return documents


def read_tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def expected(
    tmp_path_factory: pytest.TempPathFactory, inputs: list[Path], tokenizer: Path
) -> dict[str, bytes]:
    """Return the files that an uninterrupted run on one worker writes."""
    output = tmp_path_factory.mktemp("expected") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_splits, "TASK_BYTES", 4000)
        prepare(inputs, tokenizer, output, 1, HOLD_OUT_A_TENTH)
    return read_tree(output)


def test_corpus_follows_its_definition(
    tmp_path: Path, inputs: list[Path], texts: list[str], tokenizer: Path
) -> None:
    manifest = prepare(inputs, tokenizer, tmp_path / "corpus", 1, HOLD_OUT_A_TENTH)
    corpus = Corpus.open(tmp_path / "corpus")
    corpus.verify()
    assert corpus.manifest == manifest
    assert Tokenizer.load(corpus.tokenizer_directory).fingerprint == manifest.tokenizer_fingerprint

    reference = Tokenizer.load(tokenizer)
    expected = []
    for text in dict.fromkeys(texts):
        encoded = [reference.encode_batch([s], add_special_tokens=False) for s in split_sentences(text)]
        document = tuple(tuple(e.input_ids.tolist()) for e in encoded if len(e.input_ids))
        if document:
            expected.append(document)
    train, held_out = list_documents(corpus.train), list_documents(corpus.held_out)
    assert sorted(train + held_out) == sorted(expected)
    assert train == [document for document in expected if document in set(train)], "order of the inputs"
    assert 10 < len(held_out) < 60  # of 294, at 0.1
    assert not set(train) & set(held_out)
    assert (manifest.train.documents, manifest.held_out.documents) == (len(train), len(held_out))
    assert manifest.train.sentences == sum(map(len, train))
    assert manifest.train.tokens == sum(len(sentence) for document in train for sentence in document)
    assert manifest.duplicates_dropped == len(texts) - manifest.empty_documents_dropped - len(expected) >= 3
    assert manifest.empty_documents_dropped == 3
    assert manifest.empty_sentences_dropped == 3
    assert {file.name for file in (tmp_path / "corpus").iterdir()} == {
        *("manifest.json", "tokenizer", "train-00000", "held_out-00000")
    }


@pytest.mark.parametrize("workers", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_number_of_workers_does_not_change_the_bytes(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, expected: dict[str, bytes], workers: int
) -> None:
    prepare(inputs, tokenizer, tmp_path / "corpus", workers, HOLD_OUT_A_TENTH)
    assert read_tree(tmp_path / "corpus") == expected


def test_killed_worker_does_not_change_the_bytes(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, expected: dict[str, bytes]
) -> None:
    killed = []

    def kill_one() -> None:
        parts = tmp_path / "corpus/parts"
        while not list(parts.glob("0*")):
            time.sleep(0.001)
        worker = multiprocessing.active_children()[0]
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        killed.append(worker.pid)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    prepare(inputs, tokenizer, tmp_path / "corpus", 2, HOLD_OUT_A_TENTH)
    killer.join()
    assert killed
    assert read_tree(tmp_path / "corpus") == expected


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
from typing import Any
from bertie.corpus import assembly, input_splits, part_writer, preparation

input_splits.TASK_BYTES = 4000
name, calls = sys.argv[1:3]
module = assembly if name == "_assemble_shard" else part_writer
function = getattr(module, name)
remaining = int(calls)

def die_at_last_call(*arguments):
    global remaining
    remaining -= 1
    if remaining == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)

setattr(module, name, die_at_last_call)
options = preparation.PreparationOptions(held_out=0.1)
preparation.prepare([Path(p) for p in sys.argv[5:]], Path(sys.argv[3]), Path(sys.argv[4]), 1, options)
"""


@pytest.mark.parametrize(("function", "calls"), [("write_hashes", 3), ("_assemble_shard", 2)])
def test_killed_run_resumes(
    tmp_path: Path,
    inputs: list[Path],
    tokenizer: Path,
    expected: dict[str, bytes],
    function: str,
    calls: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "corpus"
    arguments = [function, str(calls), str(tokenizer), str(output), *map(str, inputs)]
    command = [sys.executable, "-c", KILLED_RUN, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(bertie.__file__).parents[1])}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    finished_parts = len(list((output / "parts").glob("0*")))
    assert finished_parts
    with pytest.raises(DataError, match="not a prepared corpus"):
        Corpus.open(output)

    written = []
    write_part = preparation.write_part
    monkeypatch.setattr(preparation, "write_part", lambda *a: (written.append(a), write_part(*a)))
    prepare(inputs, tokenizer, output, 1, HOLD_OUT_A_TENTH)
    assert read_tree(output) == expected
    assert len(written) == len(input_splits.split_inputs(inputs)) - finished_parts


def test_run_killed_after_the_manifest_leaves_no_parts(
    tmp_path: Path,
    inputs: list[Path],
    tokenizer: Path,
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = (inputs, tokenizer, tmp_path / "corpus", 1, HOLD_OUT_A_TENTH)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "remove_directory", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(*arguments)
    assert (tmp_path / "corpus/parts").exists()
    manifest = prepare(*arguments)
    assert manifest == Corpus.open(tmp_path / "corpus").manifest
    assert read_tree(tmp_path / "corpus") == expected


def test_temporary_files_of_killed_workers_are_removed(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assemble = preparation.assemble_shards

    def leave_a_file(parts: Any, output: Path, workers: Any) -> Any:
        (output / ".train-00000.0123.bertie-tmp").mkdir()
        return assemble(parts, output, workers)

    monkeypatch.setattr(preparation, "assemble_shards", leave_a_file)
    prepare(inputs, tokenizer, tmp_path / "corpus", 1)
    assert not list((tmp_path / "corpus").glob(".*"))


def test_run_does_not_resume_after_a_change(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / file.name for file in inputs]
    for file, copy in zip(inputs, files, strict=True):
        copy.write_bytes(file.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "assign_documents", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(files, tokenizer, tmp_path / "corpus", 1)

    def assert_refused(**options: Any) -> None:
        with pytest.raises(DataError, match="an unfinished corpus of other inputs or settings"):
            prepare(files, tokenizer, tmp_path / "corpus", 1, PreparationOptions(**options))

    for change in ({"column": "body"}, {"format": "jsonl"}, {"language": "de"}):
        assert_refused(**change)
    with monkeypatch.context() as patch:
        patch.setattr(preparation_plan, "__version__", "0.0")
        assert_refused()
    status = files[1].stat()
    os.utime(files[1], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert_refused()
    content = files[1].read_bytes()
    files[1].write_bytes(content + b"\n")
    os.utime(files[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert_refused()
    files[1].write_bytes(content)
    os.utime(files[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert prepare(files, tokenizer, tmp_path / "corpus", 1)


def test_another_process_that_prepares_there_is_an_error(
    tmp_path: Path, inputs: list[Path], tokenizer: Path
) -> None:
    """A lock of another thread is a lock of another process."""
    with (
        lock_directory(tmp_path / "corpus"),
        ThreadPoolExecutor(1) as thread,
        pytest.raises(BertieError, match="another bertie process is writing here"),
    ):
        thread.submit(prepare, inputs, tokenizer, tmp_path / "corpus", 1).result()


def test_batch_and_bucket_sizes_do_not_change_the_bytes(
    tmp_path: Path,
    inputs: list[Path],
    tokenizer: Path,
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(word_counts, "BATCH_CHARACTERS", 500)
    monkeypatch.setattr(assembly, "BUCKET_DOCUMENTS", 16)
    monkeypatch.setattr(assembly, "RUN_PARTS", 2)
    monkeypatch.setattr(assembly, "COPY_TOKENS", 40)
    prepare(inputs, tokenizer, tmp_path / "corpus", 1, HOLD_OUT_A_TENTH)
    assert read_tree(tmp_path / "corpus") == expected


def test_shards_are_even_and_hold_enough_documents(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare(inputs, tokenizer, tmp_path / "whole", workers=1)
    monkeypatch.setattr(assembly, "SHARD_TOKENS", whole.train.tokens // 7)
    monkeypatch.setattr(assembly, "MIN_SHARD_DOCUMENTS", 20)
    prepare(inputs, tokenizer, tmp_path / "cut", workers=1)
    corpus = Corpus.open(tmp_path / "cut")
    assert len(corpus.train) == 7
    assert list_documents(corpus.train) == list_documents(Corpus.open(tmp_path / "whole").train)
    assert min(len(shard.document_ends) for shard in corpus.train) >= 20
    for shard in corpus.train:
        assert shard.block_ends.tolist() == cut_blocks(shard).tolist()
    sizes = sorted(len(shard.tokens) for shard in corpus.train)
    assert sizes[0] > 0.5 * sizes[-2]  # one shard is longer because of the longest document

    monkeypatch.setattr(assembly, "MAX_SHARDS", 3)
    prepare(inputs, tokenizer, tmp_path / "three", workers=1)
    assert len(Corpus.open(tmp_path / "three").train) == 3

    monkeypatch.setattr(assembly, "MIN_SHARD_DOCUMENTS", 140)
    prepare(inputs, tokenizer, tmp_path / "few", workers=1)
    assert [len(s.document_ends) >= 140 for s in Corpus.open(tmp_path / "few").train] == [True, True]


def test_held_out_documents_do_not_depend_on_input_order(
    tmp_path: Path, inputs: list[Path], tokenizer: Path
) -> None:
    prepare(inputs, tokenizer, tmp_path / "forward", 1, HOLD_OUT_A_TENTH)
    prepare(inputs[::-1], tokenizer, tmp_path / "backward", 1, HOLD_OUT_A_TENTH)
    forward, backward = (Corpus.open(tmp_path / name).held_out for name in ("forward", "backward"))
    assert sorted(list_documents(forward)) == sorted(list_documents(backward))


@pytest.mark.parametrize(
    ("documents", "held_out", "counts"),
    [(25, 1e-9, (23, 2)), (25, 0.0, (25, 0)), (5, 1e-9, (5, 0)), (3, 0.999999, (1, 2)), (1, 0.5, (1, 0))],
)
def test_small_corpora_hold_out_two_documents_or_none(
    tmp_path: Path, tokenizer: Path, documents: int, held_out: float, counts: tuple[int, int]
) -> None:
    lines = [json.dumps({"text": f"ab {'ef ' * number}"}) + "\n" for number in range(documents)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    manifest = prepare(
        [tmp_path / "a.jsonl"], tokenizer, tmp_path / "corpus", 1, PreparationOptions(held_out)
    )
    assert (manifest.train.documents, manifest.held_out.documents) == counts


@pytest.mark.parametrize("bucket_documents", [1, 1000])
def test_lowest_hashes_are_held_out_and_the_highest_is_not(
    tmp_path: Path, bucket_documents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "BUCKET_DOCUMENTS", bucket_documents)
    for held_out, expected in ((1e-9, [23, 24]), (1 - 1e-9, [*range(1, 25)])):
        folder = tmp_path / str(held_out)
        (folder / "000000").mkdir(parents=True)
        hashes = np.arange(25, dtype=np.uint64)[::-1] * np.uint64(2**64 // 25) + np.uint64(2**59)
        write_hashes(folder / "000000", np.stack([hashes, hashes], axis=1))
        parts = assembly.Parts(folder, np.array([0, 25]), vocabulary_size=100)
        assembly.assign_documents(parts, held_out)
        assert np.flatnonzero(parts.read_assignments() == assembly.HELD_OUT).tolist() == expected


def test_pieces_of_long_documents_do_not_change_the_bytes(
    tmp_path: Path, texts: list[str], tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number, text in enumerate([*texts[:60], "\n".join(texts[60:])]):
        (tmp_path / f"in/{number:03}.txt").write_bytes(text.encode())
    inputs = list_inputs([tmp_path / "in"])
    whole = prepare(inputs, tokenizer, tmp_path / "whole", 1, PreparationOptions(format="plain"))
    monkeypatch.setattr(readers, "PIECE_CHARACTERS", 40)
    monkeypatch.setattr(word_counts, "BATCH_CHARACTERS", 100)
    pieces = prepare(inputs, tokenizer, tmp_path / "pieces", 1, PreparationOptions(format="plain"))
    assert pieces == whole
    assert whole.duplicates_dropped == 1
    assert whole.empty_documents_dropped == 1  # "\u200b\n\ufffd"; the other two empty texts are empty files
    assert whole.skipped == {"empty_files": 2}
    assert read_tree(tmp_path / "pieces") == read_tree(tmp_path / "whole")


def test_dropped_documents_are_reported(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, text in enumerate(["Ab ef.", "Ab ef.", "\u200b", "Ab."]):
        (tmp_path / f"{number}.txt").write_text(text)
    bertie.prepare(sorted(tmp_path.iterdir()), tokenizer=tokenizer, out=tmp_path / "out", workers=1)
    assert "dropped: 1 duplicate and 1 empty documents\n" in capsys.readouterr().err


def test_run_stopped_by_bad_input_resumes_and_skips_it(
    tmp_path: Path, inputs: list[Path], tokenizer: Path
) -> None:
    (tmp_path / "good.jsonl").write_bytes(inputs[0].read_bytes())
    (tmp_path / "empty.txt").touch()
    (tmp_path / os.fsdecode(b"picture\xff.png")).write_bytes(b"\x89PNG\0")
    bad = inputs[1].read_bytes().replace(b'{"text"', b'{"text', 2)
    (tmp_path / "bad.jsonl").write_bytes(bad)
    files = list_inputs([tmp_path])
    output = tmp_path / "corpus"
    with pytest.raises(DataError, match=r"bad\.jsonl, line 1: not valid JSON"):
        prepare(files, tokenizer, output, workers=1)
    manifest = prepare(files, tokenizer, output, 2, PreparationOptions(on_error="skip"))
    assert manifest.skipped == {"binary_files": 1, "empty_files": 1, "malformed_documents": 2}
    skipped = [line.removeprefix(str(tmp_path)).split(" ")[:3] for line in read_skipped(output)]
    assert skipped == [
        ["/bad.jsonl,", "line", "1:"],
        ["/bad.jsonl,", "line", "2:"],
        ["/empty.txt:", "the", "file"],
        ["/picture\udcff.png:", "a", "binary,"],
    ]
    clean = tmp_path / "clean.jsonl"
    clean.write_bytes(b"".join(bad.splitlines(keepends=True)[2:]))
    expected = prepare([clean, tmp_path / "good.jsonl"], tokenizer, tmp_path / "clean", workers=1)
    assert manifest == expected.model_copy(update={"skipped": manifest.skipped})


def before_each_part(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function before each part of a corpus is written."""
    write_part = preparation.write_part

    def act_and_write(*arguments: Any) -> Any:
        act()
        return write_part(*arguments)

    monkeypatch.setattr(preparation, "write_part", act_and_write)


@pytest.mark.parametrize("jobs", [0, 2])
def test_input_that_changes_while_it_is_read_is_reported(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    file, output = tmp_path / "a.jsonl", tmp_path / "corpus"
    file.write_bytes(inputs[0].read_bytes())
    before_each_part(monkeypatch, lambda: file.write_bytes(inputs[0].read_bytes() * 2))
    remedy = "remove .*corpus and run all parts again" if jobs else "run again with --force"
    command = partial(prepare_part, job=1, jobs=jobs, options=PreparationOptions()) if jobs else prepare
    with pytest.raises(DataError, match=rf"a\.jsonl: changed after it was listed; {remedy}"):
        command([file], tokenizer, output, workers=1)


@pytest.mark.parametrize("jobs", [0, 2])
def test_input_that_is_removed_before_it_is_read_may_be_restored(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    file, output = tmp_path / "a.jsonl", tmp_path / "corpus"
    file.write_bytes(inputs[0].read_bytes())
    command = partial(prepare_part, job=1, jobs=jobs, options=PreparationOptions()) if jobs else prepare
    remedy = "remove .*corpus and run all parts again" if jobs else r"run again with --force \(force=True\)"
    expected = (
        rf"a\.jsonl: removed after it was listed; restore it and run the same command again; without it, "
        rf"{remedy}$"
    )
    with monkeypatch.context() as patched:
        before_each_part(patched, lambda: file.rename(tmp_path / "b.jsonl"))
        with pytest.raises(DataError, match=expected):
            command([file], tokenizer, output, workers=1)
    (tmp_path / "b.jsonl").rename(file)
    command([file], tokenizer, output, workers=1)
    assert (output / ("parts/000000" if jobs else "manifest.json")).exists()


def test_a_skipped_file_has_one_line_whatever_its_name(
    tmp_path: Path, inputs: list[Path], tokenizer: Path
) -> None:
    (tmp_path / "bad\nname.txt").write_bytes(b"\0\1\2")
    output = tmp_path / "corpus"
    prepare(
        [inputs[0], tmp_path / "bad\nname.txt"], tokenizer, output, 1, PreparationOptions(on_error="skip")
    )
    (line,) = read_skipped(output)
    assert line.startswith(str(tmp_path / r"bad\nname.txt"))


def test_error_without_text_names_the_first_skipped_input(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"^the inputs contain no text \(.*a\.txt: a binary, PDF or RTF"):
        prepare([tmp_path / "a.txt"], tokenizer, tmp_path / "corpus", 1, PreparationOptions(on_error="skip"))


def test_inputs_without_text_leave_no_output(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": " "}\n')
    with pytest.raises(DataError, match=r"no text \(the first one is .*a\.jsonl\); add"):
        prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path / "corpus", workers=1)
    assert not (tmp_path / "corpus").exists()


def test_inputs_without_text_keep_an_existing_folder(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": " "}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(DataError, match=r"no text \(the first one is .*a\.jsonl\); add"):
        prepare([tmp_path / "a.jsonl"], tokenizer, tmp_path / "link", workers=1)
    assert list((tmp_path / "folder").iterdir()) == []


def test_held_out_fraction_must_be_below_one(tmp_path: Path, inputs: list[Path], tokenizer: Path) -> None:
    with pytest.raises(SettingsError, match=r"held_out = 1\.5: expected a fraction"):
        prepare(inputs, tokenizer, tmp_path / "corpus", 1, PreparationOptions(held_out=1.5))


@pytest.mark.parametrize("existing", ["corpus", "parts", "files", "hidden", "temporary", "file"])
def test_existing_output_is_not_overwritten(
    tmp_path: Path, inputs: list[Path], tokenizer: Path, existing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    if existing == "corpus":
        prepare(inputs[:1], tokenizer, output, workers=1)
        message = "already contains a prepared corpus"
    elif existing == "parts":
        with monkeypatch.context() as patch:
            patch.setattr(preparation, "assign_documents", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                prepare(inputs, tokenizer, output, workers=1)
        message = "an unfinished corpus of other inputs or settings"
    elif existing in ("files", "hidden", "temporary"):
        output.mkdir()
        name = {"files": "thesis.tex", "hidden": ".env", "temporary": ".thesis.tmp"}[existing]
        (output / name).touch()
        message = rf"contains other files \({name}\)"
    else:
        output.touch()
        message = "cannot be created"
    before = read_tree(tmp_path)
    with pytest.raises(BertieError, match=message):
        prepare(inputs, tokenizer, output, 1, PreparationOptions(held_out=0.2))
    assert read_tree(tmp_path) == before


def test_force_keeps_files_of_others(tmp_path: Path, inputs: list[Path], tokenizer: Path) -> None:
    prepare(inputs[:1], tokenizer, tmp_path / "corpus", workers=1)
    (tmp_path / "corpus/thesis.tex").touch()
    before = read_tree(tmp_path / "corpus")
    with pytest.raises(DataError, match=r"contains other files \(thesis\.tex\)"):
        prepare(inputs, tokenizer, tmp_path / "corpus", workers=1, force=True)
    assert read_tree(tmp_path / "corpus") == before


def _interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("owner", "function"), [(Tokenizer, "save"), (preparation_plan, "write_json")])
def test_run_killed_while_it_starts_resumes(
    owner: object,
    function: str,
    tmp_path: Path,
    inputs: list[Path],
    tokenizer: Path,
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, _interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(inputs, tokenizer, tmp_path / "corpus", 1, HOLD_OUT_A_TENTH)
    prepare(inputs, tokenizer, tmp_path / "corpus", 1, HOLD_OUT_A_TENTH)
    assert read_tree(tmp_path / "corpus") == expected


def test_every_real_article_is_prepared_with_few_unknown_tokens(
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_splits, "TASK_BYTES", 300_000)
    article_bytes = (shared_data / "text/wikipedia-small/wiki_00").read_bytes()[:2_000_000]
    whole = article_bytes[: article_bytes.rindex(b"</doc>\n") + 7]
    (tmp_path / "wiki_00").write_bytes(whole)
    vocabulary = next((shared_data / "vocab").glob("*uncased*"))
    manifest = prepare([tmp_path / "wiki_00"], vocabulary, tmp_path / "corpus", workers=1)
    assert manifest.train.documents + manifest.held_out.documents == whole.count(b"</doc>\n")
    corpus = Corpus.open(tmp_path / "corpus")
    unknown = Tokenizer.load(vocabulary).vocabulary.unk_id
    assert np.mean(corpus.train[0].tokens == unknown) < 0.002
