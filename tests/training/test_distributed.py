"""Two processes started by torchrun train the same model as one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.training.letters import make_texts
from tests.training.runs import NO_DROPOUT, assert_same_weights, read_rows, read_weights

import bertie
from bertie.base.environment import REPORT_TIMEOUT, let_main_process_report
from bertie.base.errors import BertieError, SettingsError
from bertie.base.settings import write_toml
from bertie.training.distributed import Ranks, join_ranks, share_of_node
from bertie.training.loop import _seed_dropout
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_setup import check_batch_sizes

TOLERANCE = 1e-5  # of weights, for rounding


def start_torchrun(folder: Path, corpus: Path, run: str, *more: str, ranks: int = 2) -> subprocess.Popen[str]:
    command = ["-m", "bertie", "pretrain", "recipe.toml", "--corpus", str(corpus), "--out", run]
    return launch(folder, *command, *more, ranks=ranks)


def launch(folder: Path, *command: str, ranks: int = 2) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen([*launcher, *command], cwd=folder, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process, and return its stderr."""
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return err


@pytest.fixture
def folder(tmp_path, tiny_settings) -> Path:
    """A folder with recipe.toml."""
    write_toml(tmp_path / "recipe.toml", tiny_settings(save_every=3, micro_batch_tokens=128))
    return tmp_path


def test_another_launcher_than_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(SettingsError, match="LOCAL_RANK is not; start several processes with torchrun"),
        join_ranks("cpu"),
    ):
        pass


def test_a_restart_that_finds_old_addresses_says_what_to_do(monkeypatch):
    """torchrun 2.13 keeps its store, with the addresses of the processes that failed."""

    def fail(*_, **__):
        raise RuntimeError("Gloo connectFullMesh failed with Connection refused")

    for name, value in {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.distributed.init_process_group", fail)
    message = "^process 1 cannot connect to the others .*; start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP"
    with pytest.raises(BertieError, match=message), join_ranks("cpu"):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_no_thread_of_gloo_is_left_when_the_ranks_have_parted(folder, corpus_path, shard):
    """A thread could abort the process while the interpreter ends (docs/decisions/reliability.md)."""
    script = f"""
import os
import bertie

bertie.pretrain("recipe.toml", corpus={str(corpus_path)!r}, out="run", shard={shard})
tasks = os.listdir("/proc/self/task")
threads = [open(f"/proc/self/task/{{task}}/comm").read().strip() for task in tasks]
assert not [name for name in threads if "gloo" in name], threads
"""
    # In new processes, because the order of imports decides.
    (folder / "script.py").write_text(script)
    finish(launch(folder, "script.py"))
    assert (folder / "run" / "model").exists()


def test_search_is_refused_in_several_processes(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match="search: trains in one process"):
        bertie.search("model", task="mrpc", data=tmp_path, out=tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_batch_smaller_than_the_number_of_processes_is_refused(tiny_settings):
    settings = tiny_settings(phases=[{"steps": 1, "max_seq_length": 32, "batch_size": 3}])
    check_batch_sizes(settings, Ranks(world_size=3))
    with pytest.raises(SettingsError, match="batch_size 3 is less than the 4 processes"):
        check_batch_sizes(settings, Ranks(world_size=4))


@pytest.mark.slow
def test_process_that_loses_the_others_says_so_in_one_line(folder, corpus_path):
    process = start_torchrun(folder, corpus_path, "run")
    while not (folder / "run" / "metrics.jsonl").exists() or not read_rows(folder / "run"):
        assert process.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert "bertie: process 0 lost the others" in err
    assert "[rank0]" not in err  # torch's mark of a traceback


# The next-sentence head has no loss in the first phase, and then parameters without a gradient.
UNEQUAL_PHASES = [
    {"steps": 5, "max_seq_length": 16, "batch_size": 4, "pairs": "none"},
    {"steps": 7, "max_seq_length": 32, "batch_size": 15},
]


def assert_nearly_equal_runs(expected: Path, actual: Path) -> None:
    weights = read_weights(actual)
    for name, weight in read_weights(expected).items():
        torch.testing.assert_close(weights[name], weight, atol=TOLERANCE, rtol=TOLERANCE)
    for expected_row, row in zip(read_rows(expected), read_rows(actual), strict=True):
        assert expected_row.keys() == row.keys()
        for key in row.keys() - {"kind"}:
            assert row[key] == pytest.approx(expected_row[key], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_tokens", [128, 10**6])  # with and without accumulation
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("phases", [[{"steps": 12, "max_seq_length": 32}], UNEQUAL_PHASES])
def test_ranks_train_the_same_model_as_one(
    tmp_path, corpus_path, tiny_settings, phases, shard, micro_batch_tokens
):
    settings = tiny_settings(
        save_every=3,
        micro_batch_tokens=micro_batch_tokens,
        model=tiny_settings().model.model_dump() | NO_DROPOUT,
        phases=phases,
        optimizer={"weight_decay": 1.0},  # would change a head without loss, if it had a gradient of zero
        shard=shard,
    )
    write_toml(tmp_path / "recipe.toml", settings)
    pretrain(settings, corpus_path, tmp_path / "1")
    for world_size in (2, 3, 4):
        err = finish(start_torchrun(tmp_path, corpus_path, str(world_size), ranks=world_size))
        assert "find_unused_parameters" not in err  # torch's warning about steps with all parameters
        assert_nearly_equal_runs(tmp_path / "1", tmp_path / str(world_size))


@pytest.mark.slow
def test_sharded_lamb_trains_the_same_model(tmp_path, corpus_path, tiny_settings):
    """A rank has parts of the stacked queries, keys and values, whose trust ratios are of whole matrices."""
    settings = tiny_settings(
        save_every=3,
        model=tiny_settings().model.model_dump() | NO_DROPOUT,
        optimizer={"name": "lamb"},
        shard=True,
    )
    write_toml(tmp_path / "recipe.toml", settings)
    pretrain(settings, corpus_path, tmp_path / "1")
    for world_size in (2, 3):
        finish(start_torchrun(tmp_path, corpus_path, str(world_size), ranks=world_size))
        assert_nearly_equal_runs(tmp_path / "1", tmp_path / str(world_size))


@pytest.mark.slow
def test_only_the_main_process_prints_a_wrong_setting(folder, corpus_path):
    process = start_torchrun(folder, corpus_path, "run", "--set", "batch_size=0", ranks=3)
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert err.count("bertie: ") == 1
    assert "exitcode  : 2" in err


def test_error_of_one_process_is_printed(monkeypatch):
    """The other process has no such error, so that torchrun does not stop this one."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    let_main_process_report()  # without RANK, the only process
    assert not waited
    monkeypatch.setenv("RANK", "1")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        let_main_process_report()
        assert waited == [REPORT_TIMEOUT]
        monkeypatch.setattr(time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as stopped:
            let_main_process_report()
        assert stopped.value.code == 2
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (RuntimeError("[gloo/transport] connection closed"), BertieError, "process 1 lost the others"),
        (
            torch.distributed.DistNetworkError("timed out"),
            BertieError,
            r"process 1 .* --resume \(resume=True\)",
        ),
        (RuntimeError("out of memory"), RuntimeError, "^out of memory$"),
    ],
    ids=["gloo", "other backend", "other error"],
)
def test_error_of_a_connection_is_explained_and_the_ranks_part(monkeypatch, error, expected, message):
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    calls = []
    for name, value in {"init_process_group": None, "get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: calls.append("parted"))
    with pytest.raises(expected, match=message), join_ranks("cpu") as ranks:
        raise error
    assert (ranks.rank, ranks.world_size, ranks.is_main) == (1, 2, False)
    assert calls == ["parted"]


def test_share_of_a_machine_is_the_local_rank(monkeypatch):
    """Of all its processes, also where there are several machines."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert share_of_node() == (0, 1)
    environment = {"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "8"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert share_of_node() == (1, 2)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SettingsError, match="2 processes, but 1 GPUs"), join_ranks("cuda"):
        pass


def test_every_process_computes_on_its_own_gpu():
    second = torch.device("cuda", 1)
    assert Ranks(1, 2, second).place("cuda:0") == second
    assert Ranks(0, 1, second).place("cuda:0") == torch.device("cuda", 0)
    assert Ranks(1, 2).place("cpu") == torch.device("cpu")


def test_dropout_is_seeded_on_the_device_of_the_model(monkeypatch):
    generators = (torch.Generator(), torch.Generator())
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    _seed_dropout(torch.device("cuda", 1), 5)
    assert generators[1].initial_seed() == 5
    assert generators[0].initial_seed() != 5


@pytest.mark.slow
def test_stopped_run_of_two_ranks_resumes_bit_for_bit(folder, corpus_path):
    finish(start_torchrun(folder, corpus_path, "undisturbed"))
    process = start_torchrun(folder, corpus_path, "stopped")
    while not (folder / "stopped" / "metrics.jsonl").exists() or len(read_rows(folder / "stopped")) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode != 0
    assert list((folder / "stopped" / "checkpoints").glob("step-*"))
    assert not (folder / "stopped" / "model").exists()
    finish(start_torchrun(folder, corpus_path, "stopped", "--resume"))
    assert_same_weights(folder / "undisturbed", folder / "stopped")
    assert read_rows(folder / "undisturbed") == read_rows(folder / "stopped")


def finetune_with_ranks(ranks: int, folder, *options: object):
    """Run `bertie finetune` under torchrun in a folder; return the scores, which are printed once."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *launcher, "-m", "bertie", "finetune", "--json", *map(str, options)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_ranks_fine_tune_embeddings(tmp_path, initial_model):
    """The pooler of the model takes no part, so it has no gradient."""
    texts = make_texts(0, 24).texts
    rows = [{"text": text, "pair": texts[0], "label": i % 3} for i, text in enumerate(texts)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["--kind", "scored-pairs", "--train", "train.jsonl", "--dev", "train.jsonl", "--out", "out"]
    options += ["--set", "epochs=2", "--set", "batch_size=6", "--set", "max_seq_length=32"]
    assert finetune_with_ranks(2, tmp_path, "--model", initial_model.weights, *options)


@pytest.mark.slow
def test_ranks_fine_tune_the_same_model_as_one(tmp_path, initial_model):
    """An epoch ends with a batch of one example, in which two of three ranks have none of their own."""
    for name, seed, count in (("train", 0, 31), ("dev", 1, 20)):
        examples = make_texts(seed, count)
        rows = [{"text": t, "label": label} for t, label in zip(examples.texts, examples.labels, strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = ["--model", initial_model.weights, "--train", "train.jsonl", "--dev", "dev.jsonl"]
    for setting in (
        "epochs=2",
        "batch_size=6",
        "dropout=0",
        "attention_dropout=0",
        "precision=float32",
        "max_seq_length=32",
    ):
        options += ["--set", setting]
    scores = {}
    for ranks in (1, 2, 3):
        scores[ranks] = finetune_with_ranks(ranks, tmp_path, "--out", ranks, *options)
        assert (tmp_path / str(ranks) / "report.html").exists()
        if ranks > 1:
            assert_nearly_equal_runs(tmp_path / "1", tmp_path / str(ranks))
            assert scores[ranks] == scores[1]
