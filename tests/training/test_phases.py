"""Phases with their own batch size, masking rate and pairs."""

import hashlib
import signal

import pytest
import torch
from tests.training.runs import NO_DROPOUT, assert_same_weights, read_rows, read_weights, without_checksum
from transformers import AutoModelForMaskedLM

from bertie.base.errors import SettingsError
from bertie.base.settings import read_toml, resolve
from bertie.model.formats.weights import load_model, load_weights
from bertie.model.heads import MaskedLMModel, PreTrainingModel
from bertie.reports.pretraining import write_report
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.distributed import Ranks
from bertie.training.metrics_file import read_metrics
from bertie.training.planning import plan_pretraining
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.pretraining_setup import PretrainingBatches, PretrainingSetup
from bertie.training.signals import Stopped

# SHA-256 of the batches of a run with two phases, as they were before phases could override settings.
BATCHES = {
    "random": "aaa5a68ea87f2727",
    "near": "f32b0fb234fb6990",
    "order": "577c19ae67a042ff",
    "none": "43cd7a6e7bd178ee",
}
PHASES = [
    {"steps": 5, "max_seq_length": 16, "batch_size": 32, "masking_rate": 0.3, "pairs": "none"},
    {"steps": 7, "max_seq_length": 48},
]


def global_batches(corpus_path, settings):
    batches = PretrainingBatches(PretrainingSetup.load(settings, corpus_path), TrainState(), Ranks())
    return [next(batches) for _ in range(settings.total_steps)]


def hash_batches(batches) -> str:
    digest = hashlib.sha256()
    for batch in (micro_batch for step in batches for micro_batch in step.micro_batches):
        arrays = [batch.input_ids, batch.token_type_ids, batch.cu_seqlens, batch.masked_positions]
        for array in (*arrays, batch.masked_labels, batch.next_sentence_labels):
            if array is not None:
                digest.update(array.numpy().tobytes())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="module")
def finished(corpus_path, tmp_path_factory, tiny_settings):
    """The directory of a complete run with the phases above."""
    run = tmp_path_factory.mktemp("phases") / "finished"
    pretrain(tiny_settings(phases=PHASES, log_every=1), corpus_path, run)
    return run


@pytest.mark.parametrize("pairs", BATCHES)
def test_examples_of_earlier_recipes_are_unchanged(corpus_path, tiny_settings, pairs):
    phases = [{"steps": 4, "max_seq_length": 16}, {"steps": 5, "max_seq_length": 48}]
    settings = tiny_settings(phases=phases, examples={"pairs": pairs, "near_distance": 0})
    assert hash_batches(global_batches(corpus_path, settings)) == BATCHES[pairs]


def test_phase_may_repeat_the_settings_of_the_run(corpus_path, tmp_path, tiny_settings):
    own = {"steps": 6, "max_seq_length": 32, "batch_size": 16, "masking_rate": 0.15, "pairs": "random"}
    for name, phase in (("own", own), ("run", {"steps": 6, "max_seq_length": 32})):
        pretrain(tiny_settings(phases=[phase]), corpus_path, tmp_path / name)
    assert read_rows(tmp_path / "own") == read_rows(tmp_path / "run")
    assert_same_weights(tmp_path / "own", tmp_path / "run")
    assert read_toml(tmp_path / "own" / "settings.toml")["phases"] == [own]
    assert read_toml(tmp_path / "run" / "settings.toml")["phases"] == [{"steps": 6, "max_seq_length": 32}]


def test_batches_follow_the_settings_of_their_phase(corpus_path, tiny_settings):
    batches = global_batches(corpus_path, tiny_settings(phases=PHASES))
    assert [sum(map(len, batch.micro_batches)) for batch in batches] == [32] * 5 + [16] * 7
    for batch in (micro_batch for step in batches for micro_batch in step.micro_batches):
        is_first = batch.max_seqlen <= 16
        assert (batch.next_sentence_labels is None) == is_first
        rate = len(batch.masked_labels) / batch.num_tokens
        assert rate == pytest.approx(0.3 if is_first else 0.15, rel=0.25)


def test_only_phases_with_pairs_have_next_sentence_metrics(finished):
    rows = read_rows(finished)
    assert {row["phase"] for row in rows} == {0, 1}
    for row in rows:
        columns = {key for key in row if key.startswith(("next_sentence", "majority"))}
        assert bool(columns) == (row["phase"] == 1)
    assert isinstance(load_model(finished / "model")[0], PreTrainingModel)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_head_without_loss_keeps_its_weights(corpus_path, tmp_path, tiny_settings, optimizer):
    """Neither weight decay nor the moments of the optimizer change it."""
    settings = tiny_settings(
        phases=PHASES, save_every=1, keep_checkpoints=12, optimizer={"name": optimizer, "learning_rate": 0.01}
    )
    setup = PretrainingSetup.load(settings, corpus_path)
    initial = setup.build_model(None, Ranks()).state_dict()
    pretrain(settings, corpus_path, tmp_path / "run")
    folders = RunDirectory(tmp_path / "run").checkpoints()
    assert len(folders) == 12
    for step, folder in enumerate(folders, start=1):
        model = setup.build_model(None, Ranks())
        load_weights(folder, model)
        for name in ("next_sentence.weight", "bert.pooler.weight"):
            assert torch.equal(model.state_dict()[name], initial[name]) == (step <= 5), (name, step)


@pytest.mark.parametrize("step", [3, 5, 9])
def test_run_resumes_in_any_phase(finished, corpus_path, tmp_path, tiny_settings, monkeypatch, step):
    """Step 5 is the last one of the first phase."""
    settings, log = tiny_settings(phases=PHASES, log_every=1), RunDirectory.log

    def log_and_stop(run, row):
        log(run, row)
        if row["kind"] == "train" and row["step"] == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "log", log_and_stop)
    with pytest.raises(Stopped):
        pretrain(settings, corpus_path, tmp_path / "run")
    monkeypatch.undo()
    pretrain(settings, corpus_path, tmp_path / "run", resume=True)
    assert read_rows(tmp_path / "run") == read_rows(finished)
    assert_same_weights(tmp_path / "run", finished)


def test_row_over_two_phases_has_the_metrics_of_both(finished, corpus_path, tmp_path, tiny_settings):
    pretrain(tiny_settings(phases=PHASES, log_every=4), corpus_path, tmp_path / "run")
    fourth, eighth, *_ = [row for row in read_rows(tmp_path / "run") if row["kind"] == "train"]
    losses = [row["next_sentence_loss"] for row in read_rows(finished) if row["step"] in (6, 7, 8)]
    assert "next_sentence_loss" not in fourth
    assert eighth["next_sentence_loss"] == pytest.approx(sum(losses) / 3)


def test_results_do_not_depend_on_micro_batches(corpus_path, tmp_path, tiny_settings):
    for name, tokens in (("one", 10_000), ("several", 100)):
        settings = tiny_settings(phases=PHASES, model=NO_DROPOUT, micro_batch_tokens=tokens)
        pretrain(settings, corpus_path, tmp_path / name)
    several = read_weights(tmp_path / "several")
    for name, weight in read_weights(tmp_path / "one").items():
        torch.testing.assert_close(several[name], weight, atol=1e-5, rtol=1e-4)


def test_plan_counts_the_batches_of_each_phase(corpus_path, tmp_path, tiny_settings):
    settings = tiny_settings(phases=PHASES)
    plan = plan_pretraining(settings, corpus_path, tmp_path / "run")
    batches = global_batches(corpus_path, settings)
    assert (plan.steps, plan.sequences) == (12, 5 * 32 + 7 * 16)
    assert plan.tokens == pytest.approx(
        sum(part.num_tokens for batch in batches for part in batch.micro_batches), rel=0.1
    )


def test_report_and_tensorboard_of_a_run_that_ends_without_pairs(
    drawing, corpus_path, tmp_path, tiny_settings
):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    pretrain(tiny_settings(phases=PHASES[::-1], tensorboard=True), corpus_path, run)
    rows = read_metrics(run / "metrics.jsonl")
    assert "next_sentence_accuracy" not in rows[-1]
    settings_text = (run / "settings.toml").read_text()
    write_report(run / "report.html", rows, settings_text, {})
    page = (run / "report.html").read_text()
    assert "Next-sentence accuracy" in page  # the curve of the first phase
    assert "majority class" not in page
    assert list((run / "tensorboard").iterdir())


def test_pairs_in_no_phase_leave_no_head(corpus_path, tmp_path, tiny_settings):
    """`examples.pairs`, which is "random", has no effect if every phase sets its own."""
    settings = tiny_settings(phases=[{"steps": 2, "max_seq_length": 16, "pairs": "none"}])
    pretrain(settings, corpus_path, tmp_path / "run")
    assert isinstance(load_model(tmp_path / "run" / "model")[0], MaskedLMModel)
    assert "next-sentence" not in (tmp_path / "run" / "model" / "README.md").read_text()


@pytest.mark.parametrize("model", [{"is_decoder": True}, {"type_vocab_size": 1}])
def test_pairs_that_the_model_cannot_read_are_refused(tiny_settings, model):
    phases = [PHASES[0], PHASES[1] | {"pairs": "order"}]
    with pytest.raises(SettingsError, match=r'set phases\.1\.pairs = "none"$'):
        tiny_settings(model=model, phases=phases)
    with pytest.raises(SettingsError, match=r'set examples\.pairs = "none"$'):
        tiny_settings(model=model, phases=PHASES)
    assert tiny_settings(model=model, phases=[PHASES[0], PHASES[1] | {"pairs": "none"}])
    assert tiny_settings(model=model, phases=PHASES, examples={"pairs": "none"})


@pytest.mark.parametrize(("key", "value"), [("batch_size", 0), ("masking_rate", 0.0), ("pairs", "some")])
def test_impossible_settings_of_a_phase_are_refused(tiny_settings, key, value):
    with pytest.raises(SettingsError, match=rf"phases\.0\.{key} = {value!r}"):
        tiny_settings(phases=[PHASES[0] | {key: value}])


def test_earlier_run_keeps_its_distant_negatives(corpus_path, tmp_path, tiny_settings):
    """Its settings.toml does not have `near_distance`, which a recipe sets to 5 by default."""
    run = tmp_path / "run"
    original = tiny_settings(examples={"pairs": "near", "near_distance": 0})
    pretrain(original, corpus_path, run)
    file = run / "settings.toml"
    text = without_checksum(file)
    assert text.count("near_distance = 0\n") == 1
    file.write_text(text.replace("near_distance = 0\n", ""))
    assert resolve(PretrainingSettings, read_toml(file)).examples.near_distance == 0
    with pytest.raises(SettingsError, match=r"examples\.near_distance was 0 .* and is 5 now"):
        pretrain(tiny_settings(examples={"pairs": "near"}), corpus_path, run, resume=True)
    pretrain(original, corpus_path, run, resume=True)


def test_earlier_run_with_other_pairs_resumes(corpus_path, tmp_path, tiny_settings):
    pretrain(tiny_settings(), corpus_path, tmp_path / "run")
    file = tmp_path / "run" / "settings.toml"
    text = without_checksum(file)
    for setting in ("near_distance = 5\n", "next_sentence_loss = true\n"):
        assert text.count(setting) == 1
        text = text.replace(setting, "")
    file.write_text(text)
    pretrain(tiny_settings(), corpus_path, tmp_path / "run", resume=True)


def test_neighbours_are_refused_as_negatives(tiny_settings):
    with pytest.raises(SettingsError, match=r"examples\.near_distance = 1: .*use 2 or more"):
        tiny_settings(examples={"near_distance": 1})


def test_pairs_without_a_loss_leave_no_head(corpus_path, tmp_path, tiny_settings):
    """The examples are the same, but only masked tokens are learnt (RoBERTa, Section 4.2)."""
    settings = tiny_settings(next_sentence_loss=False)
    with_loss, without_loss = (global_batches(corpus_path, s) for s in (tiny_settings(), settings))
    assert hash_batches(with_loss) == hash_batches(without_loss)
    assert with_loss[0].micro_batches[0].token_type_ids.any()
    pretrain(settings, corpus_path, tmp_path / "run")
    for row in read_rows(tmp_path / "run"):
        assert not any(key.startswith(("next_sentence", "majority")) for key in row)
    assert isinstance(load_model(tmp_path / "run" / "model")[0], MaskedLMModel)
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model")
