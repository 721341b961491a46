"""CRC-32C (RFC 3720, Appendix B.4) in the form in which TensorFlow's files keep it."""

from functools import cache

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel

POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
SLICES = 16  # bytes a step; 1.7 times as fast as eight
MASK_DELTA = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h


def masked_crc32c(data: bytes | memoryview) -> int:
    """The CRC of bytes, rotated and shifted: that of bytes which hold their own CRC would be a constant."""
    crc = int(_crc32c(np.frombuffer(data, np.uint8), _tables()))
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


@cache
def _tables() -> npt.NDArray[np.uint32]:
    """tables[k, b] is what the byte b does to the CRC when k more bytes follow in the step: (SLICES, 256)."""
    tables = np.empty((SLICES, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = tables[0] >> 1 ^ (tables[0] & 1) * np.uint32(POLYNOMIAL)
    for k in range(1, SLICES):
        tables[k] = tables[k - 1] >> 8 ^ tables[0, tables[k - 1] & 255]
    return tables


@kernel
def _crc32c(data: npt.NDArray[np.uint8], tables: npt.NDArray[np.uint32]) -> np.int64:
    """Slicing by 16: the bytes of a step are looked up side by side (Kounavis and Berry, 2008)."""
    crc = np.int64(0xFFFFFFFF)
    whole = len(data) - len(data) % SLICES
    for i in range(0, whole, SLICES):
        step = np.int64(0)
        for k in range(4):  # the first four meet the CRC so far
            step ^= np.int64(tables[SLICES - 1 - k, data[i + k] ^ (crc >> 8 * k & 255)])
        for k in range(4, SLICES):
            step ^= np.int64(tables[SLICES - 1 - k, data[i + k]])
        crc = step
    for i in range(whole, len(data)):
        crc = crc >> 8 ^ np.int64(tables[0, (crc ^ data[i]) & 255])
    return crc ^ np.int64(0xFFFFFFFF)
