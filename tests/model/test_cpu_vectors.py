"""Products and transposed blocks in registers: equal to numpy's, and nothing else is written."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.kernels import VECTOR, float_kernel
from bertie.model.cpu_vectors import COLUMNS, ROWS, WIDTH, multiply, prefetch, transpose

UNCHANGED = np.float32(7)


@float_kernel
def run_multiply(factors, start, rows, row_stride, term_stride, source, terms, vectors, result):
    multiply(factors, start, rows, row_stride, term_stride, source, terms, vectors, result)


@float_kernel
def run_transpose(source, start, stride, rows, result, result_start, result_stride, result_rows):
    transpose(source, start, stride, rows, result, result_start, result_stride, result_rows)


@given(
    rows=st.integers(1, 3 * ROWS + 1),
    terms=st.integers(0, 70),
    vectors=st.sampled_from([1, COLUMNS]),
    is_transposed=st.booleans(),
)
def test_product_is_equal_to_that_of_numpy(rows, terms, vectors, is_transposed):
    random = np.random.default_rng(rows)
    start = 5
    factors = random.random(start + rows * terms, np.float32)
    source = random.random((terms, WIDTH), np.float32)
    room = -(-rows // ROWS) * ROWS
    result = np.full((room + 1, WIDTH), UNCHANGED)
    strides = (1, rows) if is_transposed else (terms, 1)
    run_multiply(factors, start, rows, *strides, source.ravel(), terms, vectors, result.ravel())
    matrix = factors[start:].reshape(terms, rows).T if is_transposed else factors[start:].reshape(rows, terms)
    columns = vectors * VECTOR
    np.testing.assert_allclose(result[:rows, :columns], (matrix @ source)[:, :columns], rtol=1e-5)
    assert (result[:, columns:] == UNCHANGED).all()
    assert (result[room:] == UNCHANGED).all()


@pytest.mark.parametrize("result_rows", range(1, VECTOR + 2))
@pytest.mark.parametrize("rows", range(1, VECTOR + 2))
def test_block_is_transposed_and_the_last_row_repeated(rows, result_rows):
    start, stride = 3, VECTOR + 2
    source = np.arange(start + rows * stride, dtype=np.float32)
    result = np.full((VECTOR + 2, VECTOR + 4), UNCHANGED)
    run_transpose(source, start, stride, rows, result.ravel(), 1, VECTOR + 4, result_rows)
    block = source[start:].reshape(rows, stride)[np.minimum(np.arange(VECTOR), rows - 1), :VECTOR]
    written = min(result_rows, VECTOR)
    np.testing.assert_array_equal(result[:written, 1 : VECTOR + 1], block.T[:written])
    result[:written, 1 : VECTOR + 1] = UNCHANGED
    assert (result == UNCHANGED).all()


def test_prefetch_is_one_instruction_and_changes_nothing():
    compiled = numba.njit(lambda array, place: prefetch(array, place))
    array = np.ones(3, np.float32)
    compiled(array, 10**9)  # a place outside of the array is no error
    assert (array == 1).all()
    assert "\tprefetcht0\t" in compiled.inspect_asm(compiled.signatures[0])
