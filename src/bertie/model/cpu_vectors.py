"""Small products and transposed blocks in the registers of a CPU, for kernels.

The compiler makes vector instructions of innermost loops. It does not keep a block of a product in registers
while a loop adds terms, and it does not transpose in registers. The functions here do both: they generate
LLVM's instructions for vectors of VECTOR float32 numbers (docs/decisions/processors.md has the measurements).

Arrays have one dimension. Starts and strides count float32 numbers. Places in arrays are not checked, not
even with BERTIE_BOUNDS_CHECK.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from bertie.base.kernels import VECTOR, inlined_float_kernel

Float32s = NDArray[np.float32]

# A product is computed in blocks of ROWS rows and at most COLUMNS vectors. A block, a row of vectors and a
# factor need 19 of the 32 registers of AVX-512, and 15 of the 16 of AVX2.
ROWS = 8 if VECTOR == 16 else 6
COLUMNS = 2
WIDTH = COLUMNS * VECTOR

INDEX = types.intp
INT32, FLOAT32 = ir.IntType(32), ir.FloatType()
INT32S, FLOAT32S = ir.VectorType(INT32, VECTOR), ir.VectorType(FLOAT32, VECTOR)
FUSED = ("contract",)  # a product and a sum are rounded together


@inlined_float_kernel
def multiply(
    factors: Float32s,
    start: int,
    rows: int,
    row_stride: int,
    term_stride: int,
    source: Float32s,
    terms: int,
    vectors: int,
    result: Float32s,
) -> None:
    """Multiply a matrix (rows, terms) by `source`, (terms, WIDTH).

    The matrix is a part of `factors`: row r has the factor of term k at start + r · row_stride + k ·
    term_stride. `vectors`, 1 or COLUMNS, is the number of columns to compute, in vectors. `result` is
    (rows, WIDTH) with room for ROWS - 1 more rows, where meaningless numbers are written.
    """
    for r in range(0, rows, ROWS):
        first = start + r * row_stride
        if vectors == 1:
            _multiply_1(factors, first, rows - r, row_stride, term_stride, source, terms, result, r * WIDTH)
        else:
            _multiply_2(factors, first, rows - r, row_stride, term_stride, source, terms, result, r * WIDTH)


@inlined_float_kernel
def transpose(
    source: Float32s,
    start: int,
    stride: int,
    rows: int,
    result: Float32s,
    result_start: int,
    result_stride: int,
    result_rows: int,
) -> None:
    """Copy a block of VECTOR × VECTOR numbers in transposed order.

    `stride` numbers lie between the starts of two rows. If `source` has fewer than VECTOR rows, the last
    one is repeated. Only the first `result_rows` rows of the result are written.
    """
    _transpose(source, start, stride, rows, result, result_start, result_stride, result_rows)


@inlined_float_kernel
def prefetch(array: Float32s, place: int) -> None:
    """Begin to load the line of the cache that has this place."""
    _prefetch(array, place)


def _generate(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function for kernels, from one that returns its signature and the generator of its code."""
    return cast(Callable[..., None], intrinsic(function))


def _multiply_block(columns: int) -> Callable[..., None]:
    """Return a function that computes ROWS rows and so many vectors of a product."""

    @_generate
    def multiply_block(
        typing_context: Any,
        factors: Any,
        start: Any,
        rows: Any,
        row_stride: Any,
        term_stride: Any,
        source: Any,
        terms: Any,
        result: Any,
        result_start: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
            factors, start, rows, row_stride, term_stride, source, terms, result, result_start = arguments
            factors = _address(context, builder, signature.args[0], factors, start)
            source = _address(context, builder, signature.args[5], source, start.type(0))
            result = _address(context, builder, signature.args[7], result, result_start)
            factor_rows = [_row(builder, factors, r, row_stride, rows) for r in range(ROWS)]
            sums = [[_zero_vector(builder) for _ in range(columns)] for _ in range(ROWS)]
            with cgutils.for_range(builder, terms) as loop:
                place = builder.mul(loop.index, term_stride)
                source_row = builder.gep(source, [builder.mul(loop.index, loop.index.type(WIDTH))])
                vectors = [_load(builder, source_row, column) for column in range(columns)]
                for factor_row, totals in zip(factor_rows, sums, strict=True):
                    factor = _repeat(builder, builder.load(builder.gep(factor_row, [place])))
                    for vector, total in zip(vectors, totals, strict=True):
                        product = builder.fmul(factor, vector, flags=FUSED)
                        builder.store(builder.fadd(product, builder.load(total), flags=FUSED), total)
            for r, totals in enumerate(sums):
                result_row = builder.gep(result, [INT32(r * WIDTH)])
                for column, total in enumerate(totals):
                    _store(builder, builder.load(total), result_row, column)
            return context.get_dummy_value()

        return types.void(factors, *[INDEX] * 4, source, INDEX, result, INDEX), generate

    return multiply_block


_multiply_1, _multiply_2 = _multiply_block(1), _multiply_block(COLUMNS)


@_generate
def _transpose(
    typing_context: Any,
    source: Any,
    start: Any,
    stride: Any,
    rows: Any,
    result: Any,
    result_start: Any,
    result_stride: Any,
    result_rows: Any,
) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
        source, start, stride, rows, result, result_start, result_stride, result_rows = arguments
        source = _address(context, builder, signature.args[0], source, start)
        result = _address(context, builder, signature.args[4], result, result_start)
        vectors = [_load(builder, _row(builder, source, r, stride, rows)) for r in range(VECTOR)]
        size = 1
        while size < VECTOR:  # exchange the off-diagonal parts of blocks of 2·size rows and columns
            for r in range(VECTOR):
                if not r & size:
                    pair = vectors[r], vectors[r + size]
                    vectors[r], vectors[r + size] = _exchange(builder, *pair, size)
            size *= 2
        for r, vector in enumerate(vectors):
            with builder.if_then(builder.icmp_signed("<", result_rows.type(r), result_rows)):
                _store(
                    builder, vector, builder.gep(result, [builder.mul(result_stride, result_stride.type(r))])
                )
        return context.get_dummy_value()

    return types.void(source, *[INDEX] * 3, result, *[INDEX] * 3), generate


@_generate
def _prefetch(typing_context: Any, array: Any, place: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        to_read, to_all_caches, data = INT32(0), INT32(3), INT32(1)
        arguments = [address, to_read, to_all_caches, data]
        function = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch.p0", (), function), arguments)
        return context.get_dummy_value()

    return types.void(array, INDEX), generate


def _address(context: Any, builder: ir.IRBuilder, array_type: Any, array: Any, place: Any) -> Any:
    """Return the address of a place in an array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [place])


def _row(builder: ir.IRBuilder, matrix: Any, r: int, stride: Any, rows: Any) -> Any:
    """Return the address of row r, or of the last of `rows` rows if there are fewer."""
    last = builder.sub(rows, rows.type(1))
    index = builder.select(builder.icmp_signed("<", last, rows.type(r)), last, rows.type(r))
    return builder.gep(matrix, [builder.mul(index, stride)])


def _load(builder: ir.IRBuilder, row: Any, column: int = 0) -> Any:
    """Load a vector of a row."""
    return builder.load(_vector_address(builder, row, column), align=4)


def _store(builder: ir.IRBuilder, vector: Any, row: Any, column: int = 0) -> None:
    """Store a vector in a row."""
    builder.store(vector, _vector_address(builder, row, column), align=4)


def _vector_address(builder: ir.IRBuilder, row: Any, column: int) -> Any:
    return builder.bitcast(builder.gep(row, [INT32(column * VECTOR)]), FLOAT32S.as_pointer())


def _zero_vector(builder: ir.IRBuilder) -> Any:
    """Return the address of a new variable, which the compiler keeps in a register."""
    return cgutils.alloca_once_value(builder, FLOAT32S([0.0] * VECTOR))  # type: ignore[no-untyped-call]


def _repeat(builder: ir.IRBuilder, number: Any) -> Any:
    """Return a vector of equal numbers."""
    undefined = FLOAT32S(ir.Undefined)
    first = builder.insert_element(undefined, number, INT32(0))
    return builder.shuffle_vector(first, undefined, INT32S([0] * VECTOR))


def _exchange(builder: ir.IRBuilder, upper: Any, lower: Any, size: int) -> tuple[Any, Any]:
    """Exchange each second group of `size` numbers of a vector with the group before it of another vector."""
    lanes = range(VECTOR)
    of_upper = INT32S([lane - size + VECTOR if lane & size else lane for lane in lanes])
    of_lower = INT32S([lane + VECTOR if lane & size else lane + size for lane in lanes])
    return builder.shuffle_vector(upper, lower, of_upper), builder.shuffle_vector(upper, lower, of_lower)
