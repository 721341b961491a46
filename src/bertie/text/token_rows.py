"""The tokens of texts while they are encoded: rows in an array that kernels write and read."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import inlined_kernel, kernel

# Records, because their size is constant: kernels then compute the address of a row without multiplying,
# and vectorise loops over rows.
TOKEN_ROW = np.dtype(
    [
        ("token", np.int32),  # the id
        ("start", np.int32),  # the index of its first character in the text
        ("end", np.int32),  # the index behind its last character
        ("word", np.int32),  # the index of its word in the text
    ]
)
TokenRows = npt.NDArray[np.void]

Integer = int | np.integer[Any]


@inlined_kernel
def write_token(
    rows: TokenRows, i: Integer, token: Integer, start: Integer, end: Integer, word: Integer
) -> None:
    """Write rows[i]; see `TOKEN_ROW`."""
    row = rows[i]
    row.token = token
    row.start = start
    row.end = end
    row.word = word


@kernel
def grow_rows(rows: TokenRows, used: Integer) -> TokenRows:
    """Copy token rows into an array of twice `used` rows."""
    larger = np.empty(2 * used, dtype=TOKEN_ROW)
    for i in range(len(rows)):
        larger[i] = rows[i]
    return larger
