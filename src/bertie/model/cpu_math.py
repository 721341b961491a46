"""Functions of one float32 number for kernels on a CPU.

Loops that call them become vector instructions.
"""

import numpy as np

from bertie.base.kernels import inlined_float_kernel

# The probability that a standard normal variable is above |x| is its density there times a polynomial of
# t = 1 / (1 + T·|x|), with an error below 7.5e-8 (Abramowitz and Stegun, Handbook of Mathematical Functions,
# 26.2.17). The coefficients are multiplied by the density at 0.
DENSITY_AT_0 = np.float32((2 * np.pi) ** -0.5)
T = np.float32(0.2316419)
B1, B2, B3, B4, B5 = (
    np.float32(value * (2 * np.pi) ** -0.5)
    for value in (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
)
# 2^x is 2^n · 2^r, where n is the integer next to x, and 2^r is r · P(r) + 1 with the coefficients of Cephes
# (exp2f.c).
P0, P1, P2, P3, P4, P5 = (
    np.float32(value)
    for value in (
        1.535336188319500e-4,
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
    )
)
LOWEST = np.float32(-125)  # 2^x of less has fewer digits than other float32 numbers
MANTISSA_BITS = np.int32(23)  # of float32
LOG2_E = np.float32(1.44269504088896341)
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


@inlined_float_kernel
def normal_distribution(x: np.float32) -> tuple[np.float32, np.float32]:
    """Return the standard normal distribution function at x, and its density."""
    ratio = power_of_2(-HALF * LOG2_E * x * x)  # of the density at x to the density at 0
    t = ONE / (ONE + T * abs(x))
    above = ratio * ((((B5 * t + B4) * t + B3) * t + B2) * t + B1) * t  # probability above |x|
    probability = ONE - above if x > ZERO else above
    return probability, DENSITY_AT_0 * ratio


@inlined_float_kernel
def power_of_2(x: np.float32) -> np.float32:
    """Return 2^x for x of at most 126; NaN stays NaN."""
    x = LOWEST if x < LOWEST else x
    n = np.floor(x + HALF)
    r = x - n
    bits = np.float32((((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5) * r + ONE).view(np.int32)
    return np.float32(np.int32(bits + np.int32(np.int32(n) << MANTISSA_BITS)).view(np.float32))
