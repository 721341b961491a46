"""Numbers in bfloat16 for kernels on a CPU.

numba has no such type, so kernels see integers of 16 bits. A kernel that uses these functions takes arrays of
either type. It is compiled for each type that it gets.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

INT16, INT32, FLOAT32 = ir.IntType(16), ir.IntType(32), ir.FloatType()
BITS = INT32(16)  # a bfloat16 number has the upper 16 bits of a float32 number
LESS_THAN_HALF, LAST_BIT = INT32(0x7FFF), INT32(1)


def to_numpy(*tensors: Tensor) -> list[Any]:
    """Return tensors as arrays that share their memory: bfloat16 as uint16."""
    as_integers = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x for x in tensors)
    return [tensor.detach().numpy() for tensor in as_integers]


def _widened(typing_context: Any, number: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        (number,) = arguments
        if signature.args[0] == types.float32:
            return number
        return builder.bitcast(builder.shl(builder.zext(number, INT32), BITS), FLOAT32)

    return types.float32(number), generate


def _rounded(typing_context: Any, number: Any, like: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        number, _ = arguments
        if signature.return_type == types.float32:
            return number
        bits = builder.bitcast(number, INT32)
        is_odd = builder.and_(builder.lshr(bits, BITS), LAST_BIT)
        bits = builder.add(bits, builder.add(LESS_THAN_HALF, is_odd))
        return builder.trunc(builder.lshr(bits, BITS), INT16)

    return like(types.float32, like), generate


# widened(number) returns a number of an array as float32.
widened = cast(Callable[[Any], np.float32], intrinsic(_widened))
# rounded(number, like) returns a float32 number in the type of an array, which has the element `like`. It
# rounds to the nearest number, and to the even one if two are equally near.
rounded = cast(Callable[[np.float32, Any], Any], intrinsic(_rounded))
