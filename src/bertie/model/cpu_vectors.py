"""Small products and transposed blocks in the registers of a CPU, for kernels.

The compiler makes vector instructions of innermost loops. It does not keep a block of a product in registers
while a loop adds terms, and it does not transpose in registers. The functions here do both: they generate
LLVM's instructions for vectors of VECTOR float32 numbers (docs/decisions/processors.md has the measurements).

Matrices are parts of arrays in which the numbers of a row have no gaps. Indices are not checked, not even
with BERTIE_BOUNDS_CHECK.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from bertie.base.arrays import Float32s
from bertie.base.kernels import VECTOR, inlined_float_kernel

# A product is computed in blocks of ROWS rows and at most COLUMNS vectors. A block, a row of vectors and a
# factor need 19 of the 32 registers of AVX-512, and 15 of the 16 of AVX2.
ROWS = 8 if VECTOR == 16 else 6
COLUMNS = 2
WIDTH = COLUMNS * VECTOR

INDEX = types.intp
INT32, INT64, FLOAT32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
INT32S, FLOAT32S = ir.VectorType(INT32, VECTOR), ir.VectorType(FLOAT32, VECTOR)
FUSED = ("contract",)  # a product and a sum are rounded together


@inlined_float_kernel
def multiply(factors: Float32s, source: Float32s, result: Float32s, columns: int) -> None:
    """Write the product of two matrices to the first R rows of `result`.

    The matrices are (R, K) and (K, columns). `columns` is VECTOR or WIDTH; `source` and `result` have WIDTH
    columns, without gaps between their rows.
    """
    for r in range(0, len(factors), ROWS):
        if columns == VECTOR:
            _multiply_1(factors, r, source, result, 0)
        else:
            _multiply_2(factors, r, source, result, 0)


@inlined_float_kernel
def multiply_transposed(factors: Float32s, source: Float32s, result: Float32s, columns: int) -> None:
    """Write the product of a transposed matrix, (K, R), and another one.

    Everything else is as in `multiply`.
    """
    for r in range(0, factors.shape[1], ROWS):
        if columns == VECTOR:
            _multiply_transposed_1(factors, r, source, result, 0)
        else:
            _multiply_transposed_2(factors, r, source, result, 0)


@inlined_float_kernel
def add_product(factors: Float32s, source: Float32s, result: Float32s) -> None:
    """Add the product of two matrices to `result`, (R, C).

    The matrices are (R, K) and (K, C); C is a multiple of VECTOR.
    """
    for column in range(0, result.shape[1], WIDTH):
        for r in range(0, len(factors), ROWS):
            if result.shape[1] - column == VECTOR:
                _add_1(factors, r, source, result, column)
            else:
                _add_2(factors, r, source, result, column)


@inlined_float_kernel
def transpose(source: Float32s, result: Float32s) -> None:
    """Copy a matrix to `result` in transposed order.

    The copy is made in blocks of VECTOR × VECTOR numbers. Both matrices need columns for whole blocks, but
    not rows: the last row of `source` is repeated, and only the existing rows of `result` are written.
    """
    for row in range(0, len(source), VECTOR):
        for column in range(0, len(result), VECTOR):
            _transpose(source, row, column, result)


@inlined_float_kernel
def prefetch(array: Float32s, row: int, column: int) -> None:
    """Begin to load an element of a matrix into the cache."""
    _prefetch(array, row, column)


class _Matrix:
    """A matrix in the code of a kernel: the addresses of its rows, which have no gaps."""

    def __init__(
        self, context: Any, builder: ir.IRBuilder, array_type: Any, array: Any, row_length: int | None = None
    ) -> None:
        """With `row_length`, the matrix has rows of this length, and no gaps between them."""
        struct = context.make_array(array_type)(context, builder, array)
        self.builder, self.data = builder, struct.data
        self.rows, self.columns = cgutils.unpack_tuple(builder, struct.shape)  # type: ignore[no-untyped-call]
        row_bytes, _ = cgutils.unpack_tuple(builder, struct.strides)  # type: ignore[no-untyped-call]
        self.stride = INT64(row_length) if row_length else builder.sdiv(row_bytes, INT64(4))

    def element(self, row: Any, column: Any) -> Any:
        """Return the address of an element."""
        place = self.builder.add(self.builder.mul(row, self.stride), column)
        return self.builder.gep(self.data, [place])


def _generate(function: Callable[..., Any]) -> Callable[..., None]:
    """Return a function for kernels whose code is generated.

    The argument returns its signature and the generator of its code.
    """
    return cast(Callable[..., None], intrinsic(function))


def _multiply_block(vectors: int, is_transposed: bool = False, adds: bool = False) -> Callable[..., None]:
    """Return a function that computes a block of a product.

    A block has ROWS rows, or the last ones, of some vectors.
    """

    @_generate
    def multiply_block(
        typing_context: Any, factors: Any, first: Any, source: Any, result: Any, column: Any
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
            _, first, _, _, column = arguments
            row_length = None if adds else WIDTH
            factors = _Matrix(context, builder, signature.args[0], arguments[0])
            source = _Matrix(context, builder, signature.args[2], arguments[2], row_length)
            result = _Matrix(context, builder, signature.args[3], arguments[3], row_length)
            rows, terms = factors.rows, factors.columns
            if is_transposed:
                rows, terms = terms, rows
            indices = [builder.add(first, INT64(r)) for r in range(ROWS)]
            last = builder.sub(rows, INT64(1))
            exists = [builder.icmp_signed("<", r, rows) for r in indices]
            indices = [builder.select(exists[r], index, last) for r, index in enumerate(indices)]
            zero = INT64(0)
            starts = [factors.element(*((zero, r) if is_transposed else (r, zero))) for r in indices]
            result_rows = [result.element(r, column) for r in indices]
            sums = [[_new_vector(builder) for _ in range(vectors)] for _ in range(ROWS)]
            if adds:
                for row, totals in zip(result_rows, sums, strict=True):
                    for i, total in enumerate(totals):
                        builder.store(_load(builder, row, i), total)
            with cgutils.for_range(builder, terms) as loop:
                place = builder.mul(loop.index, factors.stride) if is_transposed else loop.index
                source_row = source.element(loop.index, column)
                source_vectors = [_load(builder, source_row, i) for i in range(vectors)]
                for start, totals in zip(starts, sums, strict=True):
                    factor = _repeat(builder, builder.load(builder.gep(start, [place])))
                    for vector, total in zip(source_vectors, totals, strict=True):
                        product = builder.fmul(factor, vector, flags=FUSED)
                        builder.store(builder.fadd(product, builder.load(total), flags=FUSED), total)
            for is_row, row, totals in zip(exists, result_rows, sums, strict=True):
                with builder.if_then(is_row, likely=True):
                    for i, total in enumerate(totals):
                        _store(builder, builder.load(total), row, i)
            return context.get_dummy_value()

        return types.void(factors, INDEX, source, result, INDEX), generate

    return multiply_block


_multiply_1, _multiply_2 = _multiply_block(1), _multiply_block(COLUMNS)
_multiply_transposed_1 = _multiply_block(1, is_transposed=True)
_multiply_transposed_2 = _multiply_block(COLUMNS, is_transposed=True)
_add_1, _add_2 = _multiply_block(1, adds=True), _multiply_block(COLUMNS, adds=True)


@_generate
def _transpose(typing_context: Any, source: Any, row: Any, column: Any, result: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
        row, column = arguments[1:3]
        source, result = (_Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 3))
        last = builder.sub(source.rows, INT64(1))
        rows = [builder.add(row, INT64(r)) for r in range(VECTOR)]
        rows = [builder.select(builder.icmp_signed("<", r, last), r, last) for r in rows]
        vectors = [_load(builder, source.element(r, column)) for r in rows]
        size = 1
        while size < VECTOR:  # exchange the off-diagonal parts of blocks of 2·size rows and columns
            for r in range(VECTOR):
                if not r & size:
                    pair = vectors[r], vectors[r + size]
                    vectors[r], vectors[r + size] = _exchange(builder, *pair, size)
            size *= 2
        for r, vector in enumerate(vectors):
            result_row = builder.add(column, INT64(r))
            with builder.if_then(builder.icmp_signed("<", result_row, result.rows), likely=True):
                _store(builder, vector, result.element(result_row, row))
        return context.get_dummy_value()

    return types.void(source, INDEX, INDEX, result), generate


@_generate
def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
        array, row, column = arguments
        address = _Matrix(context, builder, signature.args[0], array).element(row, column)
        to_read, to_all_caches, data = INT32(0), INT32(3), INT32(1)
        arguments = [address, to_read, to_all_caches, data]
        function = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch.p0", (), function), arguments)
        return context.get_dummy_value()

    return types.void(array, INDEX, INDEX), generate


def _load(builder: ir.IRBuilder, row: Any, column: int = 0) -> Any:
    """Load a vector of a row."""
    return builder.load(_vector_address(builder, row, column), align=4)


def _store(builder: ir.IRBuilder, vector: Any, row: Any, column: int = 0) -> None:
    """Store a vector in a row."""
    builder.store(vector, _vector_address(builder, row, column), align=4)


def _vector_address(builder: ir.IRBuilder, row: Any, column: int) -> Any:
    return builder.bitcast(builder.gep(row, [INT32(column * VECTOR)]), FLOAT32S.as_pointer())


def _new_vector(builder: ir.IRBuilder) -> Any:
    """Return the address of a new variable of zeros.

    The compiler keeps it in a register.
    """
    return cgutils.alloca_once_value(builder, FLOAT32S([0.0] * VECTOR))  # type: ignore[no-untyped-call]


def _repeat(builder: ir.IRBuilder, number: Any) -> Any:
    """Return a vector of equal numbers."""
    undefined = FLOAT32S(ir.Undefined)
    first = builder.insert_element(undefined, number, INT32(0))
    return builder.shuffle_vector(first, undefined, INT32S([0] * VECTOR))


def _exchange(builder: ir.IRBuilder, upper: Any, lower: Any, size: int) -> tuple[Any, Any]:
    """Exchange groups of `size` numbers between two vectors.

    Each second group of the first vector is exchanged with the group before it of the other one.
    """
    lanes = range(VECTOR)
    of_upper = INT32S([lane - size + VECTOR if lane & size else lane for lane in lanes])
    of_lower = INT32S([lane + VECTOR if lane & size else lane + size for lane in lanes])
    return builder.shuffle_vector(upper, lower, of_upper), builder.shuffle_vector(upper, lower, of_lower)
