"""CRC-32C against published values and TensorBoard's implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

from bertie.model.formats.crc32c import MASK_DELTA, masked_crc32c


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, Appendix B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_checksums_equal_published_values(data, crc):
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    assert masked_crc32c(data) == (rotated + MASK_DELTA) % 2**32


@given(st.binary(max_size=200))
def test_checksums_equal_tensorboard(data):
    assert masked_crc32c(data) == pywrap_tensorflow.masked_crc32c(data)
