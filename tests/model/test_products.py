"""Products of matrices in torch's library and in numpy's, and the choice between them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertie.model import products
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


needs_openblas = pytest.mark.skipif(products._openblas() is None, reason="numpy has another library")


@pytest.fixture
def in_numpy(monkeypatch):
    """Multiply float32 matrices in numpy, whichever library is faster."""
    monkeypatch.setattr(products, "_is_numpy_faster", lambda: True)


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    """Divide products between threads, however small they are."""
    monkeypatch.setattr(products, "MIN_PRODUCTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: request.param)


@needs_openblas
@pytest.mark.usefixtures("threads")
@given(size, size, size, st.sampled_from(ORDERS), st.sampled_from(ORDERS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_product_in_numpy_is_that_of_torch(n, k, m, first, second):
    a, b, out = make_matrix(n, k, order=first), make_matrix(k, m, order=second), torch.empty(n, m)
    products._multiply_in_numpy(a, b, out)
    torch.testing.assert_close(out, a @ b, atol=1e-5, rtol=1e-5)


@needs_openblas
@pytest.mark.usefixtures("threads")
@given(size, size, size, size, st.sampled_from(ORDERS), st.sampled_from(ORDERS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_products_of_pairs_in_numpy_are_those_of_torch(pairs, n, k, m, first, second):
    a, b = make_matrix(pairs, n, k, order=first), make_matrix(pairs, k, m, order=second)
    out = torch.empty(pairs, n, m)
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
    ("avx512", "vendor", "names", "expected"),
    [
        (True, "AuthenticAMD", "scipy_openblas_{}_num_threads64_", True),
        (True, "AuthenticAMD", "openblas_{}_num_threads", True),
        (True, "AuthenticAMD", "openblas_{}_num_threads64_", True),
        (True, "GenuineIntel", "scipy_openblas_{}_num_threads64_", False),
        (False, "AuthenticAMD", "scipy_openblas_{}_num_threads64_", False),
        (True, "AuthenticAMD", "MKL_{}_Num_Threads", False),
    ],
)
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_numpy_is_faster_where_only_its_library_uses_avx_512(
    monkeypatch, avx512, vendor, names, expected, kind
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(products, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(products, "mkl_lacks_avx512", products.mkl_lacks_avx512.__wrapped__)
    monkeypatch.setattr(products, "_openblas", products._openblas.__wrapped__)
    functions = {names.format("get"): lambda: 1, names.format("set"): lambda threads: None}
    functions[names.format("get").replace("num_threads", "parallel")] = lambda: kind
    monkeypatch.setattr(products.ctypes, "CDLL", lambda path: SimpleNamespace(**functions))
    assert products._is_numpy_faster.__wrapped__() == (expected and kind != products.OPENMP)


def test_only_float32_is_multiplied_in_numpy(in_numpy, monkeypatch):
    matrix = torch.empty(1)
    assert multiplies_in_numpy(matrix)
    assert not multiplies_in_numpy(matrix.double())
    assert not multiplies_in_numpy(matrix.bfloat16())
    monkeypatch.setattr(products, "_is_numpy_faster", lambda: False)
    assert not multiplies_in_numpy(matrix)


@needs_openblas
def test_openblas_computes_in_the_threads_that_call_it(monkeypatch):
    """And has its own threads again afterwards, for the program's own use of numpy."""
    openblas = products._openblas()
    before, during = openblas._get(), []
    openblas._set(2)
    try:
        monkeypatch.setattr(np, "matmul", lambda *_, out: during.append(openblas._get()))
        products._multiply_in_numpy(torch.ones(2, 2), torch.ones(2, 2), torch.empty(2, 2))
        assert during == [1]
        assert openblas._get() == 2
    finally:
        openblas._set(before)


def test_the_last_thread_that_multiplies_sets_the_number_back():
    counts = [4]
    library = SimpleNamespace(
        openblas_get_num_threads=lambda: counts[-1], openblas_set_num_threads=counts.append
    )
    openblas = products.OpenBlas(library, "", "")
    with openblas.one_thread():
        with pytest.raises(ValueError, match="a shape"), openblas.one_thread():
            raise ValueError("a shape that does not fit")
        assert counts == [4, 1]
    assert counts == [4, 1, 4]


@needs_openblas
@pytest.mark.usefixtures("threads", "in_numpy")
def test_nan_and_infinity_give_no_warning():
    a = torch.tensor([[torch.nan, 1.0], [torch.inf, 0.0]])
    for product in (multiply(a, a), multiply_pairs(a[None], a[None], 3e38)):
        assert product.isnan().any()


@needs_openblas
def test_the_memory_of_weights_can_still_be_freed(in_numpy):
    """FSDP sets the size of this memory to 0 between steps."""
    weight, bias = torch.randn(5, 24, requires_grad=True), torch.randn(5, requires_grad=True)
    linear(torch.randn(7, 24), weight, bias).sum().backward()
    assert weight.untyped_storage().resizable()
