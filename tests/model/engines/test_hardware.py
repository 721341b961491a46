"""Where a run computes, and in what precision."""

import pytest
import torch

from bertie.base.errors import SettingsError
from bertie.model.engines.hardware import Hardware


@pytest.mark.parametrize(("bfloat16", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_a_processor_made_for_bfloat16_learns_in_it_unless_asked_otherwise(monkeypatch, bfloat16, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    assert Hardware().resolved() == Hardware(device="cpu", precision=precision)
    for asked in ("float32", "bfloat16"):
        assert Hardware(precision=asked).resolved().precision == asked


def test_a_device_that_is_not_there_is_refused():
    for device in ("gpu", "cuda:99"):
        with pytest.raises(SettingsError, match=f"device = '{device}'"):
            Hardware(device=device).resolved()


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_precision_is_that_of_the_products(precision, dtype):
    a = torch.ones(2, 2)
    with Hardware(device="cpu", precision=precision).autocast():
        assert (a @ a).dtype == dtype
