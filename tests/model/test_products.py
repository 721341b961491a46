"""Products of matrices in torch's library and in numpy's, and the choice between them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertie.model import products
from bertie.model.cpu import MAX_THREADS_OF_FUSED_LAYERS
from bertie.model.cpu_training import linear
from bertie.model.products import multiplies_in_numpy, multiply, multiply_pairs

ORDERS = ["rows", "columns", "padded"]
size = st.integers(1, 40)


def make_matrix(*shape: int, order: str) -> torch.Tensor:
    """Return random matrices whose rows, or columns, are contiguous, or whose rows are further apart."""
    *stack, rows, columns = shape
    if order == "columns":
        return torch.randn(*stack, columns, rows).mT
    return torch.randn(*stack, rows, columns + 3 * (order == "padded"))[..., :columns]


@pytest.fixture
def in_numpy(monkeypatch):
    """Multiply float32 matrices in numpy, whichever library is faster."""
    monkeypatch.setattr(products, "_count_numpy_threads", torch.get_num_threads)
    monkeypatch.setattr(products, "_is_numpy_faster", lambda: True)
    monkeypatch.setattr(products, "MAX_THREADS_OF_FUSED_LAYERS", torch.get_num_threads())


@given(size, size, size, st.sampled_from(ORDERS), st.sampled_from(ORDERS))
def test_a_product_in_numpy_is_that_of_torch(n, k, m, first, second):
    a, b, out = make_matrix(n, k, order=first), make_matrix(k, m, order=second), torch.empty(n, m)
    products._multiply_in_numpy(a, b, out)
    torch.testing.assert_close(out, a @ b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_has_new_memory_or_what_it_is_given(library, dtype):
    a, b, out = torch.randn(7, 5).to(dtype), torch.randn(3, 5).to(dtype), torch.empty(7, 3, dtype=dtype)
    torch.testing.assert_close(multiply(a, b.t()), a @ b.t())
    assert multiply(a, b.t(), out=out) is out
    torch.testing.assert_close(out, a @ b.t())
    assert multiply(a[:0], b.t()).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k", "m"), [(9, 4, 9), (9, 9, 4), (1, 1, 1)])
def test_products_of_pairs_are_scaled(library, dtype, n, k, m):
    a, b = torch.randn(6, n, k).to(dtype), torch.randn(6, k, m).to(dtype)
    before, out = a.clone(), torch.empty(6, n, m, dtype=dtype)
    for given_out in (None, out):
        actual = multiply_pairs(a, b.mT.contiguous().mT, 0.3, given_out)
        torch.testing.assert_close(actual.float(), 0.3 * (a.float() @ b.float()), atol=2e-2, rtol=2e-2)
    assert actual is out
    assert torch.equal(a, before)


@pytest.mark.parametrize(
    ("avx512", "vendor", "blas", "expected"),
    [
        (True, "AuthenticAMD", "scipy-openblas", True),
        (True, "AuthenticAMD", "openblas64", True),
        (True, "GenuineIntel", "scipy-openblas", False),
        (False, "AuthenticAMD", "scipy-openblas", False),
        (True, "AuthenticAMD", "mkl-sdl", False),
        (True, "AuthenticAMD", "blas", False),
    ],
)
def test_numpy_is_faster_where_only_its_library_uses_avx_512(monkeypatch, avx512, vendor, blas, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(products, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(products, "mkl_lacks_avx512", products.mkl_lacks_avx512.__wrapped__)
    config = {"Build Dependencies": {"blas": {"name": blas}}}
    monkeypatch.setattr(np, "show_config", lambda mode: config)
    assert products._is_numpy_faster.__wrapped__() == expected


def test_the_configuration_of_numpy_names_its_library():
    assert np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]


def test_only_float32_on_few_threads_is_multiplied_in_numpy(in_numpy, monkeypatch):
    matrix = torch.empty(1)
    assert multiplies_in_numpy(matrix)
    assert not multiplies_in_numpy(matrix.double())
    assert not multiplies_in_numpy(matrix.bfloat16())
    monkeypatch.setattr(products, "_is_numpy_faster", lambda: False)
    assert not multiplies_in_numpy(matrix)


@pytest.mark.parametrize(
    ("torch_threads", "numpy_threads", "expected"),
    [(1, 1, True), (2, 2, True), (1, 2, False), (2, 16, False), (3, 3, False)],
)
def test_numpy_has_as_many_threads_as_torch(monkeypatch, torch_threads, numpy_threads, expected):
    """numpy's cannot be changed later, so it is not used by a program that wants another number of them."""
    assert MAX_THREADS_OF_FUSED_LAYERS == 2
    monkeypatch.setattr("torch.get_num_threads", lambda: torch_threads)
    monkeypatch.setattr(products, "_count_numpy_threads", lambda: numpy_threads)
    monkeypatch.setattr(products, "_is_numpy_faster", lambda: True)
    assert multiplies_in_numpy(torch.empty(1)) == expected


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"OPENBLAS_NUM_THREADS": "x"}, 2),
        ({}, 2),
    ],
)
def test_threads_of_numpy_are_counted(monkeypatch, variables, threads):
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert products._count_numpy_threads.__wrapped__() == threads


def test_nan_and_infinity_give_no_warning(in_numpy):
    a = torch.tensor([[torch.nan, 1.0], [torch.inf, 0.0]])
    for product in (multiply(a, a), multiply_pairs(a[None], a[None], 3e38)):
        assert product.isnan().any()


def test_the_memory_of_weights_can_still_be_freed(in_numpy):
    """FSDP sets the size of this memory to 0 between steps."""
    weight, bias = torch.randn(5, 24, requires_grad=True), torch.randn(5, requires_grad=True)
    linear(torch.randn(7, 24), weight, bias).sum().backward()
    assert weight.untyped_storage().resizable()
