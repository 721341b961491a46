"""Counter-based random numbers, the same in Python, in kernels and on any machine.

A stream is identified by a key made of integers (seed, phase, epoch, block, …), so that any part of
a run can be repeated without the parts before it. The generator is SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014): output i is a hash of key + i·γ. The state of a stream is a uint64 array with
one element, which the functions below advance.
"""

import numpy as np

from bertie.base.arrays import Int64s, UInt64s
from bertie.base.kernels import kernel

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's increment
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # Stafford's variant 13, as in SplitMix64
_MIX_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32, _11 = (np.uint64(n) for n in (30, 27, 31, 32, 11))


@kernel
def mix(value: np.uint64) -> np.uint64:
    """Hash 64 bits bijectively; each input bit changes about half of the output bits."""
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return value ^ (value >> _31)


@kernel
def fold_in(key: np.uint64, part: np.uint64) -> np.uint64:
    """Return the key of the sub-stream `part` of the stream `key`."""
    return mix((key ^ mix(part + _GAMMA)) + _GAMMA)


def stream_key(*parts: int) -> np.uint64:
    """Return the key of a stream, as in `stream_key(seed, phase, epoch, block)`."""
    key = np.uint64(0)
    for part in parts:
        # A kernel returns a Python int, which it would take as signed in the next call.
        key = np.uint64(fold_in(key, np.uint64(part & 0xFFFFFFFFFFFFFFFF)))
    return key


def open_stream(*parts: int) -> UInt64s:
    """Return the initial state of the stream `stream_key(*parts)`: uint64 (1,)."""
    return np.array([stream_key(*parts)], dtype=np.uint64)


@kernel
def random_bits(stream: UInt64s) -> np.uint64:
    """Draw 64 random bits."""
    stream[0] += _GAMMA
    return mix(stream[0])


@kernel
def random_below(stream: UInt64s, bound: int) -> np.int64:
    """Draw an integer from [0, bound), for 0 < bound < 2³².

    The relative bias is at most bound / 2³².
    """
    return np.int64(((random_bits(stream) >> _32) * np.uint64(bound)) >> _32)


@kernel
def random_unit(stream: UInt64s) -> np.float64:
    """Draw a float64 uniformly from [0, 1)."""
    return np.float64(random_bits(stream) >> _11) * 2.0**-53


@kernel
def shuffle(stream: UInt64s, values: Int64s) -> None:
    """Shuffle an array in place (Fisher–Yates)."""
    for last in range(len(values) - 1, 0, -1):
        other = random_below(stream, last + 1)
        values[last], values[other] = values[other], values[last]


def permutation(count: int, *parts: int) -> Int64s:
    """Return a random order of the integers below `count`: int64 (count,).

    The stream with the key `stream_key(*parts)` determines the order.
    """
    values = np.arange(count, dtype=np.int64)
    shuffle(open_stream(*parts), values)
    return values
