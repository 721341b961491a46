"""The device and the precision of a run."""

from types import SimpleNamespace

import pytest
import torch

from bertie.base.errors import SettingsError
from bertie.model.engines import hardware
from bertie.model.engines.hardware import Hardware


@pytest.mark.parametrize(("bfloat16", "precision"), [(True, "bfloat16"), (False, "float32")])
def test_auto_precision_is_bfloat16_on_cpus_that_multiply_it_faster(monkeypatch, bfloat16, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(hardware, "_is_bfloat16_faster", lambda: bfloat16)
    assert Hardware().resolved() == Hardware(device="cpu", precision=precision)
    for explicit in ("float32", "bfloat16"):
        assert Hardware(precision=explicit).resolved().precision == explicit


def test_auto_precision_is_float32_on_cpus_without_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(hardware, "_is_bfloat16_faster", lambda: True)
    assert Hardware().resolved().precision == "float32"


@pytest.mark.parametrize(("seconds", "is_faster"), [(1.3, True), (1.2, False), (0.5, False)])
def test_bfloat16_has_to_save_a_fifth_of_the_time(monkeypatch, seconds, is_faster):
    """The fastest of five products counts, by the processor time of the thread."""
    delays = {
        torch.float32: [9.0, seconds, 9.0, seconds, 9.0],
        torch.bfloat16: [9.0, 9.0, 9.0, 1.0, 9.0],
    }
    now = 0.0

    def multiply(a, b):
        nonlocal now
        now += delays[a.dtype].pop()

    monkeypatch.setattr(hardware, "multiply", multiply)
    monkeypatch.setattr(hardware, "time", SimpleNamespace(thread_time=lambda: now))
    assert hardware._is_bfloat16_faster.__wrapped__() == is_faster


def test_unavailable_device_raises():
    for device in ("gpu", "cuda:99", "meta"):
        with pytest.raises(SettingsError, match=f"device = '{device}'"):
            Hardware(device=device).resolved()


def test_remedy_for_an_unavailable_device_depends_on_the_machine(monkeypatch):
    for has_gpu, remedy in ((False, "torch finds no GPU here, so use cpu$"), (True, "use cpu or cuda$")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        with pytest.raises(SettingsError, match=f"'cuda:99': not available on this machine; {remedy}"):
            Hardware(device="cuda:99").resolved()


def test_another_default_dtype_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    message = (
        r"torch's default dtype is torch\.float64, .*; call torch\.set_default_dtype\(torch\.float32\) first"
    )
    with pytest.raises(SettingsError, match=message):
        Hardware().resolved()


def test_another_default_device_is_refused():
    message = r"torch's default device is meta, .*; call torch\.set_default_device\('cpu'\) first"
    with torch.device("meta"), pytest.raises(SettingsError, match=message):
        Hardware(device="cpu").resolved()
    with torch.device("cpu"):
        assert Hardware(device="cpu").resolved().device == "cpu"


def test_device_may_be_an_object_of_torch():
    assert Hardware(device=torch.device("cuda", 1)).device == "cuda:1"


def test_a_cpu_with_an_index_is_the_cpu():
    assert Hardware(device="cpu:0").resolved().device == "cpu"


def test_looking_for_a_gpu_takes_no_memory_of_it(monkeypatch):
    """On this machine without a GPU, a tensor on `cuda` is an error."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Hardware(device="cuda:1", precision="float32").resolved().device == "cuda:1"
    with pytest.raises(SettingsError, match="device = 'cuda:2'"):
        Hardware(device="cuda:2").resolved()


def test_evaluation_is_on_the_same_device_in_float32():
    settings = Hardware(device="cuda:1", precision="bfloat16", gradient_checkpointing=True)
    assert settings.in_float32() == Hardware(device="cuda:1", precision="float32")


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_autocast_sets_the_type_of_matrix_products(precision, dtype):
    a = torch.ones(2, 2)
    with Hardware(device="cpu", precision=precision).autocast():
        assert (a @ a).dtype == dtype


@pytest.mark.parametrize(
    ("device", "precision", "threads", "tokens"),
    [
        ("cpu", "float32", 1, 1024),
        ("cpu", "float32", 2, 2048),
        ("cpu", "bfloat16", 1, 2048),
        ("cuda", "float32", 1, 32768),
    ],
)
def test_a_batch_suits_the_caches_and_the_threads(monkeypatch, device, precision, threads, tokens):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert Hardware(device=device, precision=precision).inference_batch_tokens == tokens
