"""An OUT made before settings and tasks were renamed is still found and read."""

import json
from pathlib import Path

from bertie.base.settings import resolve
from bertie.reproduction.cells import (
    RowSettings,
    at_rate,
    best_rate,
    finetuning_directory,
    pretraining_directories,
    pretraining_directory,
    read_outcomes,
)
from bertie.training.finetuning_settings import ADDED, FinetuningSettings
from bertie.training.pretraining_settings import PretrainingSettings

OUT = Path("out")


def test_pretraining_directory_keeps_its_name():
    settings = resolve(
        PretrainingSettings, {"seed": 1, "device": "cpu", "examples": {"mask_probability": 0.5}}
    )
    assert pretraining_directory(OUT, settings, "corpus") == OUT / "pretraining" / "2d746c93a296"


def test_pretraining_directory_depends_on_later_settings_only_if_they_have_an_effect():
    def directory(**changes):
        return pretraining_directory(OUT, resolve(PretrainingSettings, changes), "corpus")

    phases = [{"steps": 5, "max_seq_length": 16}]
    former = directory(phases=phases)
    assert former == OUT / "pretraining" / "e9bbc502af5e"
    near = directory(phases=phases, examples={"pairs": "near", "near_distance": 0})
    assert near == OUT / "pretraining" / "218a15f4be1a"
    assert directory(phases=phases, examples={"near_distance": 7}) == former
    own = [[phases[0] | change] for change in ({"pairs": "none"}, {"batch_size": 8}, {"masking_rate": 0.3})]
    others = [
        *(directory(phases=phases) for phases in own),
        directory(phases=phases, examples={"pairs": "near"}),
        directory(phases=phases, next_sentence_loss=False),
    ]
    assert len({former, near, *others}) == 7


def test_rows_share_runs_that_evaluate_and_save_at_other_steps():
    def directories(**changes):
        return pretraining_directories(OUT, resolve(PretrainingSettings, changes), "corpus", "")

    (plain,) = directories()
    recorded = directories(evaluate_every=8, save_every=8, keep_checkpoints=9)
    former = pretraining_directory(OUT, resolve(PretrainingSettings, {"save_every": 8}), "corpus")
    assert plain == recorded[0] != recorded[1]
    assert directories(save_every=8) == (plain, former)
    assert directories(save_every=8, seed=1)[0] != plain


def test_cells_do_not_depend_on_evaluations_and_checkpoints_or_other_tasks():
    def settings(task: str, epochs: int, **recording: int) -> RowSettings:
        tree = {"batch_size": 8, **recording}
        scale = {"name": "scale", "pretrain_each_seed": True, "learning_rates": [1e-4]}
        return resolve(
            RowSettings,
            {
                "corpus": "fingerprint",
                "sources": {"ner": "digest"},
                "row": {"name": "row", "pretraining": tree},
                "scale": {**scale, "pretraining": tree, "trunk": tree, "tasks": {task: {"epochs": epochs}}},
            },
        )

    base = settings("ner", 3)
    assert settings("ner", 3, save_every=5, evaluate_every=5, keep_checkpoints=2).has_same_outcomes(base)
    assert settings("split_pairs", 3).has_same_outcomes(settings("split_pairs", 4))
    assert not settings("ner", 4).has_same_outcomes(base)
    assert not settings("ner", 3, seed=1).has_same_outcomes(base)


def test_finetuning_directory_keeps_its_name():
    settings = resolve(
        FinetuningSettings,
        {"seed": 1, "device": "cpu", "optimizer": {"learning_rate": 1e-4}, "warmup_ratio": 0.2},
        dict.fromkeys(ADDED),  # as in runs of earlier versions
    )
    directory = finetuning_directory(OUT, "split_pairs", settings, "model", "examples")
    assert directory == OUT / "finetuning" / "halves-0.0001-d9a9e906c467"
    with_dropout = settings.model_copy(update={"dropout": 0.1})
    assert finetuning_directory(OUT, "split_pairs", with_dropout, "model", "examples") != directory


def test_directories_do_not_depend_on_the_device():
    for section, directory in (
        (PretrainingSettings, lambda settings: pretraining_directory(OUT, settings, "corpus")),
        (FinetuningSettings, lambda settings: finetuning_directory(OUT, "ner", settings, "model", "")),
    ):
        cpu, cuda = (resolve(section, {"device": device}) for device in ("cpu", "cuda"))
        assert directory(cpu) == directory(cuda)


def test_learning_rate_is_selected_by_the_mean_over_seeds():
    """The lower rate is the best of two seeds, but the higher one has the best mean."""
    results = [
        {"held_out/perplexity": 9.0, "rte/dev/accuracy@0.001": low, "rte/dev/accuracy@0.01": high}
        for low, high in ((61.0, 60.0), (71.0, 70.0), (50.0, 65.0))
    ]
    assert best_rate(results, "rte/dev/accuracy", [1e-3, 1e-2]) == 1e-2
    assert best_rate(results[:2], "rte/dev/accuracy", [1e-3, 1e-2]) == 1e-3
    assert [at_rate(result, "rte", 1e-2) for result in results] == [
        {"held_out/perplexity": 9.0, "rte/dev/accuracy": high} for high in (60.0, 70.0, 65.0)
    ]


def test_outcomes_are_read_under_their_former_names(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"halves/dev/accuracy": 60.0, "sst-2/dev/accuracy": 70.0}))
    assert read_outcomes(path) == {"split_pairs/dev/accuracy": 60.0, "sst-2/dev/accuracy": 70.0}


def test_row_settings_with_former_names_are_equal():
    former, current = (
        resolve(
            RowSettings,
            {
                "corpus": "fingerprint",
                "sources": {task: "digest"},
                "row": {
                    "name": "row",
                    fraction: 0.5,
                    "pretraining": {"examples": {mask: 0.5}},
                    "finetuning": {warmup: 0.2},
                    "outcomes": {"column": f"{task}/dev/accuracy"},
                },
                "scale": {
                    "name": "scale",
                    "pretrain_each_seed": True,
                    "learning_rates": [1e-4],
                    "pretraining": {"examples": {mask: 0.5}},
                    "finetuning": {warmup: 0.2},
                    "tasks": {task: {warmup: 0.1}},
                    excluded: [task],
                    task: {"training": 8},
                },
            },
        )
        for task, fraction, mask, warmup, excluded in (
            ("halves", "after", "mask_share", "warmup_share", "without"),
            ("split_pairs", "pretraining_fraction", "mask_probability", "warmup_ratio", "excluded"),
        )
    )
    assert former == current
