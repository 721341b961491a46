"""Every option of the command line reaches the function that a command calls."""

import inspect
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from bertie.commands.main import app
from bertie.inference.server.middleware import Access, Limits
from bertie.model.formats.onnx import Quantization

CORPORA = {"format": "jsonl", "column": "body", "on_error": "skip", "workers": 3}
LANGUAGES = {"language": {"de": "a", "en": "b"}, "language_column": "lang"}
READING = "--format jsonl --column body --on-error skip --workers 3"
IN_LANGUAGES = "--language de=a --language en=b --language-column lang"
EXAMPLES = {
    "task": "mrpc",
    "kind": "tags",
    "text": "body",
    "pair": "other",
    "label": "stars",
    "separator": ";",
    "columns": {"words": "w", "tags": "t"},
    "on_error": "skip",
}
EXAMPLE_OPTIONS = (
    "--task mrpc --kind tags --text body --pair other --label stars --separator ';' --column words=w "
    "--column tags=t"
)
TRAINING = {
    "out": Path("run"),
    "model": Path("m"),
    "data": Path("d"),
    "train": Path("train.csv"),
    "label_type": "numbers",
    "resume": True,
    **EXAMPLES,
}
TRAINING_OPTIONS = (
    f"--out run --model m --data d --train train.csv {EXAMPLE_OPTIONS} --on-error skip --label-type numbers "
    f"--set epochs=2 --device cpu --resume"
)
SERVE = (
    "serve a=m b=n --host 0.0.0.0 --port 7 --device cpu --precision bfloat16 --max-texts 1 --max-body 2 "
    "--max-waiting 3 --memory-budget 2.5 --max-connections 4 --timeout 5 --api-key key --no-auth "
    "--cors https://a.example --cors https://b.example --root-path /bert/"
)

# The function that a command calls, the command, and the arguments of the call.
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "bertie.learn_vocabulary",
        f"vocab text --out out --size 99 --cased --merges likelihood --alphabet 7 --smoothing 0.7 {READING} "
        f"{IN_LANGUAGES} --scheduler tcp://a:1 --force",
        {
            "inputs": [Path("text")],
            "out": Path("out"),
            "size": 99,
            "cased": True,
            "merges": "likelihood",
            "alphabet": 7,
            "smoothing": 0.7,
            "scheduler": "tcp://a:1",
            "force": True,
            **CORPORA,
            **LANGUAGES,
        },
    ),
    (
        "bertie.extend_tokenizer",
        f"vocab text --out out --extend old --add 5 --fill-unused {READING} --scheduler tcp://a:1 --force",
        {
            "tokenizer": Path("old"),
            "inputs": [Path("text")],
            "out": Path("out"),
            "add": 5,
            "fill_unused": True,
            "scheduler": "tcp://a:1",
            "force": True,
            **CORPORA,
        },
    ),
    (
        "bertie.prepare",
        f"prepare text more --out out --tokenizer words --held-out 0.2 {READING} {IN_LANGUAGES} "
        f"--scheduler tcp://a:1 --force",
        {
            "inputs": [Path("text"), Path("more")],
            "tokenizer": Path("words"),
            "out": Path("out"),
            "held_out": 0.2,
            "scheduler": "tcp://a:1",
            "force": True,
            **CORPORA,
            **LANGUAGES,
        },
    ),
    (
        "bertie.prepare_part",
        f"prepare text --out out --tokenizer words --part 2/3 --held-out 0.2 {READING} {IN_LANGUAGES}",
        {
            "inputs": [Path("text")],
            "part": 2,
            "parts": 3,
            "tokenizer": Path("words"),
            "out": Path("out"),
            "held_out": 0.2,
            **CORPORA,
            **LANGUAGES,
        },
    ),
    ("bertie.join_parts", "prepare --join --out out --workers 3", {"out": Path("out"), "workers": 3}),
    *(
        (
            function,
            f"pretrain tiny --corpus c --out run --init m --set batch_size=64 --device cpu --shard {more}",
            {
                "recipe": "tiny",
                "corpus": Path("c"),
                "out": Path("run"),
                "init": Path("m"),
                "resume": True,
                "settings": {"batch_size": 64, "device": "cpu", "shard": True},
            },
        )
        for function, more in (
            ("bertie.pretrain", "--resume"),
            ("bertie.api.pretraining.plan_pretraining", "--resume --dry-run"),
        )
    ),
    (
        "bertie.finetune",
        f"finetune {TRAINING_OPTIONS} --dev 0.1",
        {"dev": 0.1, "settings": {"epochs": 2, "device": "cpu"}, **TRAINING},
    ),
    (
        "bertie.search",
        f"search {TRAINING_OPTIONS} --dev dev.csv --recipe grid",
        {
            "dev": "dev.csv",
            "recipe": "grid",
            "settings": {"epochs": 2, "finetuning": {"device": "cpu"}},
            **TRAINING,
        },
    ),
    (
        "bertie.evaluate",
        f"evaluate --model m --model n --data d --predictions p --null-scores n --part dev {EXAMPLE_OPTIONS} "
        f"--on-error skip --max-seq-length 64 --device cpu --precision bfloat16",
        {
            "model": [Path("m"), Path("n")],
            "data": Path("d"),
            "predictions": Path("p"),
            "null_scores": Path("n"),
            "part": "dev",
            "max_seq_length": 64,
            "device": "cpu",
            "precision": "bfloat16",
            **EXAMPLES,
        },
    ),
    (
        "bertie.evaluate_blimp",
        "evaluate --task blimp --model m --data d --add-to-report --device cpu --precision bfloat16",
        {
            "model": Path("m"),
            "data": Path("d"),
            "add_to_report": True,
            "device": "cpu",
            "precision": "bfloat16",
        },
    ),
    (
        "bertie.api.task_data.measured_task",
        f"export m --onnx out --dev d {EXAMPLE_OPTIONS}",
        {"models": [Path("m")], **EXAMPLES, "on_error": None},
    ),
    (
        "bertie.inference.export.export",
        "export m --onnx out --int8 --int8-embeddings --weight-bits 8 --dev d --dev e --task mrpc --force",
        {
            "source": Path("m"),
            "output": Path("out"),
            "quantization": Quantization(layers=True, embeddings=True, weight_bits=8),
            "dev": [Path("d"), Path("e")],
            "force": True,
        },
    ),
    (
        "bertie.model.formats.conversion.convert",
        "convert m out --to tensorflow --allow-pickle --cased --force",
        {
            "source": Path("m"),
            "output": Path("out"),
            "layout": "tensorflow",
            "allow_pickle": True,
            "lowercase": False,
            "force": True,
        },
    ),
    (
        "bertie.reproduction.checkpoint_runner.reproduce",
        "reproduce table1 --model m --data d --out out --budget 5 --restarts 2 --scale laptop --device cpu",
        {
            "table": "table1",
            "model": Path("m"),
            "data": Path("d"),
            "out": Path("out"),
            "budget": 5,
            "restarts": 2,
            "scale": "laptop",
            "device": "cpu",
        },
    ),
    *(
        (
            function,
            f"{command} --device cpu --precision bfloat16",
            {"path": Path("m"), "device": "cpu", "precision": "bfloat16"},
        )
        for function, command in (
            ("bertie.load", "predict m --text a"),
            ("bertie.load", "embed m --text a"),
            ("bertie.model.engines.loading.load_engine", "features m --out out.parquet"),
        )
    ),
    (
        "bertie.inference.server.running.check_access",
        SERVE,
        {
            "host": "0.0.0.0",
            "access": Access("key", ("https://a.example", "https://b.example"), "/bert"),
            "no_auth": True,
        },
    ),
    (
        "bertie.inference.server.models.Models",
        SERVE,
        {
            "limits": Limits(1, 2, 3, 4, request_seconds=5),
            "memory_budget": 2_500_000_000,
            "precision": "bfloat16",
        },
    ),
]


class CalledError(Exception):
    """Raised by the function that a command calls, with its arguments."""


def raise_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the same parameters that raises `CalledError`."""

    def raise_called(*arguments: Any, **named: Any) -> None:
        raise CalledError(inspect.signature(function).bind(*arguments, **named).arguments)

    return raise_called


@pytest.mark.parametrize(("function", "command", "expected"), CALLS, ids=[call[1][:60] for call in CALLS])
def test_every_option_reaches_the_function(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    command: str,
    expected: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bertie.base.environment.limit_free_memory", lambda: None)  # of the process
    module, _, name = function.rpartition(".")
    original = getattr(import_module(module), name)
    if name == "export":
        monkeypatch.setattr("bertie.api.task_data.measured_task", lambda *_: None)
    monkeypatch.setattr(import_module(module), name, raise_arguments(original))
    called = CliRunner().invoke(app, shlex.split(command)).exception
    assert isinstance(called, CalledError), called
    (arguments,) = called.args
    assert {key: arguments.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    "name", ["vocab", "prepare", "pretrain", "finetune", "search", "evaluate", "export", "convert", "serve"]
)
def test_no_option_is_left_out_above(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {parameter.opts[0] for parameter in command.params if parameter.opts[0].startswith("--")}
    given = {word for _, line, _ in CALLS for word in line.split() if line.startswith(f"{name} ")}
    assert options - given <= {"--json", "--log-requests", "--no-verify"}
