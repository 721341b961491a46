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

from bertie.base.arrays import Float32s, Int32s
from bertie.base.kernels import FEATURES, VECTOR, float_kernel, inlined_float_kernel, vectorize_loops

# A product is computed in blocks of ROWS rows and at most COLUMNS vectors. A block, a row of vectors and a
# factor need 19 of the 32 registers of AVX-512, and 15 of the 16 of AVX2.
ROWS = 8 if VECTOR == 16 else 6
COLUMNS = 2
WIDTH = COLUMNS * VECTOR

# A product of codes is computed in blocks of CODE_ROWS rows and PANEL columns. A block, a row of vectors and
# a factor need 29 registers of AVX-512, and 15 of AVX2.
CODE_ROWS = 6
CODE_COLUMNS = 4 if VECTOR == 16 else 2
PANEL = CODE_COLUMNS * VECTOR
AHEAD = 16  # rows of a panel that are loaded early: 6 % less time for a single text
HAS_VNNI = ("+avx512vnni" if VECTOR == 16 else "+avxvnni") in FEATURES
CAN_MULTIPLY_CODES = HAS_VNNI or ("+avx512bw" if VECTOR == 16 else "+avx2") in FEATURES

INDEX = types.intp
INT8, INT16 = ir.IntType(8), ir.IntType(16)
INT32, INT64, FLOAT32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
INT32S, FLOAT32S = ir.VectorType(INT32, VECTOR), ir.VectorType(FLOAT32, VECTOR)
INT8S, INT16S = ir.VectorType(INT8, 4 * VECTOR), ir.VectorType(INT16, 2 * VECTOR)
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


@float_kernel
def multiply_codes(
    codes: Int32s,
    panel: Int32s,
    next_panel: Int32s,
    offsets: Int32s,
    scales: Float32s,
    row_scales: Float32s,
    result: Float32s,
    column: int,
) -> None:
    """Write a product of uint8 and int8 to PANEL columns of `result`, (R, C), from `column` on.

    Result (r, c) is (the product + offsets[c]) · row_scales[r] · scales[c]. An int32 element of `codes`,
    (R, K / 4), has four of uint8, and one of `panel`, (K / 4, PANEL), has four of int8. Meanwhile, each
    block loads a part of `next_panel`, which has the same shape, into the cache. This needs
    CAN_MULTIPLY_CODES.
    """
    vectorize_loops()
    loaded = len(panel) // CODE_COLUMNS  # rows that a block loads, one vector in each step
    for r in range(0, len(codes), CODE_ROWS):
        to_load = next_panel[min(r // CODE_ROWS * loaded, len(next_panel) - 1) :]
        _multiply_codes(codes, r, panel, to_load, offsets, scales, row_scales, result, column)


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
            zeros = FLOAT32S([0.0] * VECTOR)
            sums = [[_new_variable(builder, zeros) for _ in range(vectors)] for _ in range(ROWS)]
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
def _multiply_codes(
    typing_context: Any,
    codes: Any,
    first: Any,
    panel: Any,
    to_load: Any,
    offsets: Any,
    scales: Any,
    row_scales: Any,
    result: Any,
    column: Any,
) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[Any]) -> Any:
        first, column = arguments[1], arguments[8]
        codes, panel, to_load, result = (
            _Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 3, 7)
        )
        offsets, scales, row_scales = (
            context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (4, 5, 6)
        )
        rows = [builder.add(first, INT64(r)) for r in range(CODE_ROWS)]
        last = builder.sub(codes.rows, INT64(1))
        exists = [builder.icmp_signed("<", r, codes.rows) for r in rows]
        rows = [builder.select(is_row, r, last) for r, is_row in zip(rows, exists, strict=True)]
        starts = [codes.element(r, INT64(0)) for r in rows]
        columns = range(CODE_COLUMNS)
        initial = [_load_integers(builder, offsets, i) for i in columns]
        sums = [[_new_variable(builder, value) for value in initial] for _ in range(CODE_ROWS)]
        with cgutils.for_range(builder, codes.columns) as loop:
            panel_row = panel.element(loop.index, INT64(0))
            for i in columns:
                _begin_to_load(builder, builder.gep(panel_row, [INT64((AHEAD * CODE_COLUMNS + i) * VECTOR)]))
            step = builder.mul(loop.index, INT64(VECTOR))
            _begin_to_load(builder, builder.gep(to_load.data, [step]))
            weights = [_load_integers(builder, panel_row, i) for i in columns]
            for start, totals in zip(starts, sums, strict=True):
                four_codes = _repeat(builder, builder.load(builder.gep(start, [loop.index])))
                for four_weights, total in zip(weights, totals, strict=True):
                    builder.store(_add_four(builder, builder.load(total), four_codes, four_weights), total)
        column_scales = [_load(builder, scales, i) for i in columns]
        for is_row, row, totals in zip(exists, rows, sums, strict=True):
            with builder.if_then(is_row, likely=True):
                row_scale = _repeat(builder, builder.load(builder.gep(row_scales, [row])))
                result_row = result.element(row, column)
                for i, total in enumerate(totals):
                    value = builder.sitofp(builder.load(total), FLOAT32S)
                    scale = builder.fmul(row_scale, column_scales[i])
                    _store(builder, builder.fmul(value, scale), result_row, i)
        return context.get_dummy_value()

    arrays = (codes, INDEX, panel, to_load, offsets, scales, row_scales, result, INDEX)
    return types.void(*arrays), generate


def _add_four(builder: ir.IRBuilder, total: Any, codes: Any, weights: Any) -> Any:
    """Add four products of uint8 and int8 to each int32 of `total`.

    Without VNNI, two products are added in 16 bits first, so that weights must not exceed 64.
    """
    bits = 32 * VECTOR
    if HAS_VNNI:
        arguments, name = [total, codes, weights], f"llvm.x86.avx512.vpdpbusd.{bits}"
        return _call(builder, name, INT32S, arguments)
    codes, weights = builder.bitcast(codes, INT8S), builder.bitcast(weights, INT8S)
    ones = INT16S([1] * 2 * VECTOR)
    if VECTOR == 16:
        pairs = _call(builder, "llvm.x86.avx512.pmaddubs.w.512", INT16S, [codes, weights])
        return builder.add(total, _call(builder, "llvm.x86.avx512.pmaddw.d.512", INT32S, [pairs, ones]))
    pairs = _call(builder, "llvm.x86.avx2.pmadd.ub.sw", INT16S, [codes, weights])
    return builder.add(total, _call(builder, "llvm.x86.avx2.pmadd.wd", INT32S, [pairs, ones]))


def _call(builder: ir.IRBuilder, intrinsic: str, result: ir.Type, arguments: Sequence[Any]) -> Any:
    """Call a function that LLVM provides for an instruction."""
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(intrinsic, (), function), arguments)


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
        _begin_to_load(builder, _Matrix(context, builder, signature.args[0], array).element(row, column))
        return context.get_dummy_value()

    return types.void(array, INDEX, INDEX), generate


def _begin_to_load(builder: ir.IRBuilder, address: Any) -> None:
    """Begin to load a line into the cache; nothing happens if the address is not valid."""
    to_read, to_all_caches, data = INT32(0), INT32(3), INT32(1)
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), [address, to_read, to_all_caches, data])


def _load(builder: ir.IRBuilder, row: Any, column: int = 0) -> Any:
    """Load a vector of a row."""
    return builder.load(_vector_address(builder, row, column), align=4)


def _load_integers(builder: ir.IRBuilder, row: Any, column: int) -> Any:
    """Load a vector of a row of int32."""
    address = builder.gep(row, [INT32(column * VECTOR)])
    return builder.load(builder.bitcast(address, INT32S.as_pointer()), align=4)


def _store(builder: ir.IRBuilder, vector: Any, row: Any, column: int = 0) -> None:
    """Store a vector in a row."""
    builder.store(vector, _vector_address(builder, row, column), align=4)


def _vector_address(builder: ir.IRBuilder, row: Any, column: int) -> Any:
    return builder.bitcast(builder.gep(row, [INT32(column * VECTOR)]), FLOAT32S.as_pointer())


def _new_variable(builder: ir.IRBuilder, value: Any) -> Any:
    """Return the address of a new variable, which the compiler keeps in a register."""
    return cgutils.alloca_once_value(builder, value)  # type: ignore[no-untyped-call]


def _repeat(builder: ir.IRBuilder, number: Any) -> Any:
    """Return a vector of equal numbers, float32 or int32."""
    undefined = ir.VectorType(number.type, VECTOR)(ir.Undefined)
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
