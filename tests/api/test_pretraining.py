"""`bertie.pretrain`: recipes by name, path and dict; changes to them; resume after an interrupt."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import bertie
from bertie.api.pretraining import plan_pretraining
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

pytestmark = pytest.mark.usefixtures("no_reports")


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


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("tiny-latop", {}, "no recipe 'tiny-latop'; did you mean 'tiny-laptop'?"),
        ("no.toml", {}, "no.toml: no such file"),
        (RECIPE, {"bach_size": 8}, "recipe: unknown setting 'bach_size'; did you mean 'batch_size'?"),
        (RECIPE, {"settings": {"optimizer.rate": 1}}, "recipe: unknown setting 'optimizer.rate'; "),
        (RECIPE, {"batch_size": "many"}, "recipe: batch_size = 'many': input should be a valid integer"),
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
        with pytest.raises(bertie.Stopped, match="saved in run; call again with out='run' and resume=True"):
            bertie.pretrain(RECIPE, corpus=corpus, out="run")
    with pytest.raises(
        bertie.SettingsError, match=r"run: already holds a run; pass --resume \(resume=True\)"
    ):
        bertie.pretrain(RECIPE, corpus=corpus, out="run")
    resumed = bertie.pretrain(RECIPE, corpus=corpus, out="run", resume=True)
    assert resumed.metrics["loss"] == whole.metrics["loss"]


def test_plan_writes_nothing(corpus):
    plan = plan_pretraining(RECIPE, corpus=corpus, out="run")
    assert "parameters" in str(plan)
    assert not Path("run").exists()
