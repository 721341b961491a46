"""`bertie.pretrain`: recipes by name, path and dict; changes to them; resume after an interrupt."""

import ast
import json
import math
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file

import bertie
from bertie.api.pretraining import plan_pretraining
from bertie.base.settings import read_toml
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import named_weights, save_model
from bertie.model.heads import EncoderModel, MaskedLMModel, NextSentenceModel
from bertie.training import loop
from bertie.training.schedules import warmup_then_linear_decay

MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
PHASES = [{"steps": 4, "max_seq_length": 32}]
RECIPE: dict[str, Any] = {
    "warmup_steps": 1,
    "batch_size": 4,
    "log_every": 2,
    "held_out_examples": 8,
    "device": "cpu",
    "phases": PHASES,
    "model": MODEL,
}


def read_settings(run: Path) -> str:
    return (run / "settings.toml").read_text(encoding="utf-8")


def test_recipe_is_a_path_or_a_dict(corpus):
    Path("recipe.toml").write_text(tomli_w.dumps(RECIPE), encoding="utf-8")
    dotted = {key: value for key, value in RECIPE.items() if key != "model"}
    dotted |= {f"model.{key}": value for key, value in MODEL.items()}
    recipes = {"text": "recipe.toml", "path": Path("recipe.toml"), "dict": RECIPE, "dotted": dotted}
    runs = {name: bertie.pretrain(recipe, corpus=corpus, out=name) for name, recipe in recipes.items()}
    expected = (runs["text"].model_directory / "model.safetensors").read_bytes()
    for name, run in runs.items():
        assert read_settings(run.path) == read_settings(runs["text"].path), name
        assert (run.model_directory / "model.safetensors").read_bytes() == expected, name
    assert runs["dict"].metrics.select("kind", "train")["step"] == [2, 4]
    assert runs["dict"].load("cpu").method == "fill_mask"
    with torch.no_grad():
        run = bertie.pretrain(RECIPE, corpus=corpus, out="without gradients")
    assert (run.model_directory / "model.safetensors").read_bytes() == expected


def test_recipe_of_bertie_by_name_with_changes(corpus):
    run = bertie.pretrain(
        "tiny-laptop",
        corpus=corpus,
        out="run",
        settings={
            "phases": PHASES,
            "warmup_steps": 1,
            "optimizer.learning_rate": 1e-3,
            "held_out_examples": 8,
        },
        batch_size=2,
        model=MODEL,
        device="cpu",
    )
    assert "batch_size = 2\n" in read_settings(run.path)
    assert "learning_rate = 0.001\n" in read_settings(run.path)
    assert run.metrics["step"][-1] == 4


def test_init_starts_from_a_model(corpus):
    first = bertie.pretrain(RECIPE, corpus=corpus, out="first")
    second = bertie.pretrain(RECIPE, corpus=corpus, out="second", init=first.model_directory)
    assert second.metrics["loss"][0] != first.metrics["loss"][0]


def test_a_run_without_checkpoints_resumes_from_its_initial_model(corpus):
    first = bertie.pretrain(RECIPE, corpus=corpus, out="first")
    second = bertie.pretrain(RECIPE, corpus=corpus, out="second", init=first.model_directory)
    model = (second.model_directory / "model.safetensors").read_bytes()
    shutil.rmtree(second.path / "checkpoints")
    shutil.rmtree(second.model_directory)
    again = bertie.pretrain(out="second", resume=True)
    assert (again.model_directory / "model.safetensors").read_bytes() == model
    shutil.rmtree(second.path / "checkpoints")
    shutil.rmtree(second.model_directory)
    shutil.rmtree(first.path)
    with pytest.raises(bertie.BertieError, match="first/model: no such model directory"):
        bertie.pretrain(out="second", resume=True)


def test_a_run_in_a_folder_that_is_not_utf8_resumes_and_loads(corpus):
    run = bertie.pretrain(RECIPE, corpus=corpus, out=os.fsdecode(b"caf\xe9"))
    model = (run.model_directory / "model.safetensors").read_bytes()
    shutil.rmtree(run.model_directory)
    again = bertie.pretrain(out=run.path, resume=True)
    assert (again.model_directory / "model.safetensors").read_bytes() == model
    assert again.load("cpu").method == "fill_mask"


def test_a_finished_run_without_checkpoints_is_not_trained_again(corpus, capsys):
    run = bertie.pretrain(RECIPE, corpus=corpus, out="run", save_every=0)
    metrics, model = (run.path / "metrics.jsonl").read_bytes(), run.model_directory / "model.safetensors"
    changed = model.stat().st_mtime_ns
    again = bertie.pretrain(out="run", resume=True)
    assert "run: has finished; the model is in run/model" in capsys.readouterr().err
    assert (again.path / "metrics.jsonl").read_bytes() == metrics
    assert model.stat().st_mtime_ns == changed


def test_resuming_a_finished_run_keeps_its_date(corpus):
    run = bertie.pretrain(RECIPE, corpus=corpus, out="run")
    os.utime(run.path / "metrics.jsonl", (1e9, 1e9))
    bertie.pretrain(out="run", resume=True)
    assert "Trained on 2001-09-09 with" in (run.model_directory / "README.md").read_text()
    assert "2001-09-09 01:46 UTC" in run.report.read_text()


def test_runs_in_two_threads_are_those_of_one(corpus):
    def train(seed: int, out: str) -> bytes:
        run = bertie.pretrain(RECIPE, corpus=corpus, out=out, seed=seed)
        return (run.model_directory / "model.safetensors").read_bytes()

    one_by_one = [train(seed, f"first-{seed}") for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        together = [pool.submit(train, seed, f"together-{seed}") for seed in (1, 2)]
        assert [future.result() for future in together] == one_by_one


def test_inference_mode_and_random_numbers_of_a_script_stay(corpus):
    first = bertie.pretrain(RECIPE, corpus=corpus, out="run")
    expected = (first.model_directory / "model.safetensors").read_bytes()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.inference_mode():
        run = bertie.pretrain(RECIPE, corpus=corpus, out="again")
        plan_pretraining(RECIPE, corpus=corpus, out="planned")
        assert torch.is_inference_mode_enabled()
    assert (run.model_directory / "model.safetensors").read_bytes() == expected
    assert torch.equal(torch.get_rng_state(), before)


def test_a_diverged_run_writes_no_model(corpus):
    with pytest.raises(
        bertie.BertieError, match="out: the run has diverged: its last evaluation has no finite loss"
    ):
        bertie.pretrain(RECIPE, corpus=corpus, out="out", optimizer={"learning_rate": 1e30})
    assert not Path("out/model").exists()
    with pytest.raises(bertie.SettingsError, match="learning_rate = inf: expected a finite number"):
        bertie.pretrain(RECIPE, corpus=corpus, out="out2", optimizer={"learning_rate": math.inf})


def test_sizes_come_from_the_initial_model(corpus):
    first = bertie.pretrain(RECIPE, corpus=corpus, out="first")
    recipe = {**RECIPE, "model": {**MODEL, "hidden_size": 64, "hidden_dropout_prob": 0.2}}
    second = bertie.pretrain(recipe, corpus=corpus, out="second", init=first.model_directory)
    model = read_toml(second.path / "settings.toml")["model"]
    assert (model["hidden_size"], model["hidden_dropout_prob"]) == (16, 0.2)
    assert second.metrics["step"][0] == 0


def test_model_grows_into_an_extended_tokenizer(corpus, monkeypatch):
    text = Path("text.jsonl")
    rows = [{"text": f"Lines {n}.\nWells.", "label": "ab"[n % 2]} for n in range(30)]
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = bertie.pretrain(RECIPE, corpus=corpus, out="first")
    old = bertie.Tokenizer.load(first.model_directory).vocabulary
    new = bertie.extend_tokenizer(first.model_directory, text, "extended", add=2, workers=1)
    bertie.prepare(text, tokenizer="extended", out="corpus", held_out=0.1, workers=1)

    def die(*arguments, **options):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("bertie.training.pretraining.train", die)
        with pytest.raises(RuntimeError, match="killed"):
            bertie.pretrain(RECIPE, corpus="corpus", out="second", init=first.model_directory)
    # With the recipe, which does not name the size of the vocabulary.
    run = bertie.pretrain(RECIPE, corpus="corpus", out="second", resume=True)
    assert read_toml(run.path / "settings.toml")["model"]["vocab_size"] == len(new.vocabulary)
    assert new.vocabulary.tokens[: len(old)] == old.tokens
    assert new.vocabulary.tokens[len(old) :] == ("lines", "wells")
    name = "bert.embeddings.word_embeddings.weight"
    assert len(load_file(run.model_directory / "model.safetensors")[name]) == len(old) + 2
    columns = {"text": "text", "label": "label"}
    settings = {"max_seq_length": 32, "epochs": 1}
    tuned = bertie.finetune(
        run.model_directory, train=rows, dev=rows, **columns, out="tuned", settings=settings
    )
    assert bertie.Tokenizer.load(tuned.model_directory).fingerprint == new.fingerprint


def test_setting_that_contradicts_the_initial_model_is_refused(corpus):
    first = bertie.pretrain(RECIPE, corpus=corpus, out="first")
    options = {"corpus": corpus, "out": "second", "init": first.model_directory}
    with pytest.raises(
        bertie.ModelError, match=r"contradict the initial model: .*; leave out model\.hidden_size$"
    ):
        bertie.pretrain(RECIPE, **options, settings={"model.hidden_size": 32})
    assert not Path("second").exists()
    longer = [{"steps": 1, "max_seq_length": 32}, {"steps": 1, "max_seq_length": 128}]
    with pytest.raises(bertie.SettingsError, match=r"has 64 positions, but .* is 128; pass --set ") as raised:
        bertie.pretrain(RECIPE, **options, phases=longer)
    advised = ast.literal_eval(str(raised.value).rpartition("(settings=")[2].removesuffix(")"))
    assert bertie.pretrain(RECIPE, **options, settings={"phases": longer} | advised).path.exists()


@pytest.mark.parametrize(
    ("architecture", "new"),
    [
        (EncoderModel, "the masked-LM head, the next-sentence head"),
        (MaskedLMModel, "the next-sentence head, the pooler"),
        (NextSentenceModel, "the masked-LM head"),
    ],
)
def test_missing_heads_are_new_and_reported(corpus, capsys, architecture, new):
    tokenizer = bertie.Tokenizer.load(corpus / "tokenizer")
    config = bertie.BertConfig(vocab_size=len(tokenizer.vocabulary), **MODEL)
    network = architecture(config)
    save_model(
        Path("model"), network, ModelMetadata(config, architecture.architecture, (), tokenizer), "card"
    )
    run = bertie.pretrain(RECIPE, corpus=corpus, out="run", init="model", settings={"phases.0.steps": 1})
    assert f"\nmodel: new with random weights: {new}\n" in "\n" + capsys.readouterr().err
    initial = load_file(run.path / "checkpoints" / "step-00000000" / "model.safetensors")
    for name, weight in named_weights(network).items():
        assert torch.equal(initial[name], weight), name


@pytest.mark.usefixtures("unverified")
def test_damaged_head_of_the_initial_model_is_an_error(corpus):
    first = bertie.pretrain(RECIPE, corpus=corpus, out="first")
    file = first.model_directory / "model.safetensors"
    weights = load_file(file)
    del weights["cls.predictions.transform.dense.weight"]
    save_file(weights, file)
    with pytest.raises(
        bertie.ModelError, match=r"weight cls\.predictions\.transform\.dense\.weight is missing"
    ):
        bertie.pretrain(RECIPE, corpus=corpus, out="run", init=first.model_directory)


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("tiny-latop", {}, "no recipe 'tiny-latop'; did you mean 'tiny-laptop'?"),
        ("no.toml", {}, "no.toml: no such file"),
        (RECIPE, {"bach_size": 8}, "recipe: unknown setting 'bach_size'; did you mean 'batch_size'?"),
        (
            RECIPE,
            {"mlm_probability": 0.2},
            "recipe: unknown setting 'mlm_probability'; did you mean 'examples.masking_rate'?",
        ),
        (RECIPE, {"eval_steps": 9}, "recipe: unknown setting 'eval_steps'; did you mean 'evaluate_every'?"),
        (RECIPE, {"settings": {"optimizer.rate": 1}}, "recipe: unknown setting 'optimizer.rate'; "),
        (RECIPE, {"seed": 2**70}, "recipe: seed = 1180591620717411303424: use a seed of less than 64 bits"),
        (RECIPE, {"batch_size": "many"}, "recipe: batch_size = 'many': expected an integer"),
    ],
)
def test_wrong_recipes_and_settings_are_a_settings_error(corpus, recipe, options, message):
    with pytest.raises(bertie.SettingsError) as raised:
        bertie.pretrain(recipe, corpus=corpus, out="run", **options)
    assert str(raised.value).startswith(message)
    assert not Path("run").exists()


def test_missing_corpus_is_a_data_error():
    with pytest.raises(bertie.DataError, match="nowhere"):
        bertie.pretrain(RECIPE, corpus="nowhere", out="run")


def test_interrupted_run_is_saved_and_resumes(corpus, monkeypatch):
    def interrupt(*arguments: Any) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return warmup_then_linear_decay(*arguments)

    whole = bertie.pretrain(RECIPE, corpus=corpus, out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "warmup_then_linear_decay", interrupt)
        with pytest.raises(bertie.Stopped, match="run; repeat the call with out='run' and resume=True"):
            bertie.pretrain(RECIPE, corpus=corpus, out="run")
    with pytest.raises(
        bertie.SettingsError, match=r"run: already holds a run; pass --resume \(resume=True\)"
    ):
        bertie.pretrain(RECIPE, corpus=corpus, out="run")
    shutil.copytree("run", "with_recipe")
    shutil.copytree("run", "old")
    Path("old/arguments.json").unlink()
    with pytest.raises(bertie.SettingsError, match=r"batch_size was 4 when .*; resume without this setting"):
        bertie.pretrain(out="run", resume=True, batch_size=8)
    resumed = bertie.pretrain(out="run", resume=True, keep_checkpoints=1)
    assert resumed.metrics["loss"] == whole.metrics["loss"]
    assert len(list(Path("run/checkpoints").iterdir())) == 1
    again = bertie.pretrain(RECIPE, corpus=corpus, out="with_recipe", resume=True)
    assert again.metrics["loss"] == whole.metrics["loss"]
    with pytest.raises(
        bertie.SettingsError, match=r"old: .* the corpus directory \(--corpus, corpus=…\) again"
    ):
        bertie.pretrain(out="old", resume=True)
    assert bertie.pretrain(out="old", corpus=corpus, resume=True).metrics["loss"] == whole.metrics["loss"]


def test_resume_refuses_other_arguments(corpus, model):
    bertie.pretrain(RECIPE, corpus=corpus, out="run")
    with pytest.raises(
        bertie.SettingsError, match=r"run: init was None when the run started and is '/.*; leave it"
    ):
        bertie.pretrain(out="run", resume=True, init=model)
    with pytest.raises(bertie.SettingsError, match="nothing: no run to resume here"):
        bertie.pretrain(out="nothing", resume=True)
    with pytest.raises(bertie.SettingsError, match=r"nothing to start from; pass the corpus directory"):
        bertie.pretrain(RECIPE, out="new")
    with pytest.raises(bertie.SettingsError, match="no recipe; name one"):
        bertie.pretrain(corpus=corpus, out="new")


def test_moved_corpus_can_be_given_again(corpus):
    shutil.copytree(corpus, "corpus")
    whole = bertie.pretrain(RECIPE, corpus="corpus", out="run")
    shutil.rmtree("run/checkpoints")
    Path("corpus").rename("moved")
    with pytest.raises(bertie.DataError, match=r"corpus: .* or give the new path of a corpus that has moved"):
        bertie.pretrain(out="run", resume=True)
    resumed = bertie.pretrain(out="run", corpus="moved", resume=True)
    assert resumed.metrics["loss"] == whole.metrics["loss"]


@pytest.mark.parametrize("arguments", [{"corpus": 5}, {"in_memory": 5}, [], {"recipe": None}])
def test_resume_reports_damaged_arguments(corpus, arguments):
    bertie.pretrain(RECIPE, corpus=corpus, out="run")
    Path("run/arguments.json").write_text(json.dumps(arguments))
    key = next(iter(arguments), "the content")
    with pytest.raises(
        bertie.SettingsError, match=rf"run/arguments\.json: damaged \({key}\); restore it, or"
    ):
        bertie.pretrain(out="run", resume=True)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("arguments.json", r"not valid JSON \(.*\); restore it, or start again"),
        ("settings.toml", "changed since the run wrote it; restore it, or"),
    ],
)
def test_resume_reports_a_truncated_file(corpus, file, message):
    bertie.pretrain(RECIPE, corpus=corpus, out="run")
    path = Path("run") / file
    path.write_text(path.read_text()[:-5])
    with pytest.raises(bertie.BertieError, match=f"run/{file}: {message}"):
        bertie.pretrain(out="run", resume=True)


@pytest.mark.parametrize("command", [bertie.pretrain, bertie.finetune])
def test_empty_settings_of_a_run_are_reported(command):
    Path("run").mkdir()
    Path("run/settings.toml").touch()
    with pytest.raises(bertie.SettingsError, match=r"run/settings\.toml: damaged or empty; restore it, or"):
        command(out="run", resume=True)


@pytest.mark.parametrize("cursor", [{}, {"phase": 0}, {"phase": 7}, {"phase": 0, "stream": {"taken": 0}}])
def test_resume_reports_a_damaged_position_in_the_data(corpus, cursor):
    bertie.pretrain(RECIPE, corpus=corpus, out="run", save_every=2)
    checkpoint = Path("run/checkpoints/step-00000004")
    state = json.loads((checkpoint / "state.json").read_text())
    stream = state["cursor"]["stream"] if cursor == {"phase": 7} else {}
    state["cursor"] = cursor | ({"stream": stream} if stream else {})
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / "SHA256SUMS").unlink()
    with pytest.raises(
        bertie.ModelError, match=r"state\.json: damaged \(cursor\); remove .*step-00000004 to resume"
    ):
        bertie.pretrain(out="run", resume=True)
    shutil.rmtree(checkpoint)
    shutil.rmtree("run/model")
    bertie.pretrain(out="run", resume=True)


def test_plan_writes_nothing(corpus):
    plan = plan_pretraining(RECIPE, corpus=corpus, out="run")
    assert "parameters" in str(plan)
    assert not Path("run").exists()


def test_plan_checks_the_types_of_its_arguments(corpus):
    with pytest.raises(bertie.SettingsError, match="out: expected a path, got int"):
        plan_pretraining(RECIPE, corpus=corpus, out=1)


def test_the_corpus_is_not_a_setting(corpus):
    message = "corpus: a run fills in this setting; leave it out, and choose the corpus with its option"
    with pytest.raises(bertie.SettingsError, match=message):
        bertie.pretrain(RECIPE, corpus=corpus, out="run", settings={"corpus": "other"})
    with pytest.raises(bertie.SettingsError, match="recipe: a recipe names no corpus; leave it out"):
        bertie.pretrain({**RECIPE, "corpus": "other"}, corpus=corpus, out="run")
    run = bertie.pretrain(RECIPE, corpus=corpus, out="run")
    again = bertie.pretrain(run.path / "settings.toml", corpus=corpus, out="again")
    assert again.metrics["loss"] == run.metrics["loss"]
