"""Where a run computes, and in what precision."""

import pytest
import torch

from bertie.base.errors import SettingsError
from bertie.training.hardware import Hardware


def test_the_processor_computes_in_float32_unless_asked_otherwise(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Hardware().resolved() == Hardware(device="cpu", precision="float32")
    assert Hardware(precision="bfloat16").resolved().precision == "bfloat16"


def test_a_device_that_is_not_there_is_refused():
    for device in ("gpu", "cuda:99"):
        with pytest.raises(SettingsError, match=f"device = '{device}'"):
            Hardware(device=device).resolved()


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_precision_is_that_of_the_products(precision, dtype):
    a = torch.ones(2, 2)
    with Hardware(device="cpu", precision=precision).autocast():
        assert (a @ a).dtype == dtype
