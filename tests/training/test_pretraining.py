"""Small runs of pre-training: their results, resuming, and errors."""

import math
import shutil
import signal
import threading
from collections.abc import Container
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.training.runs import NO_DROPOUT, assert_same_weights, read_rows, read_weights, without_checksum
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, AutoTokenizer

from bertie.base.errors import BertieError, DataError, ModelError, SettingsError
from bertie.base.settings import read_toml, resolve
from bertie.corpus.examples import ExampleSettings
from bertie.corpus.preparation import PreparationOptions, prepare
from bertie.corpus.prepared import Corpus
from bertie.model.batch import pack
from bertie.model.config import BertConfig
from bertie.model.formats.weights import load_model
from bertie.model.heads import ObjectiveLoss, PreTrainingModel
from bertie.recipes import read_recipe
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.distributed import Ranks
from bertie.training.held_out import (
    HeldOut,
    evaluate_pretraining,
    format_metrics,
    majority_baseline,
    unigram_baseline,
    unigram_counts,
)
from bertie.training.loop import MAX_SKIPPED_STEPS
from bertie.training.optimizers import OptimizerSettings
from bertie.training.planning import plan_pretraining
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.pretraining_setup import PretrainingBatches, PretrainingSetup
from bertie.training.signals import Stopped


def stop_at(step: int, run: Path) -> None:
    """Start a thread that sends SIGINT once `step` is logged."""

    def watch() -> None:
        while not (run / "metrics.jsonl").exists() or all(row["step"] < step for row in read_rows(run)):
            pass
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture(scope="module")
def finished(corpus_path, tmp_path_factory, tiny_settings) -> Path:
    """The directory of a complete run with the tiny settings."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    pretrain(tiny_settings(), corpus_path, run)
    return run


def test_recipe_base_matches_appendix_a2():
    settings = resolve(PretrainingSettings, read_recipe("base"))
    assert (settings.batch_size, settings.warmup_steps) == (256, 10_000)
    assert [(phase.steps, phase.max_seq_length) for phase in settings.phases] == [
        (900_000, 128),
        (100_000, 512),
    ]
    assert settings.optimizer == OptimizerSettings(
        name="adamw",
        learning_rate=1e-4,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        bias_correction=False,
        max_gradient_norm=1.0,
    )
    assert settings.examples == ExampleSettings(
        short_sequence_probability=0.1,
        masking_rate=0.15,
        mask_probability=0.8,
        keep_probability=0.1,
        max_predictions_per_sequence=None,
        whole_word_masking=False,
        pairs="random",
    )
    assert settings.model == BertConfig(
        num_hidden_layers=12,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=2,
        initializer_range=0.02,
        layer_norm_eps=1e-12,
    )


def test_run_leaves_settings_metrics_checkpoints_and_model(finished, tiny_settings):
    rows = read_rows(finished)
    assert [row["step"] for row in rows if row["kind"] == "train"] == [3, 6, 9, 12]
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [5, 10, 12]
    assert rows[-1]["perplexity"] > 1
    assert 0 <= rows[-1]["next_sentence_accuracy"] <= 1
    assert 0.5 <= rows[-1]["majority_accuracy"] < 1
    assert sorted(path.name for path in (finished / "checkpoints").iterdir()) == [
        "step-00000008",
        "step-00000012",
    ]
    settings = resolve(PretrainingSettings, read_toml(finished / "settings.toml"))
    assert settings.model.vocab_size == len(Tokenizer.load(finished / "model").vocabulary)
    assert settings.micro_batch_tokens == 4096
    completed = {"corpus_fingerprint": "", "model": tiny_settings().model, "micro_batch_tokens": 0}
    assert settings.model_copy(update=completed) == tiny_settings()
    card = (finished / "model" / "README.md").read_text()
    assert "library_name: transformers\ntags: [bert, fill-mask]" in card
    assert "Pre-trained with masked language modelling and next-sentence prediction\n" in card
    (*_, trained, _) = rows
    assert f"for 12 steps on {trained['tokens']:,} tokens." in card
    assert f"its fingerprint is `{settings.corpus_fingerprint}`" in card


def test_without_pairs_the_only_objective_is_masked_lm(corpus_path, tmp_path, tiny_settings):
    pretrain(tiny_settings(examples={"pairs": "none"}), corpus_path, tmp_path / "run")
    rows = read_rows(tmp_path / "run")
    assert {row["kind"] for row in rows} == {"train", "evaluation"}
    assert all("masked_lm_loss" in row for row in rows)
    assert not any(key.startswith("next_sentence") for row in rows for key in row)


def test_left_to_right_model_learns_next_tokens(corpus_path, tmp_path, tiny_settings):
    settings = tiny_settings(
        model={"is_decoder": True},
        examples={"pairs": "none", "max_predictions_per_sequence": 3},
        phases=[{"steps": 60, "max_seq_length": 32}],
        evaluate_every=0,
        save_every=0,
    )
    pretrain(settings, corpus_path, tmp_path / "run")
    rows = read_rows(tmp_path / "run")
    assert not any(key.startswith(("masked_lm", "next_sentence")) for row in rows for key in row)
    last = rows[-1]
    assert last["language_model_loss"] < last["unigram_loss"] - 0.5
    assert last["perplexity"] == pytest.approx(np.exp(last["language_model_loss"]))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").config.is_decoder
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "tags: [bert, text-generation]" in card
    assert "Pre-trained with left-to-right (causal) language modelling\n" in card
    setup = PretrainingSetup.load(settings, corpus_path)
    batch = next(PretrainingBatches(setup, TrainState(), Ranks())).micro_batches[0]
    assert setup.tokenizer.vocabulary.mask_id not in batch.input_ids


def test_left_to_right_model_with_pairs_is_refused(tiny_settings):
    with pytest.raises(SettingsError, match=r'set examples.pairs = "none"'):
        tiny_settings(model={"is_decoder": True})


def test_transformers_gives_the_same_ids_and_logits(finished):
    model, metadata = load_model(finished / "model")
    peer, info = AutoModelForPreTraining.from_pretrained(finished / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    peer_tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    texts = ["The cat is behind the house.", "Ünder thë riverboat; naïve — 42!"]
    pairs = texts[::-1]
    encoded = metadata.tokenizer.encode_batch(texts, pairs=pairs)
    expected = peer_tokenizer(texts, pairs)
    sequences = [slice(start, stop) for start, stop in pairwise(encoded.bounds)]
    for index, tokens in enumerate(sequences):
        assert encoded.input_ids[tokens].tolist() == expected["input_ids"][index]
        assert encoded.token_type_ids[tokens].tolist() == expected["token_type_ids"][index]

    # The masked-LM logits of every position, and the next-sentence logits of each pair.
    positions = np.arange(encoded.bounds[-1])
    batch = pack(encoded.input_ids, encoded.token_type_ids, encoded.bounds, masked_positions=positions)
    with torch.inference_mode():
        masked_lm, next_sentence = model(batch)
        for index, tokens in enumerate(sequences):
            outputs = peer.eval()(**peer_tokenizer(texts[index], pairs[index], return_tensors="pt"))
            torch.testing.assert_close(masked_lm[tokens], outputs.prediction_logits[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                next_sentence[index], outputs.seq_relationship_logits[0], atol=1e-5, rtol=1e-5
            )


def test_losses_beat_the_unigram_baseline(corpus_path, tmp_path, tiny_settings):
    settings = tiny_settings(
        phases=[{"steps": 200, "max_seq_length": 32}],
        warmup_steps=30,
        evaluate_every=0,
        save_every=0,
        optimizer={"learning_rate": 3e-3},
        model={"initializer_range": 0.1, **NO_DROPOUT},
    )
    pretrain(settings, corpus_path, tmp_path / "run")
    last = read_rows(tmp_path / "run")[-1]
    assert last["masked_lm_loss"] < last["unigram_loss"] - 0.3
    assert last["masked_lm_accuracy"] > last["unigram_accuracy"]


def test_stopped_run_resumes_bit_for_bit(finished, corpus_path, tmp_path, tiny_settings):
    run = tmp_path / "run"
    stop_at(6, run)
    with pytest.raises(Stopped) as stopped:
        pretrain(tiny_settings(), corpus_path, run)
    assert stopped.value.number == signal.SIGINT
    pretrain(tiny_settings(), corpus_path, run, resume=True)
    assert read_rows(run) == read_rows(finished)
    assert_same_weights(run, finished)


def test_resume_drops_metrics_after_the_checkpoint(finished, corpus_path, tmp_path, tiny_settings):
    run = tmp_path / "run"
    pretrain(tiny_settings(), corpus_path, run)
    newest = run / "checkpoints" / "step-00000012"
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    pretrain(tiny_settings(), corpus_path, run, resume=True)
    assert read_rows(run) == read_rows(finished)


def test_resume_without_a_checkpoint_starts_over(finished, corpus_path, tmp_path, tiny_settings):
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.toml").write_text((finished / "settings.toml").read_text())
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n{"kind": "tr')
    pretrain(tiny_settings(), corpus_path, run, resume=True)
    assert read_rows(run) == read_rows(finished)


def test_results_do_not_depend_on_micro_batches(corpus_path, tmp_path, tiny_settings):
    pretrain(tiny_settings(model=NO_DROPOUT), corpus_path, tmp_path / "one")
    pretrain(tiny_settings(model=NO_DROPOUT, micro_batch_tokens=100), corpus_path, tmp_path / "several")
    several = read_weights(tmp_path / "several")
    for name, weight in read_weights(tmp_path / "one").items():
        torch.testing.assert_close(several[name], weight, atol=1e-5, rtol=1e-4)


def test_two_phases_are_one_run(corpus_path, tmp_path, tiny_settings):
    phases = [{"steps": 4, "max_seq_length": 16}, {"steps": 4, "max_seq_length": 48}]
    setup = PretrainingSetup.load(tiny_settings(phases=phases), corpus_path)
    whole = PretrainingBatches(setup, TrainState(), Ranks())
    batches = [next(whole) for _ in range(8)]
    assert [batch.phase for batch in batches] == [0] * 4 + [1] * 4
    longest = [max(micro.max_seqlen for micro in batch.micro_batches) for batch in batches]
    assert longest == [16] * 4 + [48] * 4
    state = TrainState(step=6, cursor=whole.cursor(batches[5]))  # later batches have been drawn already
    resumed = PretrainingBatches(setup, state, Ranks())
    for expected in batches[6:]:
        assert torch.equal(expected.micro_batches[0].input_ids, next(resumed).micro_batches[0].input_ids)


def test_shortest_sequence_has_a_token_per_segment(corpus_path, tiny_settings):
    setup = PretrainingSetup.load(tiny_settings(phases=[{"steps": 1, "max_seq_length": 5}]), corpus_path)
    (batch,) = next(PretrainingBatches(setup, TrainState(), Ranks())).micro_batches
    assert (batch.cu_seqlens.diff() == 5).all()
    with pytest.raises(SettingsError, match="max_seq_length = 4"):
        tiny_settings(phases=[{"steps": 1, "max_seq_length": 4}])


def test_init_loads_weights(finished, corpus_path, tmp_path, tiny_settings):
    last = read_rows(finished)[-1]
    pretrain(tiny_settings(), corpus_path, tmp_path / "run", init=finished / "model")
    first = read_rows(tmp_path / "run")[0]
    assert (first["kind"], first["step"], last["kind"]) == ("evaluation", 0, "evaluation")
    assert {**first, "step": 12} == last  # the model that the run starts from


def test_run_from_init_resumes_without_init(finished, corpus_path, tmp_path, tiny_settings, monkeypatch):
    """The initial weights are the first checkpoint of the run."""
    settings = tiny_settings(phases=[{"steps": 3, "max_seq_length": 32}], save_every=0)
    pretrain(settings, corpus_path, tmp_path / "undisturbed", init=finished / "model")

    def die(run, row):
        raise RuntimeError("killed")

    monkeypatch.setattr(RunDirectory, "log", die)
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(settings, corpus_path, tmp_path / "killed", init=finished / "model")
    monkeypatch.undo()
    pretrain(settings, corpus_path, tmp_path / "killed", resume=True)
    assert read_rows(tmp_path / "killed") == read_rows(tmp_path / "undisturbed")


def test_run_killed_before_its_settings_starts_again(
    finished, corpus_path, tmp_path, tiny_settings, monkeypatch
):
    """Only the initial weights have been written then; a run without `init` does not use them."""
    settings = tiny_settings(phases=[{"steps": 3, "max_seq_length": 32}], save_every=0)

    def die(run, settings):
        raise RuntimeError("killed")

    for name, init in (("first", None), ("second", finished / "model")):
        monkeypatch.setattr(RunDirectory, "write_settings", die)
        with pytest.raises(RuntimeError, match="killed"):
            pretrain(settings, corpus_path, tmp_path / name, init=finished / "model")
        monkeypatch.undo()
        assert [path.name for path in RunDirectory(tmp_path / name).checkpoints()] == ["step-00000000"]
        pretrain(settings, corpus_path, tmp_path / name, init=init)
        pretrain(settings, corpus_path, tmp_path / "undisturbed" / name, init=init)
        assert read_rows(tmp_path / name) == read_rows(tmp_path / "undisturbed" / name)
        checkpoints = [path.name for path in RunDirectory(tmp_path / name).checkpoints()]
        assert checkpoints == ([] if init is None else ["step-00000000"])


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoints"])
def test_run_without_its_settings_is_not_continued(finished, corpus_path, tmp_path, tiny_settings, left):
    copy = shutil.copytree if left == "checkpoints" else shutil.copy
    (tmp_path / "run").mkdir()
    copy(finished / left, tmp_path / "run" / left)
    files = sorted(tmp_path.rglob("*"))
    with pytest.raises(SettingsError, match=r"run: holds .* of another run, but no settings\.toml; restore"):
        pretrain(tiny_settings(), corpus_path, tmp_path / "run")
    assert [file for file in sorted(tmp_path.rglob("*")) if file.name != ".lock"] == files


def test_init_must_match_the_settings(finished, corpus_path, tmp_path, tiny_settings):
    different = {"num_attention_heads": 4, "hidden_act": "gelu_new", "intermediate_size": 32}
    with pytest.raises(ModelError) as refused:
        pretrain(tiny_settings(model=different), corpus_path, tmp_path / "run", init=finished / "model")
    assert str(refused.value) == (
        f"{finished / 'model'}: the settings contradict the initial model: model.num_attention_heads is 2 in "
        f"the model and 4 in the settings, model.intermediate_size is 64 in the model and 32 in the "
        f"settings, model.hidden_act is 'gelu' in the model and 'gelu_new' in the settings; leave out "
        f"model.num_attention_heads and model.intermediate_size and model.hidden_act"
    )
    settings = tiny_settings(model={"hidden_dropout_prob": 0.2, "initializer_range": 0.1})
    plan_pretraining(settings, corpus_path, tmp_path / "run", init=finished / "model")


@pytest.mark.usefixtures("unverified")
def test_init_may_lack_embeddings_of_impossible_tokens(finished, tmp_path, tiny_settings):
    """Some published lower-casing models have upper-case letters in the vocabulary."""
    model, tokenizer = tmp_path / "model", Tokenizer.load(finished / "model")
    shutil.copytree(finished / "model", model)
    Tokenizer(Vocabulary([*tokenizer.vocabulary.tokens, "Ä"])).save(model)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The cat is number {n}.\nThe dog is near {n}." for n in range(40)))
    prepare([text], model, tmp_path / "corpus", workers=1, options=PreparationOptions(held_out=0.1))
    size = len(tokenizer.vocabulary)
    with pytest.raises(ModelError, match=r"leave out model\.vocab_size$"):
        plan_pretraining(tiny_settings(), tmp_path / "corpus", tmp_path / "run", init=model)
    settings = tiny_settings(model={"vocab_size": size}, phases=[{"steps": 1, "max_seq_length": 16}])
    pretrain(settings, tmp_path / "corpus", tmp_path / "run", init=model)
    assert len(Tokenizer.load(tmp_path / "run" / "model").vocabulary) == size


def stop_after(monkeypatch, step):
    """Send SIGINT as soon as the row of `step` is written."""
    log = RunDirectory.log

    def log_and_stop(run, row):
        log(run, row)
        if row["kind"] == "train" and row["step"] == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "log", log_and_stop)


def test_stop_saves_even_if_save_every_is_0(finished, corpus_path, tmp_path, tiny_settings, monkeypatch):
    stop_after(monkeypatch, 3)
    with pytest.raises(Stopped):
        pretrain(tiny_settings(save_every=0), corpus_path, tmp_path / "run")
    assert [path.name for path in RunDirectory(tmp_path / "run").checkpoints()] == ["step-00000003"]


def test_pairs_need_two_segments(tiny_settings):
    with pytest.raises(SettingsError, match=r"pairs of texts need model\.type_vocab_size 2"):
        tiny_settings(model={"type_vocab_size": 1})
    assert tiny_settings(model={"type_vocab_size": 1}, examples={"pairs": "none"})


@pytest.mark.parametrize(
    "setting",
    [
        {"optimizer": {"max_gradient_norm": 0}},
        {"optimizer": {"learning_rate": 0}},
        {"optimizer": {"beta1": 1.0}},
        {"optimizer": {"epsilon": -1e-6}},
        {"model": {"num_hidden_layers": 0}},
    ],
)
def test_impossible_settings_are_refused(tiny_settings, setting):
    ((section, values),) = setting.items()
    ((key, value),) = values.items()
    with pytest.raises(SettingsError, match=f"{section}.{key} = {value}"):
        tiny_settings(**setting)


@pytest.mark.usefixtures("unverified")
def test_init_with_another_tokenizer_is_refused(finished, corpus_path, tmp_path, tiny_settings):
    tokenizer = Tokenizer.load(finished / "model")
    tokens = [*tokenizer.vocabulary.tokens[:-1], "another"]
    shutil.copytree(finished / "model", tmp_path / "model")
    Tokenizer(Vocabulary(tokens)).save(tmp_path / "model")
    with pytest.raises(ModelError, match="the corpus was prepared with a different tokenizer"):
        pretrain(tiny_settings(), corpus_path, tmp_path / "run", init=tmp_path / "model")
    assert not (tmp_path / "run").exists()


def test_resume_accepts_other_hardware_settings(finished, corpus_path, tmp_path, tiny_settings):
    shutil.copytree(finished, tmp_path / "run")
    for folder in sorted((tmp_path / "run" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(folder)
    changed = tiny_settings(micro_batch_tokens=100, gradient_checkpointing=True, keep_checkpoints=1)
    pretrain(changed, corpus_path, tmp_path / "run", resume=True)
    before, after = read_weights(finished), read_weights(tmp_path / "run")
    assert all(torch.allclose(before[name], after[name], atol=1e-2) for name in before)
    assert [row["step"] for row in read_rows(tmp_path / "run")] == [
        row["step"] for row in read_rows(finished)
    ]


def test_stop_displaces_no_regular_checkpoint(corpus_path, tmp_path, tiny_settings, monkeypatch):
    settings = tiny_settings(
        phases=[{"steps": 8, "max_seq_length": 32}], log_every=1, save_every=2, keep_checkpoints=4
    )
    stop_after(monkeypatch, 5)
    with pytest.raises(Stopped):
        pretrain(settings, corpus_path, tmp_path / "run")
    checkpoints = RunDirectory(tmp_path / "run").checkpoints
    assert [path.name for path in checkpoints()] == [f"step-0000000{step}" for step in (2, 4, 5)]
    monkeypatch.undo()
    pretrain(settings, corpus_path, tmp_path / "run", resume=True)
    assert [path.name for path in checkpoints()] == [f"step-0000000{step}" for step in (2, 4, 6, 8)]


def test_run_is_not_overwritten(finished, corpus_path, tiny_settings):
    with pytest.raises(SettingsError, match="already holds a run"):
        pretrain(tiny_settings(), corpus_path, finished)


def test_resume_with_another_setting_is_refused(finished, corpus_path, tiny_settings):
    with pytest.raises(SettingsError, match="batch_size was 16"):
        pretrain(tiny_settings(batch_size=8), corpus_path, finished, resume=True)


def test_resume_reads_settings_of_earlier_versions(finished, corpus_path, tmp_path, tiny_settings):
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run" / "settings.toml"
    text = without_checksum(file)
    assert text.count("corpus_fingerprint = ") == 1
    file.write_text(text.replace("corpus_fingerprint = ", "corpus = "))
    pretrain(tiny_settings(), corpus_path, tmp_path / "run", resume=True)
    assert read_rows(tmp_path / "run") == read_rows(finished)
    file.write_text(text.replace('corpus_fingerprint = "', 'corpus = "0'))
    with pytest.raises(DataError, match="started with a different corpus; pass the original one"):
        pretrain(tiny_settings(), corpus_path, tmp_path / "run", resume=True)


def test_resume_without_a_run_is_refused(corpus_path, tmp_path, tiny_settings):
    with pytest.raises(SettingsError, match="no run to resume"):
        pretrain(tiny_settings(), corpus_path, tmp_path / "none", resume=True)


def test_vocabulary_larger_than_the_model_is_refused(corpus_path, tmp_path, tiny_settings):
    with pytest.raises(BertieError, match=r"for 100; set model\.vocab_size to \d+ or more, or leave it out$"):
        pretrain(tiny_settings(model={"vocab_size": 100}), corpus_path, tmp_path / "run")


def test_sequences_longer_than_the_positions_are_refused(corpus_path, tmp_path, tiny_settings):
    with pytest.raises(SettingsError, match="max_position_embeddings to 65"):
        pretrain(tiny_settings(phases=[{"steps": 1, "max_seq_length": 65}]), corpus_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_and_examples_are_functions_of_the_seed(corpus_path, tiny_settings):
    weights, examples, held_out = [], [], []
    for number, seed in enumerate((0, 0, 1)):
        setup = PretrainingSetup.load(tiny_settings(seed=seed), corpus_path)
        torch.manual_seed(number)  # of the caller, and without effect
        weights.append(setup.build_model(None, Ranks()).bert.pooler.weight.tolist())
        batch = next(PretrainingBatches(setup, TrainState(), Ranks()))
        examples.append(batch.micro_batches[0].input_ids.tolist())
        held_out.append(HeldOut(setup)._batches[0][0].input_ids.tolist())
    for first, same, other in (weights, examples, held_out):
        assert first == same != other


def test_one_process_has_nothing_to_shard(finished, corpus_path, tmp_path, tiny_settings, capsys):
    pretrain(tiny_settings(shard=True), corpus_path, tmp_path / "run")
    assert (
        "shard: one process has nothing to divide; start several with torchrun\n" in capsys.readouterr().err
    )
    assert_same_weights(tmp_path / "run", finished)


def test_folder_without_a_corpus_is_refused(tmp_path, tiny_settings):
    with pytest.raises(DataError, match="bertie prepare"):
        pretrain(tiny_settings(), tmp_path, tmp_path / "run")


def make_gradients_infinite(monkeypatch, steps: Container[int]) -> None:
    """Multiply the losses of these steps by infinity."""
    compute_losses, next_batch = PreTrainingModel.compute_losses, PretrainingBatches.__next__
    step = 0

    def count(self):
        nonlocal step
        step += 1
        return next_batch(self)

    def compute(self, batch):
        losses = compute_losses(self, batch)
        factor = math.inf if self.training and step in steps else 1.0
        return {name: loss._replace(loss_sum=loss.loss_sum * factor) for name, loss in losses.items()}

    monkeypatch.setattr(PretrainingBatches, "__next__", count)
    monkeypatch.setattr(PreTrainingModel, "compute_losses", compute)


def test_step_without_a_finite_gradient_changes_nothing(corpus_path, tmp_path, tiny_settings, monkeypatch):
    settings = tiny_settings(log_every=1, save_every=1, keep_checkpoints=100)
    make_gradients_infinite(monkeypatch, range(5, 7))
    pretrain(settings, corpus_path, tmp_path / "run")
    weights = [
        load_file(tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
        for step in (4, 5, 6, 7)
    ]
    assert all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[3][name]) for name in weights[0])
    rows = {row["step"]: row for row in read_rows(tmp_path / "run") if row["kind"] == "train"}
    assert [step for step, row in rows.items() if row.get("skipped_steps")] == [5, 6]
    assert "loss" not in rows[5]
    assert rows[6]["tokens"] > rows[5]["tokens"] > rows[4]["tokens"]
    (warning,) = (row for row in read_rows(tmp_path / "run") if row["kind"] == "warning")
    assert (warning["check"], warning["step"]) == ("skipped_steps", 5)


def test_run_without_finite_gradients_stops_and_goes_on_after_them(
    corpus_path, tmp_path, tiny_settings, monkeypatch
):
    phases = [{"steps": MAX_SKIPPED_STEPS + 4, "max_seq_length": 32}]
    settings = tiny_settings(phases=phases, save_every=0)
    make_gradients_infinite(monkeypatch, range(3, 100))
    with pytest.raises(BertieError, match=f"steps 3 to {MAX_SKIPPED_STEPS + 2} were not finite") as raised:
        pretrain(settings, corpus_path, tmp_path / "run")
    assert "--resume" in str(raised.value)
    monkeypatch.undo()
    pretrain(settings, corpus_path, tmp_path / "run", resume=True)
    last = [row for row in read_rows(tmp_path / "run") if row["kind"] == "train"][-1]
    assert last["step"] == MAX_SKIPPED_STEPS + 4
    assert "skipped_steps" not in last


def test_run_resumed_without_finite_gradients_stops_again(corpus_path, tmp_path, tiny_settings, monkeypatch):
    phases = [{"steps": 2 * MAX_SKIPPED_STEPS + 4, "max_seq_length": 32}]
    settings = tiny_settings(phases=phases, save_every=0)
    make_gradients_infinite(monkeypatch, range(3, 100))
    with pytest.raises(BertieError, match=f"steps 3 to {MAX_SKIPPED_STEPS + 2} were not finite"):
        pretrain(settings, corpus_path, tmp_path / "run")
    again = rf"steps {MAX_SKIPPED_STEPS + 3} to {2 * MAX_SKIPPED_STEPS + 2} were not finite"
    with pytest.raises(BertieError, match=again):
        pretrain(settings, corpus_path, tmp_path / "run", resume=True)


def test_run_with_some_finite_gradients_does_not_stop(corpus_path, tmp_path, tiny_settings, monkeypatch):
    phases = [{"steps": 2 * MAX_SKIPPED_STEPS, "max_seq_length": 32}]
    finite = {1, MAX_SKIPPED_STEPS}
    make_gradients_infinite(monkeypatch, set(range(2 * MAX_SKIPPED_STEPS)) - finite)
    pretrain(tiny_settings(phases=phases, log_every=1), corpus_path, tmp_path / "run")
    rows = [row for row in read_rows(tmp_path / "run") if row["kind"] == "train"]
    assert sum(row.get("skipped_steps", 0) for row in rows) == 2 * MAX_SKIPPED_STEPS - 3


def test_baseline_of_a_left_to_right_model_includes_the_last_separator(corpus_path, tiny_settings):
    setup = PretrainingSetup.load(
        tiny_settings(model={"is_decoder": True}, examples={"pairs": "none"}), corpus_path
    )
    held_out = HeldOut(setup)
    vocabulary = setup.tokenizer.vocabulary
    (batch,) = held_out._batches[0]
    targets = setup.build_model(None, Ranks()).count_targets(batch)["language_model"]
    counts = unigram_counts(setup.corpus.train, len(vocabulary))
    text = batch.input_ids[
        ~torch.isin(batch.input_ids, torch.tensor([vocabulary.cls_id, vocabulary.sep_id]))
    ].long()
    assert targets == len(text) + len(batch)
    frequency = len(batch) / targets  # of [SEP]
    probabilities = (1 - frequency) * torch.from_numpy((counts + 1) / (counts + 1).sum())[text]
    expected = -(probabilities.log().sum() + len(batch) * np.log(frequency)) / targets
    assert held_out._baselines[0]["unigram_loss"] == pytest.approx(float(expected), rel=1e-2)


class LossOfLength(torch.nn.Linear):
    """A model whose loss on a batch is its number of tokens, of which it predicts one correctly."""

    def forward(self, batch):
        loss = torch.tensor(float(batch.num_tokens))
        return {"masked_lm": ObjectiveLoss(loss, torch.tensor(1), batch.num_tokens)}


def test_each_held_out_batch_counts_once_on_two_ranks():
    """There are three, so one rank computes a second batch only because the other one does."""
    sums = []

    class OneOfTwo(Ranks):
        def sum(self, values):
            sums.append(values.tolist())
            return values

    batches = []
    for length in (2, 3, 5):
        ids = np.zeros(length, np.int32)
        batches.append(pack(ids, ids, np.array([0, length])))
    for rank in (0, 1):
        evaluate_pretraining(LossOfLength(1, 1), batches, OneOfTwo(rank, 2))
    assert sums == [[[7.0, 2, 7]], [[3.0, 1, 3]]]


def test_held_out_metrics_are_means_over_the_targets_of_all_batches():
    batches = []
    for length in (2, 3, 5):
        ids = np.zeros(length, np.int32)
        batches.append(pack(ids, ids, np.array([0, length])))
    assert evaluate_pretraining(LossOfLength(1, 1), batches, Ranks()) == {
        "masked_lm_loss": 1.0,
        "masked_lm_accuracy": 0.3,
        "masked_lm_targets": 10,
        "perplexity": math.e,
    }


def test_baselines_are_frequencies_in_training():
    """Each count is one more, so that a token that training lacks has a probability."""
    baseline = unigram_baseline(np.array([2, 5, 0, 1]), np.array([1, 1, 0, 2, 1]))
    probabilities = np.array([3, 6, 1, 2]) / 12
    loss = -np.log(probabilities[[1, 1, 0, 2, 1]]).mean()
    assert baseline == {"unigram_loss": pytest.approx(loss), "unigram_accuracy": 0.6}
    assert majority_baseline(np.array([0, 1, 1, 1])) == {"majority_accuracy": 0.75}


def test_held_out_metrics_are_shown_beside_their_baselines():
    metrics = {"masked_lm_loss": 2.5, "masked_lm_accuracy": 0.25, "perplexity": 1234.4}
    metrics |= {"unigram_loss": 7.05, "unigram_accuracy": 0.06}
    line = (
        "loss 2.50 (unigram baseline 7.05), perplexity 1,234, masked-token accuracy 25.0% "
        "(unigram baseline 6.0%)"
    )
    assert format_metrics(metrics) == line
    metrics |= {"next_sentence_accuracy": 0.9, "majority_accuracy": 0.55}
    assert format_metrics(metrics) == f"{line}, next-sentence accuracy 90.0% (majority baseline 55.0%)"


def test_unigram_counts_include_every_token(corpus_path):
    corpus = Corpus.open(corpus_path)
    counts = unigram_counts(corpus.train, 200)
    assert counts.sum() == corpus.manifest.train.tokens


def test_unigram_counts_of_a_large_corpus_are_of_a_part_of_each_shard(corpus_path, monkeypatch):
    corpus = Corpus.open(corpus_path)
    monkeypatch.setattr("bertie.training.held_out.MAX_COUNTED_TOKENS", corpus.manifest.train.tokens // 2)
    counts = unigram_counts([*corpus.train, *corpus.train], 200)
    assert counts.sum() == pytest.approx(corpus.manifest.train.tokens / 2, abs=2 * len(corpus.train))


def test_corpus_without_held_out_documents_is_refused(tmp_path, tiny_settings, corpus_path):
    (tmp_path / "text.txt").write_text("The cat is near the house.\n" * 9)
    tokenizer = Corpus.open(corpus_path).tokenizer_directory
    prepare([tmp_path / "text.txt"], tokenizer, tmp_path / "corpus", workers=1)
    with pytest.raises(DataError, match=r"no held-out documents .*; prepare 20 or more .* `split"):
        pretrain(tiny_settings(), tmp_path / "corpus", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["warmup_steps", "log_every", "evaluate_every", "save_every"])
def test_a_number_of_steps_is_not_negative(tiny_settings, name):
    with pytest.raises(SettingsError, match=f"{name} = -1: expected a number greater than or equal to 0"):
        tiny_settings(**{name: -1})
    assert getattr(tiny_settings(**{name: 0}), name) == 0
