"""Files damaged in every place."""

from collections.abc import Iterator


def damaged(data: bytes) -> Iterator[bytes]:
    """Every byte changed, in two ways, and every length cut to."""
    for i in range(len(data)):
        for change in (1, 255):
            yield data[:i] + bytes([data[i] ^ change]) + data[i + 1 :]
        yield data[:i]
