"""Products and transposed blocks in registers: equal to numpy's, and nothing else is written."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.kernels import VECTOR, float_kernel
from bertie.model.cpu_vectors import (
    ROWS,
    WIDTH,
    add_product,
    multiply,
    multiply_transposed,
    prefetch,
    transpose,
)

UNCHANGED = np.float32(7)
ROW_COUNTS = st.integers(1, 3 * ROWS + 1)


@float_kernel
def run_multiply(factors, source, result, columns):
    multiply(factors, source, result, columns)


@float_kernel
def run_multiply_transposed(factors, source, result, columns):
    multiply_transposed(factors, source, result, columns)


@float_kernel
def run_add_product(factors, source, result):
    add_product(factors, source, result)


@float_kernel
def run_transpose(source, result):
    transpose(source, result)


def random_part(rows, columns):
    """Return a random part of a larger matrix."""
    return np.random.default_rng(rows).random((rows + 2, columns + 5), np.float32)[1:-1, 2 : columns + 2]


@given(
    rows=ROW_COUNTS,
    terms=st.integers(0, 70),
    columns=st.sampled_from([VECTOR, WIDTH]),
    is_transposed=st.booleans(),
)
def test_product_is_equal_to_that_of_numpy(rows, terms, columns, is_transposed):
    factors = random_part(terms, rows) if is_transposed else random_part(rows, terms)
    source = np.random.default_rng(terms).random((terms, WIDTH), np.float32)
    result = np.full((rows + 1, WIDTH), UNCHANGED)
    (run_multiply_transposed if is_transposed else run_multiply)(factors, source, result, columns)
    expected = (factors.T if is_transposed else factors) @ source
    np.testing.assert_allclose(result[:rows, :columns], expected[:, :columns], rtol=1e-5)
    assert (result[:rows, columns:] == UNCHANGED).all()
    assert (result[rows:] == UNCHANGED).all()


@given(rows=ROW_COUNTS, terms=st.integers(0, 70), columns=st.integers(1, 4).map(VECTOR.__mul__))
def test_product_is_added_to_a_part_of_a_matrix(rows, terms, columns):
    factors, source = random_part(rows, terms), random_part(terms, columns)
    matrix = np.full((rows + 2, columns + 3), UNCHANGED)
    result = matrix[1:-1, 1 : columns + 1]
    run_add_product(factors, source, result)
    np.testing.assert_allclose(result, UNCHANGED + factors @ source, rtol=1e-5)
    result[:] = UNCHANGED
    assert (matrix == UNCHANGED).all()


@pytest.mark.parametrize("result_rows", [1, VECTOR - 1, VECTOR, VECTOR + 1, 2 * VECTOR])
@pytest.mark.parametrize("rows", [1, VECTOR - 1, VECTOR, VECTOR + 1, 2 * VECTOR])
def test_matrix_is_transposed_and_its_last_row_repeated(rows, result_rows):
    source = random_part(rows, 2 * VECTOR)
    matrix = np.full((result_rows + 1, 2 * VECTOR + 3), UNCHANGED)
    run_transpose(source, matrix[:-1, 2:-1])
    written = -(-rows // VECTOR) * VECTOR
    expected = source[np.minimum(np.arange(written), rows - 1), :result_rows].T
    np.testing.assert_array_equal(matrix[:-1, 2 : 2 + written], expected)
    matrix[:-1, 2 : 2 + written] = UNCHANGED
    assert (matrix == UNCHANGED).all()


def test_prefetch_is_one_instruction_and_changes_nothing():
    compiled = numba.njit(lambda array, row: prefetch(array, row, 0))
    array = np.ones((3, 2), np.float32)
    compiled(array, 10**9)  # a place outside of the array is no error
    assert (array == 1).all()
    assert "\tprefetcht0\t" in compiled.inspect_asm(compiled.signatures[0])
