"""The command line as a whole: from text to predictions; one line and status 2 for user errors."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch
import typer.main

import bertie
from bertie.base.environment import install_command
from bertie.base.settings import read_toml
from bertie.commands import doctor
from bertie.commands.main import app, main
from bertie.commands.options import how_to_resume
from bertie.corpus.prepared import Corpus
from bertie.model import products
from bertie.model.engines.hardware import Hardware
from bertie.recipes import list_recipes, read_recipe


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    """Run `bertie ARGUMENTS` in this process; return its exit status, stdout and stderr."""
    sys.argv = ["bertie", *map(str, arguments)]
    with pytest.raises(SystemExit) as exit_status:
        main()
    captured = capsys.readouterr()
    return exit_status.value.code or 0, captured.out, captured.err


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A folder with text, tokenizer, corpus and run."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "text").mkdir()
    for number in range(30):
        lines = [f"Line {line} of document {number} says that all is well." for line in range(8)]
        (folder / "text" / f"{number}.txt").write_text("\n".join(lines))
    (folder / "recipe.toml").write_text(
        "batch_size = 8\nwarmup_steps = 1\nlog_every = 1\nevaluate_every = 0\nsave_every = 2\n"
        "held_out_examples = 8\n[[phases]]\nsteps = 3\nmax_seq_length = 32\n"
        "[model]\nhidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\n"
        "intermediate_size = 32\nmax_position_embeddings = 32\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (
            "vocab text --size 120 --out tokenizer --workers 1",
            "prepare text --tokenizer tokenizer --out corpus --held-out 0.1 --workers 1",
            "pretrain recipe.toml --corpus corpus --out run",
        ):
            patch.setattr(sys, "argv", ["bertie", *command.split()])
            with pytest.raises(SystemExit) as exit_status:
                main()
            assert not exit_status.value.code
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("export m --out o", "No such option: --out; name the output with --onnx or --openvino"),
        ("finetune my.csv --out out", "unexpected argument 'my.csv'; did you mean --train my.csv?"),
        ("finetune . --out out", "unexpected argument '.'; did you mean --model .?"),
        ("predict model hello", "unexpected argument 'hello'; did you mean --text hello?"),
        (f"embed model {__file__}", f"unexpected argument '{__file__}'; did you mean --input {__file__}?"),
        ("pretrain tiny corpus --out out", "unexpected argument 'corpus'; did you mean --corpus corpus?"),
        ("inspect model other", "unexpected argument 'other'"),
        ("embed --model model --text hello", "--model: this command takes DIR without an option"),
        ("serve --model model", "--model: this command takes DIR without an option"),
        ("pretrain --recipe tiny --corpus c", "--recipe: this command takes recipe without an option"),
        ("vocab --input text --out new", "--input: this command takes INPUT without an option"),
        (
            "pretrain tiny --learning-rate 1e-3",
            "No such option: --learning-rate; did you mean --set optimizer.learning_rate=…?",
        ),
        ("finetune --epochs 3", "No such option: --epochs; did you mean --set epochs=…?"),
        ("finetune --lr=3", "No such option: --lr; did you mean --set optimizer.learning_rate=…?"),
        (
            "finetune --per-device-train-batch-size 3",
            "No such option: --per-device-train-batch-size; did you mean --set batch_size=…?",
        ),
        ("finetune --max-length 3", "No such option: --max-length; did you mean --set max_seq_length=…?"),
        ("search --learning-rate 1", "No such option: --learning-rate; did you mean --set learning_rates=…?"),
        ("predict m --columns text=a", "No such option: --columns (Possible options: --column)"),
        ("convert model --out new", "--out: this command takes OUT without an option"),
    ],
)
def test_unexpected_argument_names_the_option(arguments, message, capsys):
    status, _, err = run(capsys, *arguments.split())
    assert status == 2
    assert err.endswith(f"Error: {message}\n")


def test_a_wrong_choice_is_reported_with_the_choices(capsys):
    status, _, err = run(capsys, "predict", "model", "--precision", "half")
    message = "Invalid value for '--precision': 'half' is not one of 'float32', 'bfloat16', 'int8'."
    assert (status, err.splitlines()[-1]) == (2, f"Error: {message}")


@pytest.mark.parametrize(
    ("workers", "message"),
    [("0", "expected a number greater than or equal to 1"), ("two", "expected an integer")],
)
def test_a_wrong_number_is_reported_with_the_expected_one(workers, message, capsys):
    status, _, err = run(capsys, "vocab", "text", "--out", "new", "--workers", workers)
    assert (status, err.splitlines()[-1]) == (2, f"Error: Invalid value for '--workers': {message}")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["vocab", "", "--out", "new"], "INPUT"),
        (["vocab", ".", "--out", ""], "--out"),
        (["prepare", ".", "--tokenizer", "", "--out", "new"], "--tokenizer"),
        (["tokenize", "", "a text"], "TOKENIZER"),
        (["embed", "model", "--text", "a text", "--output", ""], "--out' / '--output"),
        *(([command, "--out", ""], "--out") for command in ("pretrain", "finetune", "search", "demo")),
        (["reproduce", "table1", "--data", "", "--out", "new"], "--data"),
        (["submission", "run", "", "--out", "new.zip"], "RUN"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(arguments, name, capsys):
    status, out, err = run(capsys, *arguments)
    message = f"Error: Invalid value for '{name}': expected a path, got an empty string"
    assert (status, out, err.splitlines()[-1]) == (2, "", message)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["predict", "model", "--input", ""], "--input"), (["serve", ""], "DIR"), (["serve", "a="], "a=")],
)
def test_an_empty_string_in_place_of_a_path_is_named(arguments, name, capsys):
    assert run(capsys, *arguments) == (2, "", f"bertie: {name}: expected a path, got an empty string\n")


def test_every_path_of_the_command_line_has_a_parser():
    """Without one, typer leaves `~` as it is, and an empty path is the current folder."""
    parameters = [
        parameter
        for command in typer.main.get_command(app).commands.values()
        for parameter in command.params
        if "Path" in str(parameter.type_descriptor.annotation)
    ]
    assert len(parameters) > 30
    assert all(parameter.type_descriptor.parameter_info.parser for parameter in parameters)


@pytest.mark.parametrize(
    "arguments",
    [
        ["vocab", "~/missing", "--out=new"],
        ["tokenize", "~/missing"],
        ["embed", "~/missing", "--text=a"],
        ["serve", "name=~/missing"],
        ["pretrain", "tiny-laptop", "--corpus=~/missing", "--out=new"],
        ["pretrain", "~/missing.toml", "--corpus=.", "--out=new"],
        ["pretrain", "--resume", "--out=~/missing"],
        ["finetune", "--model=~/missing", "--train=~/missing.csv", "--out=new"],
    ],
)
def test_a_tilde_is_the_home_folder(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert f"bertie: {tmp_path}/missing" in err


def test_an_error_is_one_line_whatever_a_file_is_called(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad\nname.txt").write_bytes(b"\0\1\2")
    status, _, err = run(capsys, "vocab", "bad\nname.txt", "--out", "tokenizer", "--workers", "1")
    assert status == 2
    assert err.splitlines()[-1].startswith(r"bertie: bad\nname.txt: ")
    assert run(capsys, "tokenize", "a\n" * 200, "text")[2].startswith(r"bertie: a\na\na")


def test_a_file_that_vanishes_is_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("The cat sat.")

    def remove(paths, *_):
        (tmp_path / "a.txt").unlink()
        return paths

    monkeypatch.setattr("bertie.api.vocabulary.list_inputs", remove)
    status, _, err = run(
        capsys, "vocab", tmp_path / "a.txt", "--out", tmp_path / "tokenizer", "--workers", "1"
    )
    assert (status, err.count("\n")) == (2, 1)
    assert "a.txt: no such file" in err


def test_a_deleted_current_folder_is_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    message = "bertie: the current folder does not exist any more; change to another one\n"
    assert run(capsys, "predict", "model", "--text", "a") == (2, "", message)


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EXDEV])
def test_an_output_that_cannot_be_replaced_is_one_line(workspace, capsys, tmp_path, monkeypatch, code):
    def refuse(path: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "rename", refuse)
    status, _, err = run(capsys, "convert", workspace / "run" / "model", "--to", "bertie", tmp_path / "out")
    assert (status, err.count("\n")) == (2, 1)
    assert re.search(r"out: (in use|cannot be replaced), .*; choose another path\n", err)


FULL = "the disk is full; free some space and run the command again"
LIMITED = "the file exceeds the size limit; raise it with `ulimit -f` and run the command again"
OUT_OF_MEMORY = "out of memory; free some, or use fewer workers or smaller batches"


def with_note(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "", "a\nb"), rf"a\nb: {FULL}"),
        (with_note(OSError(errno.ENOSPC, "", "a"), "resume with --resume"), f"a: {FULL} with --resume"),
        (
            with_note(OSError(errno.EACCES, "", "a"), "resume with --resume"),
            "a: permission denied; choose an",
        ),
        (OSError(errno.ENOSPC, ""), FULL),  # standard output
        (OSError(errno.EFBIG, "", "a"), f"a: {LIMITED}\n"),
        (with_note(OSError(errno.EFBIG, "", "a"), "resume with --resume"), f"a: {LIMITED} with --resume"),
        (OSError(errno.EMFILE, "", "a"), "a: too many open files; allow more with `ulimit -n`"),
        (OSError("libtorch.so: failed to map segment from shared object"), OUT_OF_MEMORY),
        (ImportError("libtorch.so: failed to map segment from shared object"), OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), OUT_OF_MEMORY),
        (RuntimeError("can't start new thread"), OUT_OF_MEMORY),
        (MemoryError(), OUT_OF_MEMORY),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else type(value).__name__,
)
def test_errors_of_the_machine_are_one_line(capsys, monkeypatch, error, message):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("bertie.model.formats.inspection.inspect_model", fail)
    status, _, err = run(capsys, "inspect", "model")
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(f"bertie: {message}")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOTTY, "", "a"), RuntimeError("a bug"), ImportError("a bug")]
)
def test_other_errors_are_not_hidden(monkeypatch, error):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("bertie.model.formats.inspection.inspect_model", fail)
    monkeypatch.setattr(sys, "argv", ["bertie", "inspect", "model"])
    with pytest.raises(type(error)) as raised:
        main()
    assert raised.value is error


def test_an_unexpected_end_of_file_is_not_hidden(capsys, monkeypatch):
    def end(*_, **__):
        raise EOFError

    monkeypatch.setattr("bertie.text.tokenizer.Tokenizer.load", end)
    monkeypatch.setattr(sys, "argv", ["bertie", "tokenize", "tokenizer", "text"])
    with pytest.raises(RuntimeError, match="unexpected end of a file"):
        main()
    assert "Aborted!" not in capsys.readouterr().err


def test_trained_model_fills_a_mask(workspace, capsys):
    text = "all is [MASK] ."
    status, out, _ = run(capsys, "predict", workspace / "run" / "model", "--text", text, "--json")
    assert status == 0
    row = json.loads(out)
    assert row["text"] == text
    assert (workspace / "run" / "report.html").exists()
    (predictions,) = row["prediction"]
    assert len(predictions) == 5
    assert predictions == sorted(predictions, key=lambda prediction: -prediction["score"])
    assert predictions[0]["sequence"] == text.replace("[MASK]", predictions[0]["token_str"])


def test_predict_answers_every_line_of_a_file(workspace, capsys):
    file = workspace / "texts.txt"
    file.write_text("[MASK] is well\n\nall [MASK] well\n")
    model = workspace / "run" / "model"
    status, out, _ = run(capsys, "predict", model, "--input", file, "--json", "--top-k", 1)
    assert status == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == ["[MASK] is well", "", "all [MASK] well"]
    assert [len(row["prediction"]) for row in rows] == [1, 0, 1]


def test_tokenize_shows_tokens_ids_and_positions(workspace, capsys):
    text = "Document 7 says: «naïve»"
    status, out, _ = run(capsys, "tokenize", workspace / "tokenizer", text, "--json")
    assert status == 0
    row = json.loads(out)
    assert row["tokens"][0] == "[CLS]"
    assert row["tokens"][-1] == "[SEP]"
    assert len(row["tokens"]) == len(row["input_ids"]) == len(row["offsets"])
    start, end = row["offsets"][1]
    assert text[start:end].lower().startswith(row["tokens"][1])
    status, out, _ = run(capsys, "tokenize", workspace / "tokenizer", text)
    assert out.splitlines()[0].split()[-1] == "[CLS]"


def test_doctor_reports_hardware_and_packages(capsys):
    status, out, _ = run(capsys, "doctor", "--json", "--no-measure")
    assert status == 0
    facts = json.loads(out)
    assert facts["processors"] >= 1
    assert {"torch", "numba", "compiled kernels", "memory"} <= set(facts)


@pytest.mark.parametrize(
    ("in_numpy", "precision", "said"),
    [
        (False, "float32", "5 GFLOP/s in float32"),
        (True, "bfloat16", "5 GFLOP/s in float32 (numpy), 5 in bfloat16"),
    ],
)
def test_doctor_says_how_fast_matrices_are_multiplied(capsys, monkeypatch, in_numpy, precision, said):
    monkeypatch.setattr(doctor, "_matrix_rate", lambda device, dtype: 5.0)
    monkeypatch.setattr(products, "multiplies_in_numpy", lambda matrix: in_numpy)
    monkeypatch.setattr(Hardware, "resolved", lambda self: Hardware(device="cpu", precision=precision))
    assert json.loads(run(capsys, "doctor", "--json")[1])["matrix rate"] == said


def test_doctor_measures_products():
    assert doctor._matrix_rate("cpu", torch.float32) > 0


def test_doctor_knows_the_packages_of_every_extra():
    extras = set(doctor.EXTRAS.values())
    optional = [re.match(r"([\w-]+).*extra == .(\w+)", line) for line in requires("bertie")]
    packages = {found[1].replace("-", "_") for found in optional if found and found[2] in extras}
    assert packages == set(doctor.EXTRAS)
    assert extras >= {"train", "serve", "onnx", "openvino", "data", "cloud", "cluster", "tensorboard"}


def test_doctor_says_how_to_install_missing_packages(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as without a home directory
    for name in ("BERTIE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    facts = json.loads(run(capsys, "doctor", "--json", "--no-measure")[1])
    assert facts["pyarrow"] == "missing: pip install 'pyarrow>=26' 'zstandard>=0.22'"
    assert facts["torch"] == f"missing: {install_command('train')}"
    assert facts["numba"] == "missing: pip install numba"
    assert facts["compiled kernels"].startswith("no home directory, so every process")


BAD = {
    "misspelt setting": (
        [
            "pretrain",
            "recipe.toml",
            "--corpus",
            "corpus",
            "--out",
            "new",
            "--set",
            "optimizer.lerning_rate=1",
        ],
        "did you mean 'optimizer.learning_rate'?",
    ),
    "setting of the wrong type": (
        ["pretrain", "recipe.toml", "--corpus", "corpus", "--out", "new", "--set", "batch_size=many"],
        "batch_size = 'many'",
    ),
    "heads that do not divide the width": (
        [
            *["pretrain", "recipe.toml", "--corpus", "corpus", "--out", "new"],
            *["--set", "model.num_attention_heads=3"],
        ],
        "recipe.toml: model.num_attention_heads = 3: expected a divisor of hidden_size 16, such as 2",
    ),
    "width that the heads do not divide": (
        ["pretrain", "recipe.toml", "--corpus", "corpus", "--out", "new", "--set", "model.hidden_size=25"],
        "recipe.toml: model.num_attention_heads = 2: expected a divisor of hidden_size 25, such as 1",
    ),
    "probabilities that exceed 1": (
        [
            *["pretrain", "recipe.toml", "--corpus", "corpus", "--out", "new"],
            *["--set", "examples.mask_probability=0.95"],
        ],
        "recipe.toml: examples: mask_probability 0.95 and keep_probability 0.1 add up to more than 1",
    ),
    "misspelt recipe": (["pretrain", "bass", "--corpus", "corpus", "--out", "new"], "did you mean 'base'?"),
    "missing recipe file": (
        ["pretrain", "no.toml", "--corpus", "corpus", "--out", "new"],
        "no.toml: no such file",
    ),
    "missing corpus": (["pretrain", "recipe.toml", "--corpus", "nowhere", "--out", "new"], "nowhere"),
    "folder that is not a corpus": (
        ["pretrain", "recipe.toml", "--corpus", "text", "--out", "new"],
        "bertie prepare",
    ),
    "existing run": (["pretrain", "recipe.toml", "--corpus", "corpus", "--out", "run"], "--resume"),
    "missing input": (["vocab", "nowhere.txt", "--out", "new"], "nowhere.txt"),
    "input without words": (["vocab", "empty.txt", "--out", "new"], "empty.txt: the file holds no text"),
    "empty corpus": (["prepare", "empty.txt", "--tokenizer", "tokenizer", "--out", "new"], "empty.txt"),
    "missing tokenizer": (["prepare", "text", "--tokenizer", "nowhere", "--out", "new"], "nowhere"),
    "vocabulary of another model": (
        ["pretrain", "recipe.toml", "--corpus", "corpus", "--out", "new", "--set", "model.vocab_size=50"],
        "the model has embeddings for 50; set model.vocab_size to",
    ),
    "text without a tokenizer": (
        ["tokenize", "A text. " * 40],
        "too long",  # Python 3.14 finds it at another place
    ),
    "missing model": (["predict", "nowhere", "--text", "[MASK]"], "no such model directory"),
    "folder that is not a model": (["predict", "text", "--text", "[MASK]"], "no config.json"),
    "text without a mask": (["predict", "run/model", "--text", "nothing"], "[MASK]"),
    "nothing to predict": (["predict", "run/model"], "--text or --input"),
    "missing text file": (["predict", "run/model", "--input", "nowhere.txt"], "nowhere.txt: no such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_2(case, workspace, capsys, monkeypatch):
    monkeypatch.chdir(workspace)
    (workspace / "empty.txt").write_text("\n  \n")
    before = {path: path.stat().st_mtime_ns for path in workspace.rglob("*") if path.is_file()}
    arguments, expected = BAD[case]
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("bertie: ")]
    assert expected in line
    assert err.splitlines()[-1] == line
    after = {path: path.stat().st_mtime_ns for path in workspace.rglob("*") if path.is_file()}
    assert after == before
    assert not (workspace / "new").exists()


@pytest.mark.usefixtures("unverified")
def test_tokenizer_larger_than_the_model_is_an_error(workspace, capsys, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(workspace / "run" / "model", model)
    (model / "vocab.txt").write_text((model / "vocab.txt").read_text() + "extra\n")
    (model / "tokenizer.json").unlink()
    status, _, err = run(capsys, "predict", model, "--text", "[MASK]")
    assert status == 2
    assert "the tokenizer has" in err


@pytest.mark.usefixtures("unverified")
def test_truncated_weights_are_reported_with_the_file(workspace, capsys, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(workspace / "run" / "model", model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    status, _, err = run(capsys, "predict", model, "--text", "[MASK]")
    assert status == 2
    assert "model.safetensors: damaged" in err


def test_phases_can_be_changed_as_the_error_says(workspace, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(workspace)
    arguments = ["pretrain", "recipe.toml", "--corpus", "corpus", "--out", tmp_path / "run"]
    status, _, err = run(capsys, *arguments, "--set", "phases.steps=2")
    assert (status, "a section; set a key in it, such as phases.0.steps" in err) == (2, True)
    status, _, err = run(capsys, *arguments, "--set", "steps=2")
    assert (status, "unknown setting 'steps'; did you mean 'phases.0.steps'?" in err) == (2, True)
    status, _, err = run(capsys, *arguments, "--set", "phases.0.steps=2")
    assert status == 0, err
    assert read_toml(tmp_path / "run" / "settings.toml")["phases"][0]["steps"] == 2


def test_version():
    command = [sys.executable, "-m", "bertie", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"bertie {bertie.__version__}\n"


def test_without_a_command_the_help_is_shown(capsys):
    _, out, err = run(capsys)
    assert "pretrain" in out + err


@pytest.mark.parametrize(
    ("command", "kinds"),
    [("pretrain", ["recipe"]), ("search", ["grid"]), ("reproduce", ["table", "scale"])],
)
def test_help_lists_the_recipes_of_a_command(capsys, command, kinds):
    status, out, _ = run(capsys, command, "--help")
    listed = {line.split()[0] for line in out.split("s:\n", 1)[1].splitlines() if line.startswith("  ")}
    expected = {recipe.name for recipe in list_recipes() if recipe.kind in kinds}
    others = {recipe.name for recipe in list_recipes() if recipe.kind not in kinds}
    assert status == 0
    assert expected <= listed
    assert not others & listed


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("table5", "recipe", "no recipe 'table5'; it is a table; use it with `bertie reproduce table5`"),
        ("search", "table", "no table 'search'; it is a grid; use it with `bertie search --recipe search`"),
        ("serch", "grid", "no grid 'serch'; did you mean 'search'?"),
        ("xx", "scale", "no scale 'xx'; choose one of laptop, paper, or the path of a .toml file"),
    ],
)
def test_only_recipes_of_the_command_are_offered(name, kind, message):
    with pytest.raises(bertie.SettingsError) as raised:
        read_recipe(name, kind)
    assert str(raised.value) == message


def test_every_recipe_is_described_in_one_line():
    recipes = list_recipes()
    assert {recipe.kind for recipe in recipes} == {"recipe", "grid", "table", "scale"}
    for recipe in recipes:
        assert read_recipe(recipe.name, recipe.kind)
        assert 10 < len(recipe.description) < 110, recipe


def test_help_of_every_command_is_a_sentence():
    assert len(app.registered_commands) >= 18
    for command in app.registered_commands:
        assert command.callback.__doc__.strip().endswith(".")


def test_help_names_no_types_of_python(capsys):
    for command in app.registered_commands:
        out = run(capsys, command.callback.__name__, "--help")[1]
        assert all("|" in values for values in re.findall(r"<.*?>", out)), out  # only choices
    out = run(capsys, "predict", "--help")[1]
    assert re.search(r"^  DIR  A model directory", out, re.MULTILINE)
    assert re.search(r"^  --text TEXT .*--top-k NUMBER ", out, re.MULTILINE | re.DOTALL)


def test_summaries_of_commands_fit_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, _, summaries = run(capsys, "--help")[1].partition("Commands:\n")
    assert summaries.count("\n") >= 18
    assert "..." not in summaries


def test_a_run_resumes_from_its_directory_only(workspace, capsys, tmp_path):
    """The last checkpoint and the model are lost, as if the run had been killed before."""
    shutil.copytree(workspace / "run", tmp_path / "run")
    before = (tmp_path / "run/model/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run/model")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000003")
    status, _, err = run(capsys, "pretrain", "--resume", "--out", tmp_path / "run")
    assert status == 0, err
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == before
    card = (tmp_path / "run/model/README.md").read_text()
    corpus = Corpus.open(workspace / "corpus")
    assert 'The corpus "corpus" has 27 training documents' in card
    assert f"{corpus.manifest.train.tokens:,} tokens; its fingerprint is `{corpus.fingerprint}`" in card


def test_a_command_ends_without_a_search_for_garbage():
    code = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 1000)); "
        "from bertie.commands.main import main; sys.argv = ['bertie', '--version']; main()"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split()[-1] == "True"


def test_closed_pipe_ends_a_command_quietly_with_141(workspace):
    """As in `bertie tokenize … | head -1`; the output is larger than a pipe."""
    with subprocess.Popen(
        [sys.executable, "-m", "bertie", "tokenize", "tokenizer", "all is well " * 9000],
        cwd=workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--help"], ["tokenize", "tokenizer", "well"]])
def test_pipe_that_is_closed_before_the_first_line(workspace, arguments):
    """Output that fits in a buffer is written at the end."""
    command = [sys.executable, "-m", "bertie", *arguments]
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = subprocess.run(
            command, cwd=workspace, stdout=reader.stdin, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("stderr", ["2>&-", "2</dev/null"], ids=["closed", "open for reading"])
def test_a_command_runs_without_standard_error(tmp_path, stderr):
    """In a shell script that is called with `2>&-`, the script itself is open for reading as file 2."""
    (tmp_path / "words.txt").write_text("all is well\n" * 9)
    script = f'exec "$0" -m bertie vocab words.txt --size 120 --out tokenizer {stderr}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable], cwd=tmp_path, check=False, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"tokenizer\n")
    assert (tmp_path / "tokenizer" / "vocab.txt").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--data", "dev.csv"],
        ["tokenize", "tokenizer", "well"],
        ["inspect", "model"],
        ["doctor"],
        ["evaluate", "--task", "blimp", "--data", "blimp"],
    ],
    ids=" ".join,
)
def test_closed_standard_output_is_refused_where_results_go(workspace, capsys, monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "argv", ["bertie", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    assert capsys.readouterr().err == "bertie: standard output is closed; redirect it to a file\n"


# A command that Ctrl-C interrupts where Python or numba would drop KeyboardInterrupt. Each place has its own
# process, forked because the imports take most of the time, and a file with its standard error.
INTERRUPTED = """
import atexit, os, signal, sys, threading, time
atexit.register(lambda: place == "exit" and signal.raise_signal(signal.SIGINT))
import numpy as np
from bertie.__main__ import main
from bertie.base.kernels import kernel
from bertie.commands.main import app
from bertie.commands.options import exit_on_interrupt

@kernel
def compute(steps):
    array = np.zeros(1)
    for _ in range(steps):
        array[0] = np.cos(array[0])
    return array, np.zeros(1)

class Freed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def interrupt_callback(frame, *_):
    if frame.f_code.co_name == "cb":  # of a weak reference, which importlib makes for each module
        sys.settrace(None)
        signal.raise_signal(signal.SIGINT)

@app.command()
def wait(place: str):
    with exit_on_interrupt(lambda: "run it again"):
        if place == "kernel":
            compute(1)
            threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
            compute(30_000_000)
        elif place == "import":
            sys.settrace(interrupt_callback)
            import colorsys
        elif place == "model":  # which Python frees after `main`
            held = Freed()
            raise KeyboardInterrupt
        else:
            Freed()
        time.sleep(60)

for place in ("kernel", "destructor", "import", "model", "exit"):
    process = os.fork()
    if not process:
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = ["bertie", "wait", place]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
place = ""
"""


def test_ctrl_c_is_one_line_and_status_130(tmp_path):
    """A second Ctrl-C, while Python exits, is silent."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    command = [sys.executable, "interrupted.py"]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=200)
    *statuses, model, at_exit = done.stdout.split()
    assert statuses == ["130"] * 3
    assert model in ("130", str(-signal.SIGINT))  # Python 3.13 frees the model before `main` ends
    assert at_exit == str(-signal.SIGINT)
    for place in ("kernel", "destructor", "import"):
        err = (tmp_path / place).read_text()
        assert err.splitlines()[-1] == "bertie: stopped; run it again"
        assert "Traceback" not in err
    for place in ("model", "exit"):
        assert (tmp_path / place).read_text() == "bertie: stopped; run it again\n"


def test_the_command_that_resumes_a_run_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my run").mkdir()
    Path("my run/settings.toml").touch()
    message = how_to_resume("pretrain", Path("my run"))
    assert message == "stopped and saved in my run; continue with: bertie pretrain --resume --out 'my run'"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("command", ["measuring", "step 0", "finetune", "search"])
def test_a_signal_before_the_first_step_gives_advice(workspace, capsys, tmp_path, monkeypatch, command, name):
    (tmp_path / "train.csv").write_text("text,label\n" + "all is well,a\nsays that,b\n" * 4)
    pretrain = ["pretrain", "recipe.toml", "--corpus", "corpus", "--init", "run/model"]
    tune = ["--model", "run/model", "--train", tmp_path / "train.csv", "--dev", tmp_path / "train.csv"]
    arguments, function = {
        "measuring": (pretrain, "bertie.training.pretraining.measure_plan"),
        "step 0": (pretrain, "bertie.training.held_out.HeldOut.evaluate"),
        "finetune": (["finetune", *tune], "bertie.training.finetuning.encode_examples"),
        "search": (["search", *tune], "bertie.training.search.encode_examples"),
    }[command]
    monkeypatch.chdir(workspace)
    handler = signal.getsignal(signal.SIGTERM)
    out, number = tmp_path / "new", signal.Signals[name]
    with monkeypatch.context() as patch:
        patch.setattr(function, lambda *_, **options: signal.raise_signal(number))
        status, _, err = run(capsys, *arguments, "--out", out)
    message = f"stopped before the run began, so nothing is saved in {out}; run the command again"
    if command == "step 0":
        message = f"stopped and saved in {out}; continue with: bertie pretrain --resume --out {out}"
        arguments = ["pretrain", "--resume"]
    assert (status, err.splitlines()[-1]) == (128 + number, f"bertie: {message}")
    assert signal.getsignal(signal.SIGTERM) is handler
    if name == "SIGTERM" and command in ("measuring", "step 0"):
        assert run(capsys, *arguments, "--out", out)[0] == 0


def test_ctrl_c_before_the_command_runs(capsys, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("bertie.commands.main.app", interrupt)
    assert run(capsys, "doctor") == (130, "", "")


INTERRUPTED_IMPORT = """
import sys
from importlib.abc import MetaPathFinder
class Interrupt(MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "bertie.commands.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""
INTERRUPTED_PARSING = """
import signal
import bertie.commands.main as command
command._prepare_streams = lambda: signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize("interrupt", [INTERRUPTED_IMPORT, INTERRUPTED_PARSING])
def test_ctrl_c_before_the_command_is_parsed_is_silent(interrupt):
    code = f"{interrupt}\nfrom bertie.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_stays_ignored_where_it_was():
    """As in a script's job in the background."""
    code = (
        "import atexit, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "sys.argv = ['bertie', '--help']\n"
        "atexit.register(lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN))\n"
        "from bertie.__main__ import main\n"
        "main()"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split()[-1] == "True"
