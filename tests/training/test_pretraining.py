"""Whole small runs: what they leave, how they go on, what they refuse."""

import json
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, AutoTokenizer

from bertie.base.errors import BertieError, DataError, ModelError, SettingsError
from bertie.base.settings import read_toml, resolve
from bertie.corpus.examples import ExampleSettings
from bertie.corpus.preparation import prepare
from bertie.corpus.shards import Corpus
from bertie.model.batch import pack
from bertie.model.formats.weights import load_model
from bertie.recipes import read_recipe
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.distributed import Ranks
from bertie.training.held_out import unigram_counts
from bertie.training.optimizers import OptimizerSettings
from bertie.training.pretraining import PretrainingSettings, global_batches, plan, pretrain
from bertie.training.signals import Stopped

TIMINGS = ("seconds", "tokens_per_second")


def rows_of(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in rows]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def stop_at(step: int, run: Path) -> None:
    """From a second thread: send SIGINT once `step` has been logged."""

    def watch() -> None:
        while not any(
            row["step"] >= step for row in (rows_of(run) if (run / "metrics.jsonl").exists() else [])
        ):
            pass
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture(scope="module")
def finished(corpus_path, tmp_path_factory, tiny_settings) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    pretrain(tiny_settings(), corpus_path, run)
    return run


def test_bert_base_is_pre_trained_as_in_appendix_a2():
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


def test_a_run_leaves_settings_metrics_checkpoints_and_a_model(finished, tiny_settings):
    rows = rows_of(finished)
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
    assert settings.model_copy(update={"corpus": "", "model": tiny_settings().model}) == tiny_settings()


def test_without_pairs_only_masked_words_are_learnt(corpus_path, tmp_path, tiny_settings):
    pretrain(tiny_settings(examples={"pairs": "none"}), corpus_path, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert {row["kind"] for row in rows} == {"train", "evaluation"}
    assert all("masked_lm_loss" in row for row in rows)
    assert not any(key.startswith("next_sentence") for row in rows for key in row)


def test_from_left_to_right_every_next_word_is_learnt(corpus_path, tmp_path, tiny_settings):
    settings = tiny_settings(
        model={"is_decoder": True},
        examples={"pairs": "none", "max_predictions_per_sequence": 3},
        phases=[{"steps": 60, "max_seq_length": 32}],
    )
    pretrain(settings, corpus_path, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert not any(key.startswith(("masked_lm", "next_sentence")) for row in rows for key in row)
    last = rows[-1]
    assert last["language_model_loss"] < last["unigram_loss"] - 0.5
    assert last["perplexity"] == pytest.approx(np.exp(last["language_model_loss"]))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").config.is_decoder
    corpus = Corpus.open(corpus_path)
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    batch = next(global_batches(corpus, tokenizer, settings, TrainState(), Ranks())).micro_batches[0]
    assert tokenizer.vocabulary.mask_id not in batch.input_ids


def test_a_left_to_right_model_predicts_no_next_sentence(tiny_settings):
    with pytest.raises(SettingsError, match=r'set examples.pairs = "none"'):
        tiny_settings(model={"is_decoder": True})


def test_the_model_directory_loads_in_transformers_with_equal_ids_and_logits(finished):
    model, metadata = load_model(finished / "model")
    theirs, info = AutoModelForPreTraining.from_pretrained(finished / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    their_tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    texts = ["The cat is behind the house.", "Ünder thë riverboat; naïve — 42!"]
    ours = metadata.tokenizer.encode_batch(texts, pairs=texts[::-1])
    expected = their_tokenizer(texts, texts[::-1])
    for number in range(len(texts)):
        here = slice(ours.bounds[number], ours.bounds[number + 1])
        assert ours.input_ids[here].tolist() == expected["input_ids"][number]
        assert ours.token_type_ids[here].tolist() == expected["token_type_ids"][number]

    # Every position's masked-LM logits and each pair's next-sentence logits.
    batch = pack(
        ours.input_ids, ours.token_type_ids, ours.bounds, masked_positions=np.arange(ours.bounds[-1])
    )
    with torch.inference_mode():
        masked_lm, next_sentence = model(batch)
        for number in range(len(texts)):
            inputs = their_tokenizer(texts[number], texts[::-1][number], return_tensors="pt")
            logits = theirs.eval()(**inputs)
            here = slice(ours.bounds[number], ours.bounds[number + 1])
            torch.testing.assert_close(masked_lm[here], logits.prediction_logits[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                next_sentence[number], logits.seq_relationship_logits[0], atol=1e-5, rtol=1e-5
            )


def test_training_learns(corpus_path, tmp_path, tiny_settings):
    settings = tiny_settings(
        phases=[{"steps": 300, "max_seq_length": 32}],
        warmup_steps=30,
        optimizer={"learning_rate": 3e-3},
        model={"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    pretrain(settings, corpus_path, tmp_path / "run")
    last = rows_of(tmp_path / "run")[-1]
    assert last["masked_lm_loss"] < last["unigram_loss"] - 0.5
    assert last["masked_lm_accuracy"] > last["unigram_accuracy"]


def test_a_stopped_run_goes_on_as_if_it_had_not_been(finished, corpus_path, tmp_path, tiny_settings):
    run = tmp_path / "run"
    stop_at(6, run)
    with pytest.raises(Stopped) as stopped:
        pretrain(tiny_settings(), corpus_path, run)
    assert stopped.value.number == signal.SIGINT
    pretrain(tiny_settings(), corpus_path, run, resume=True)
    assert rows_of(run) == rows_of(finished)
    for name, weight in weights_of(finished).items():
        assert torch.equal(weight, weights_of(run)[name]), name


def test_resuming_forgets_what_was_logged_after_the_checkpoint(
    finished, corpus_path, tmp_path, tiny_settings
):
    run = tmp_path / "run"
    pretrain(tiny_settings(), corpus_path, run)
    newest = run / "checkpoints" / "step-00000012"
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    pretrain(tiny_settings(), corpus_path, run, resume=True)
    assert rows_of(run) == rows_of(finished)


def test_resuming_before_the_first_checkpoint_begins_anew(finished, corpus_path, tmp_path, tiny_settings):
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.toml").write_text((finished / "settings.toml").read_text())
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    pretrain(tiny_settings(), corpus_path, run, resume=True)
    assert rows_of(run) == rows_of(finished)


def test_micro_batches_change_nothing(corpus_path, tmp_path, tiny_settings):
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    pretrain(tiny_settings(model=still), corpus_path, tmp_path / "whole")
    pretrain(tiny_settings(model=still, micro_batch_tokens=100), corpus_path, tmp_path / "cut")
    for name, weight in weights_of(tmp_path / "whole").items():
        torch.testing.assert_close(weights_of(tmp_path / "cut")[name], weight, atol=1e-5, rtol=1e-4)


def test_two_phases_are_one_run(corpus_path, tmp_path, tiny_settings):
    phases = [{"steps": 4, "max_seq_length": 16}, {"steps": 4, "max_seq_length": 48}]
    settings = tiny_settings(phases=phases)
    corpus = Corpus.open(corpus_path)
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    batches = list(global_batches(corpus, tokenizer, settings, TrainState(), Ranks()))
    assert [batch.phase for batch in batches] == [0] * 4 + [1] * 4
    longest = [max(micro.max_seqlen for micro in batch.micro_batches) for batch in batches]
    assert longest == [16] * 4 + [48] * 4
    state = TrainState(step=6, cursor=batches[5].cursor)
    later = list(global_batches(corpus, tokenizer, settings, state, Ranks()))
    assert len(later) == 2
    for expected, actual in zip(batches[6:], later, strict=True):
        assert torch.equal(expected.micro_batches[0].input_ids, actual.micro_batches[0].input_ids)


def test_the_shortest_sequence_has_a_token_of_each_segment(corpus_path, tiny_settings):
    corpus = Corpus.open(corpus_path)
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    settings = tiny_settings(phases=[{"steps": 1, "max_seq_length": 5}])
    (batch,) = next(global_batches(corpus, tokenizer, settings, TrainState(), Ranks())).micro_batches
    assert (batch.cu_seqlens.diff() == 5).all()
    with pytest.raises(SettingsError, match="max_seq_length = 4"):
        tiny_settings(phases=[{"steps": 1, "max_seq_length": 4}])


def test_init_starts_from_a_models_weights(finished, corpus_path, tmp_path, tiny_settings):
    from_scratch = rows_of(finished)[0]["loss"]
    pretrain(tiny_settings(), corpus_path, tmp_path / "run", init=finished / "model")
    assert rows_of(tmp_path / "run")[0]["loss"] < from_scratch


def test_a_run_killed_before_its_first_checkpoint_goes_on_from_init(
    finished, corpus_path, tmp_path, tiny_settings, monkeypatch
):
    settings = tiny_settings(phases=[{"steps": 3, "max_seq_length": 32}], save_every=0)
    pretrain(settings, corpus_path, tmp_path / "whole", init=finished / "model")

    def die(run, row):
        raise RuntimeError("killed")

    monkeypatch.setattr(RunDirectory, "log", die)
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(settings, corpus_path, tmp_path / "killed", init=finished / "model")
    monkeypatch.undo()
    pretrain(settings, corpus_path, tmp_path / "killed", resume=True)
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")


def test_init_is_the_network_of_the_settings(finished, corpus_path, tmp_path, tiny_settings):
    other = {"num_attention_heads": 4, "hidden_act": "gelu_new", "intermediate_size": 32}
    with pytest.raises(ModelError) as refused:
        pretrain(tiny_settings(model=other), corpus_path, tmp_path / "run", init=finished / "model")
    assert str(refused.value) == (
        f"{finished / 'model'}: not the network of this run's settings: num_attention_heads is 2 there and "
        f"4 here, intermediate_size is 64 there and 32 here, hidden_act is 'gelu' there and 'gelu_new' here; "
        f"give --set model.num_attention_heads=2 --set model.intermediate_size=64 --set model.hidden_act=gelu"
    )
    settings = tiny_settings(model={"hidden_dropout_prob": 0.2, "initializer_range": 0.1})
    plan(settings, corpus_path, tmp_path / "run", init=finished / "model", resume=False)


def test_init_may_have_no_embeddings_for_what_no_text_has(finished, tmp_path, tiny_settings):
    """As published lower-casing models whose vocabulary ends in upper-case letters."""
    model, tokenizer = tmp_path / "model", Tokenizer.load(finished / "model")
    shutil.copytree(finished / "model", model)
    Tokenizer(Vocabulary([*tokenizer.vocabulary.tokens, "Ä"])).save(model)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The cat is number {n}.\nThe dog is near {n}." for n in range(40)))
    prepare([text], model, tmp_path / "corpus", workers=1, held_out=0.1)
    size = len(tokenizer.vocabulary)
    with pytest.raises(ModelError, match=f"--set model.vocab_size={size}$"):
        plan(tiny_settings(), tmp_path / "corpus", tmp_path / "run", init=model, resume=False)
    settings = tiny_settings(model={"vocab_size": size}, phases=[{"steps": 1, "max_seq_length": 16}])
    pretrain(settings, tmp_path / "corpus", tmp_path / "run", init=model)
    assert len(Tokenizer.load(tmp_path / "run" / "model").vocabulary) == size


def stop_after(monkeypatch, step):
    """Ctrl-C as soon as the step's row is written."""
    log = RunDirectory.log

    def log_and_stop(run, row):
        log(run, row)
        if row["kind"] == "train" and row["step"] == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "log", log_and_stop)


def test_without_regular_checkpoints_a_stop_still_saves(
    finished, corpus_path, tmp_path, tiny_settings, monkeypatch
):
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
def test_settings_that_cannot_train_are_refused(tiny_settings, setting):
    ((section, values),) = setting.items()
    ((key, value),) = values.items()
    with pytest.raises(SettingsError, match=f"{section}.{key} = {value}"):
        tiny_settings(**setting)


def test_a_model_with_another_tokenizer_is_not_gone_on_from(finished, corpus_path, tmp_path, tiny_settings):
    tokenizer = Tokenizer.load(finished / "model")
    words = [*tokenizer.vocabulary.tokens[:-1], "another"]
    shutil.copytree(finished / "model", tmp_path / "model")
    Tokenizer(Vocabulary(words)).save(tmp_path / "model")
    with pytest.raises(ModelError, match="its tokenizer is not the one that the corpus was prepared with"):
        pretrain(tiny_settings(), corpus_path, tmp_path / "run", init=tmp_path / "model")
    assert not (tmp_path / "run").exists()


def test_what_only_computes_the_same_elsewhere_may_change_on_resuming(
    finished, corpus_path, tmp_path, tiny_settings
):
    shutil.copytree(finished, tmp_path / "run")
    for folder in sorted((tmp_path / "run" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(folder)
    changed = tiny_settings(micro_batch_tokens=100, gradient_checkpointing=True, keep_checkpoints=1)
    pretrain(changed, corpus_path, tmp_path / "run", resume=True)
    before, after = weights_of(finished), weights_of(tmp_path / "run")
    assert all(torch.allclose(before[name], after[name], atol=1e-2) for name in before)
    assert [row["step"] for row in rows_of(tmp_path / "run")] == [row["step"] for row in rows_of(finished)]


def test_what_a_stop_saved_takes_no_regular_checkpoints_place(
    corpus_path, tmp_path, tiny_settings, monkeypatch
):
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


def test_a_run_is_not_written_over(finished, corpus_path, tiny_settings):
    with pytest.raises(SettingsError, match="already holds a run"):
        pretrain(tiny_settings(), corpus_path, finished)


def test_resuming_with_other_settings_names_the_key(finished, corpus_path, tiny_settings):
    with pytest.raises(SettingsError, match="batch_size was 16"):
        pretrain(tiny_settings(batch_size=8), corpus_path, finished, resume=True)


def test_resuming_nothing(corpus_path, tmp_path, tiny_settings):
    with pytest.raises(SettingsError, match="no run to resume"):
        pretrain(tiny_settings(), corpus_path, tmp_path / "none", resume=True)


def test_a_vocabulary_larger_than_the_model_is_refused(corpus_path, tmp_path, tiny_settings):
    with pytest.raises(BertieError, match="but the model has embeddings for 100"):
        pretrain(tiny_settings(model={"vocab_size": 100}), corpus_path, tmp_path / "run")


def test_a_sequence_longer_than_the_model_is_refused(corpus_path, tmp_path, tiny_settings):
    with pytest.raises(SettingsError, match="max_position_embeddings to 65"):
        pretrain(tiny_settings(phases=[{"steps": 1, "max_seq_length": 65}]), corpus_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_corpus_is_refused(tmp_path, tiny_settings):
    with pytest.raises(DataError, match="bertie prepare"):
        pretrain(tiny_settings(), tmp_path, tmp_path / "run")


def test_a_gradient_that_is_not_finite_ends_the_run(corpus_path, tmp_path, tiny_settings):
    settings = tiny_settings(optimizer={"learning_rate": 1e30}, warmup_steps=0)
    with pytest.raises(BertieError, match="not finite"):
        pretrain(settings, corpus_path, tmp_path / "run")


def test_unigram_counts_count_every_token(corpus_path):
    corpus = Corpus.open(corpus_path)
    counts = unigram_counts(corpus.train, 200)
    assert counts.sum() == corpus.manifest.train.tokens


def test_a_corpus_without_a_held_out_part_is_refused(tmp_path, tiny_settings, corpus_path):
    (tmp_path / "text.txt").write_text("The cat is near the house.\n" * 9)
    tokenizer = Corpus.open(corpus_path).tokenizer_directory
    prepare([tmp_path / "text.txt"], tokenizer, tmp_path / "corpus", workers=1)
    with pytest.raises(DataError, match="no held-out documents"):
        pretrain(tiny_settings(), tmp_path / "corpus", tmp_path / "run")
    assert not (tmp_path / "run").exists()
