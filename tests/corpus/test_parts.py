"""Jobs that prepare a part each, and the join of their parts, write the bytes of one `prepare`."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bertie
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.locks import lock_directory, lock_file
from bertie.commands.main import app
from bertie.corpus import input_splits
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

WORDS = ["all", "is", "well", "in", "this", "town", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make texts, a tokenizer, and `corpus`, which one `prepare` has written."""
    folder = tmp_path_factory.mktemp("parts")
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS])).save(folder / "tokenizer")
    (folder / "text").mkdir()
    lines = [json.dumps({"text": " ".join(WORDS[: i % 7]) + " ." * (i // 7)}) + "\n" for i in range(200)]
    (folder / "text/a.jsonl").write_text("".join(lines[:150]))
    (folder / "text/b.jsonl").write_text("".join(lines[100:]))
    (folder / "text/c.txt").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_splits, "TASK_BYTES", 2000)
        bertie.prepare(folder / "text", tokenizer=folder / "tokenizer", out=folder / "corpus", **OPTIONS)
    return folder


OPTIONS = {"held_out": 0.1, "workers": 1}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_splits, "TASK_BYTES", 2000)


def read_tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def run(*arguments: object) -> str:
    """Run the command line, and return its error, or "" if it succeeds."""
    result = CliRunner().invoke(app, ["prepare", *map(str, arguments), "--workers", "1"])
    assert (result.exit_code == 0) == (result.exception is None)
    return str(result.exception or "")


def test_joined_parts_have_the_bytes_of_one_prepare(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    start = (folder / "text", "--tokenizer", folder / "tokenizer", "--out", out, "--held-out", "0.1")
    join = ("--join", "--out", out)
    assert run(*join).endswith("no parts to join; run `bertie prepare --part I/N` first, with this --out")
    for part in ("3/3", "1/3", "1/3"):
        assert run(*start, "--part", part) == ""
    expected = "not finished: part 2/3; run `bertie prepare` with each of these --part again, then join"
    assert run(*join).endswith(expected)
    assert run(*start, "--part", "2/3") == ""
    assert run(*join) == ""
    assert read_tree(out) == read_tree(folder / "corpus")
    (out / "parts").mkdir()  # as a join leaves it that is killed after it has written the manifest
    (out / "parts/plan.json").touch()
    assert run(*join) == ""
    assert read_tree(out) == read_tree(folder / "corpus")
    assert run(*start, "--part", "2/3").endswith("choose another directory, or remove it")


@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("parts/000000/tokens.bin", "parts/000000"),
        ("parts/000001/hashes.bin", "parts/000001"),
        ("parts/000000/counts.json", "parts/000000"),
        ("parts/tasks.json", ""),
        ("parts/plan.json", ""),
    ],
)
def test_damaged_parts_are_refused(folder: Path, tmp_path: Path, name: str, removed: str) -> None:
    out = tmp_path / "corpus"
    start = (folder / "text", "--tokenizer", folder / "tokenizer", "--out", out, "--held-out", "0.1")
    for part in ("1/2", "2/2"):
        assert run(*start, "--part", part) == ""
    content = (out / name).read_bytes()
    (out / name).write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    error = run("--join", "--out", out)
    expected = f"{out / name}: does not match its checksum in SHA256SUMS; remove {out / removed} and "
    assert error.startswith(expected)
    shutil.rmtree(out / removed)  # the advice works
    for part in ("1/2", "2/2"):
        assert run(*start, "--part", part) == ""
    assert run("--join", "--out", out) == ""
    assert read_tree(out) == read_tree(folder / "corpus")


def test_tokenizer_that_changed_before_the_join_is_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    start = (folder / "text", "--tokenizer", folder / "tokenizer", "--out", out)
    assert run(*start, "--part", "1/1") == ""
    Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS[::-1]])).save(out / "tokenizer")
    expected = f"{out / 'tokenizer'}: changed since the corpus was started; remove {out} and prepare the"
    assert run("--join", "--out", out).startswith(expected)


def test_refused_parts_are_one_line(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    start = (folder / "text", "--tokenizer", folder / "tokenizer", "--out", out)
    assert run(*start, "--part", "0/8") == "part 0/8: expected I/N with I from 1 to N, such as 1/8"
    assert run(*start, "--part", "9/8").startswith("part 9/8: expected I/N")
    assert run(*start, "--part", "3").startswith("--part 3: expected I/N, such as 1/8")
    assert run(*start, "--part", "1/2", "--force").startswith("--force: would remove the parts of the other")
    assert run(*start, "--join").startswith("--join: joins the parts as they are; leave --tokenizer out")
    assert run("--out", out).startswith("nothing to prepare; pass the files or folders of text")
    assert not out.exists()
    assert run(*start, "--part", "1/2") == ""
    assert "was started with --part I/2, not with --part I/3; pass --part I/2" in run(*start, "--part", "1/3")
    assert "was started with --part I/2, not without it" in run(*start)
    other = run(*start, "--part", "1/2", "--held-out", "0.2")
    assert other.endswith("of other inputs or settings; choose another directory, or remove it")


def test_bad_input_of_a_part_names_a_remedy_for_parts(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "text", tmp_path / "text")
    (tmp_path / "text/d.jsonl").write_text('{"text": "a"}\n{"text"\n')
    out = tmp_path / "corpus"
    start = (tmp_path / "text", "--tokenizer", folder / "tokenizer", "--out", out)
    errors = [run(*start, "--part", f"{part}/2") for part in (1, 2)]
    (error,) = filter(None, errors)
    assert f"; then remove {out} and run all parts again, or skip such inputs with --on-error skip" in error


def test_job_that_runs_twice_is_one_line(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"

    def prepare(part: int) -> None:
        bertie.prepare_part(folder / "text", part, 2, tokenizer=folder / "tokenizer", out=out, **OPTIONS)

    prepare(1)
    with lock_file(out / "parts/job-2"):
        prepare(1)  # is finished
        with pytest.raises(BertieError, match="another process is writing part 2/2"):
            prepare(2)
    prepare(2)
    assert read_tree(bertie.join_parts(out, workers=1).path) == read_tree(folder / "corpus")


# Prepares the first of three parts, and is killed at its second task.
KILLED = """
import os, signal, sys
import bertie
from bertie.corpus import input_splits, part_writer
input_splits.TASK_BYTES = 2000
write_hashes, calls = part_writer.write_hashes, 2
def die_at_last_call(*arguments):
    global calls
    calls -= 1
    if not calls:
        os.kill(os.getpid(), signal.SIGKILL)
    write_hashes(*arguments)
part_writer.write_hashes = die_at_last_call
folder, out = sys.argv[1:]
options = {"tokenizer": folder + "/tokenizer", "out": out, "held_out": 0.1, "workers": 1}
bertie.prepare_part(folder + "/text", 1, 3, **options)
"""


def test_jobs_at_the_same_time_and_killed_ones_change_no_byte(folder: Path, tmp_path: Path) -> None:
    """A lock of another thread is a lock of another process."""
    out = tmp_path / "corpus"
    environment = {**os.environ, "PYTHONPATH": str(Path(bertie.__file__).parents[1])}
    command = [sys.executable, "-c", KILLED, str(folder), str(out)]

    def prepare(part: int) -> None:
        bertie.prepare_part(folder / "text", part, 3, tokenizer=folder / "tokenizer", out=out, **OPTIONS)

    with (
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as killed,
        ThreadPoolExecutor(2) as threads,
    ):
        list(threads.map(prepare, (2, 3)))
        assert killed.wait() == -signal.SIGKILL
    with pytest.raises(DataError, match="not finished: part 1/3"):
        bertie.join_parts(out, workers=1)
    prepare(1)
    assert read_tree(bertie.join_parts(out, workers=1).path) == read_tree(folder / "corpus")


def test_join_while_a_job_runs_is_one_line(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    bertie.prepare_part(folder / "text", 1, 1, tokenizer=folder / "tokenizer", out=out, **OPTIONS)
    with (
        lock_directory(out, shared=True),
        ThreadPoolExecutor(1) as thread,
        pytest.raises(BertieError, match="another bertie process is writing here"),
    ):
        thread.submit(bertie.join_parts, out, workers=1).result()
    bertie.join_parts(out, workers=1)


def test_jobs_start_one_after_the_other(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of another thread is a lock of another process."""
    out, log = tmp_path / "corpus", io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)  # capsys may lose what another thread prints
    with ThreadPoolExecutor(1) as thread:
        with lock_file(out / "parts"):
            options = {"tokenizer": folder / "tokenizer", "out": out, **OPTIONS}
            job = thread.submit(bertie.prepare_part, folder / "text", 1, 1, **options)
            while "waiting for the process that is writing here" not in log.getvalue():
                assert not job.done()
                time.sleep(0.01)
            assert not (out / "parts").exists()
        job.result()
    assert (out / "parts/plan.json").exists()


def test_part_that_was_killed_while_it_wrote_the_tokenizer_resumes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    command = [folder / "text", "--tokenizer", folder / "tokenizer", "--out", out]
    assert run(*command, "--part", "1/2") == ""
    (out / "tokenizer").rename(out / ".tokenizer.bertie-tmp")
    assert run(*command, "--part", "2/2") == ""
    assert not (out / ".tokenizer.bertie-tmp").exists()


def test_part_must_exist_in_python_too(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="part 3/2"):
        bertie.prepare_part(
            folder / "text", 3, 2, tokenizer=folder / "tokenizer", out=tmp_path / "x", **OPTIONS
        )
