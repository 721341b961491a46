"""Tests of the models that rows are fine-tuned from."""

from pathlib import Path

import pytest

from bertie.base.locks import lock_file
from bertie.reproduction import pretrained_models
from bertie.reproduction.pretrained_models import Pretraining
from bertie.training.pretraining_settings import PretrainingSettings


def test_a_trunk_is_not_locked_while_a_row_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def pretrain(settings: PretrainingSettings, corpus: Path, run: Path, init: Path | None) -> None:
        if init is not None:
            with lock_file(init.parent):  # as another process would, for another row of the seed
                pass
        made.append(settings.seed)
        (run / "model").mkdir(parents=True)

    monkeypatch.setattr(pretrained_models, "_pretrain", pretrain)
    pretraining = Pretraining(PretrainingSettings(seed=1), PretrainingSettings(seed=2), 1.0)
    model = pretraining.run(tmp_path / "corpus", "fingerprint", tmp_path / "out", "title")
    assert made == [2, 1]
    assert model.is_last
