"""Damaged versions of a file, for tests of readers."""

from collections.abc import Iterator


def damaged_versions(data: bytes) -> Iterator[bytes]:
    """Yield `data` with each byte changed, in two ways, and truncated to each length."""
    for i in range(len(data)):
        for change in (1, 255):
            yield data[:i] + bytes([data[i] ^ change]) + data[i + 1 :]
        yield data[:i]
