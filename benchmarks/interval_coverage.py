"""Measure how often a 95 % interval over seeds and examples contains the true difference.

    python benchmarks/interval_coverage.py [--tables N]

Simulates two rows of a table that are scored on the same dev examples, with a known difference.
Whether a row is right about an example depends on the difficulty of the example, which all seeds
and rows share, on how well the row suits this example, on luck that all examples of a seed share,
and on noise. The methods:

    seeds       Student's t over the seeds, examples ignored
    bootstrap   percentiles over resampled seeds and examples, both at once
    rescaled    the same draws, the seed part wider by √(n / (n - 1)), as mean ± 1.96 standard errors
    bertie      `reproduction.intervals`

For each it prints the coverage in percent, and the median width relative to bertie's.

A second simulation has tables of 24 orderings, 4 neighbours in each of 6 columns, and tests them
over seeds with Holm's adjustment. It prints the tables with a false verdict, in percent, and the
orderings found if all differences are 4 or 8 standard errors. The methods:

    own         Student's t with each ordering's own spread
    pooled      the spread of all rows of a column together, with more degrees of freedom
    bertie      each ordering's own spread and the table's prior variance, as `reproduction.verdicts`

Rows have equal spreads, or log-normal ones; columns too; or one cell in twenty is five standard deviations
worse, as a seed that has not learned. A third simulation has smaller tables in which some orderings have
much larger spreads than others, and compares `own` and `bertie`.
"""

import argparse
import math
import time

import numpy as np

from bertie.base.arrays import Float64s
from bertie.reproduction.example_scores import deviations
from bertie.reproduction.intervals import (
    LEVEL,
    PRIOR_DEGREES,
    adjust_p_values,
    confidence_interval,
    prior_variance,
    student_t_cdf,
)

DRAWS = 400  # of the bootstrap; all tables of a case share them
OUTCOME = "task/dev/accuracy"
EFFECTS = (0, 4, 8)  # true differences, in standard errors
# (name, standard deviation of a seed's luck, of how a row suits an example, of the noise)
CASES = (
    ("examples vary most", 0.02, 1.0, 0.3),
    ("both vary", 0.1, 0.5, 0.7),
    ("seeds vary most", 0.3, 0.3, 0.7),
    ("noise varies most", 0.02, 0.0, 1.0),
)
# (name, standard deviation of the logarithm of a row's spread, of a column's, fraction of cells that failed)
SPREADS = (
    ("equal", 0.0, 0.0, 0.0),
    ("of rows (0.5)", 0.5, 0.0, 0.0),
    ("of rows (1.0)", 1.0, 0.0, 0.0),
    ("of rows (0.5) and columns (1.0)", 0.5, 1.0, 0.0),
    ("of rows (0.2) and columns (0.5), failed cells", 0.2, 0.5, 0.05),
)
# (name, the spread of each ordering)
SMALL_TABLES = (
    ("1, 1, 5", (1, 1, 5)),
    ("3, 1, 1, 0.3", (3, 1, 1, 0.3)),
    ("3 of 2, 6 of 0.3", (2, 2, 2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3)),
    ("7 of 1, 2 of 4", (1, 1, 1, 1, 1, 1, 1, 4, 4)),
    ("22 of 1, 3 of 4", (1,) * 22 + (4,) * 3),
)


def draw_scores(
    rng: np.random.Generator, seeds: int, examples: int, advantage: float, case: tuple[float, float, float]
) -> tuple[Float64s, float]:
    """Draw whether rows A and B are right: 0 or 1 (2, seeds, examples); and the true difference.

    `advantage` is A's, on the scale of a standard normal variable.
    """
    seed_sd, row_sd, noise_sd = case
    difficulty = rng.normal(0, 1, (1, 1, examples))
    suits = rng.normal(0, row_sd, (2, 1, examples))
    luck = rng.normal(0, seed_sd, (2, seeds, 1))
    noise = rng.normal(0, noise_sd, (2, seeds, examples))
    base = np.array([0.7 + advantage, 0.7])
    right = (base[:, None, None] + difficulty + suits + luck + noise > 0).astype(np.float64)
    spread = math.sqrt(1 + seed_sd**2 + row_sd**2 + noise_sd**2)
    accuracy = [0.5 * (1 + math.erf(x / spread / math.sqrt(2))) for x in base]
    return right, 100 * (accuracy[0] - accuracy[1])


def draw_weights(rng: np.random.Generator, n: int) -> Float64s:
    """Draw the weights of n items in resamples with replacement: (DRAWS, n)."""
    return rng.multinomial(n, np.full(n, 1 / n), DRAWS) / n


def bootstrap(
    differences: Float64s, seed_weights: Float64s, example_weights: Float64s
) -> tuple[tuple[float, float], ...]:
    """Return the intervals `bootstrap` and `rescaled` of the mean of differences (seeds, examples)."""
    n = len(differences)
    by_seed = example_weights @ differences.T  # (draws, seeds)
    low, high = np.quantile((by_seed * seed_weights).sum(axis=1), (0.025, 0.975))
    seed_variance = (seed_weights @ differences.mean(axis=1)).var() * n / (n - 1)
    half_width = 1.96 * math.sqrt(seed_variance + by_seed.mean(axis=1).var())
    mean = differences.mean()
    return (float(low), float(high)), (mean - half_width, mean + half_width)


def measure(
    case: tuple[float, float, float], seeds: int, examples: int, tables: int
) -> dict[str, list[float]]:
    """Return by method whether each interval covers the truth, and half of its width."""
    rng = np.random.default_rng(0)
    weights = draw_weights(rng, seeds), draw_weights(rng, examples)
    results: dict[str, list[float]] = {}
    for _ in range(tables):
        right, truth = draw_scores(rng, seeds, examples, 0.1, case)
        values = 100 * (right[0] - right[1]).mean(axis=1)
        moved = np.array(
            [
                deviations(OUTCOME, a[:, None]) - deviations(OUTCOME, b[:, None])
                for a, b in zip(*right, strict=True)
            ]
        )
        plain, full = confidence_interval(values.tolist()), confidence_interval(values.tolist(), moved)
        percentiles, rescaled = bootstrap(100 * (right[0] - right[1]), *weights)
        intervals = {
            "seeds": (plain.mean - plain.half_width, plain.mean + plain.half_width),
            "bootstrap": percentiles,
            "rescaled": rescaled,
            "bertie": (full.mean - full.half_width, full.mean + full.half_width),
        }
        for name, (low, high) in intervals.items():
            results.setdefault(name, []).append(float(low <= truth <= high))
            results.setdefault(f"{name} width", []).append((high - low) / 2)
    return results


def p_values_over_seeds(samples: Float64s) -> dict[str, list[float]]:
    """Return the p-values of `own` and `bertie` for differences (orderings, seeds).

    `confidence_interval` returns the same p-values. It also computes intervals, and takes a hundred times as
    long.
    """
    seeds = samples.shape[1]
    means, variances = samples.mean(axis=1), samples.var(axis=1, ddof=1)
    own_t = np.abs(means) / np.sqrt(variances / seeds)
    p_values = {"own": (2 * student_t_cdf(-own_t, seeds - 1)).tolist()}
    prior = prior_variance(samples.tolist())
    assert prior is not None
    degrees = seeds - 1 + PRIOR_DEGREES
    moderated = ((seeds - 1) * variances + PRIOR_DEGREES * prior) / degrees
    moderated_t = np.abs(means) / np.sqrt(moderated / seeds)
    p_values["bertie"] = (2 * student_t_cdf(-moderated_t, degrees)).tolist()
    return p_values


def count_verdicts(
    seeds: int, spreads: tuple[float, float, float], effect: float, tables: int
) -> dict[str, list[float]]:
    """Return by method the fraction of the orderings of each table that Holm's method finds.

    Args:
        seeds: the number of seeds.
        spreads: an entry of SPREADS without its name.
        effect: the true differences, in standard errors.
        tables: the number of tables to simulate.
    """
    rng, columns, rows = np.random.default_rng(0), 6, 5
    row_sd, column_sd, failed = spreads
    found: dict[str, list[float]] = {"own": [], "pooled": [], "bertie": []}
    for _ in range(tables):
        spread = np.exp(rng.normal(0, row_sd, (columns, rows, 1)) + rng.normal(0, column_sd, (columns, 1, 1)))
        scores = rng.normal(0, 1, (columns, rows, seeds))
        scores = (scores - 5 * (rng.random(scores.shape) < failed)) * spread
        differences = scores[:, :-1] - scores[:, 1:]
        true_errors = np.hypot(spread[:, :-1, 0], spread[:, 1:, 0]) / math.sqrt(seeds)
        means = differences.mean(axis=2) + effect * true_errors
        residuals = scores - scores.mean(axis=1, keepdims=True)
        residuals -= residuals.mean(axis=2, keepdims=True)
        degrees = (rows - 1) * (seeds - 1)
        pooled = 2 * (residuals**2).sum(axis=(1, 2)) / degrees
        pooled_t = np.abs(means) / np.sqrt(pooled[:, None] / seeds)
        moved = differences - differences.mean(axis=2, keepdims=True) + means[:, :, None]
        p_values = p_values_over_seeds(moved.reshape(-1, seeds))
        p_values["pooled"] = (2 * student_t_cdf(-pooled_t.ravel(), degrees)).tolist()
        for name, values in p_values.items():
            found[name].append(float(np.mean(np.array(adjust_p_values(values)) <= LEVEL)))
    return found


def count_in_small_tables(
    seeds: int, spreads: tuple[float, ...], effect: float, tables: int
) -> dict[str, list[float]]:
    """Return the same as `count_verdicts` for independent orderings with these spreads."""
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {"own": [], "bertie": []}
    for _ in range(tables):
        samples = rng.normal(effect / math.sqrt(seeds), 1, (len(spreads), seeds)) * np.array(spreads)[:, None]
        for name, p_values in p_values_over_seeds(samples).items():
            found[name].append(float(np.mean(np.array(adjust_p_values(p_values)) <= LEVEL)))
    return found


def print_verdicts(tables: int) -> None:
    print("| seeds | spreads | method | false verdicts | found at 4 | at 8 |")
    print("|---|---|---|---|---|---|")
    for seeds in (3, 5):
        for name, *spreads in SPREADS:
            shape = (spreads[0], spreads[1], spreads[2])
            results = [count_verdicts(seeds, shape, effect, tables) for effect in EFFECTS]
            print_rows(seeds, name, results)
        for name, small in SMALL_TABLES:
            results = [count_in_small_tables(seeds, small, effect, tables) for effect in EFFECTS]
            print_rows(seeds, name, results)


def print_rows(seeds: int, name: str, results: list[dict[str, list[float]]]) -> None:
    """Print a row for each method, from what it finds for each of EFFECTS."""
    for method in results[0]:
        false = 100 * np.mean(np.array(results[0][method]) > 0)
        at_4, at_8 = (100 * np.mean(result[method]) for result in results[1:])
        print(f"| {seeds} | {name} | {method} | {false:.1f} | {at_4:.1f} | {at_8:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the coverage of intervals by simulation.")
    parser.add_argument(
        "--tables", type=int, default=400, help="simulations of each case; default: %(default)s"
    )
    tables = parser.parse_args().tables
    methods = ("seeds", "bootstrap", "rescaled", "bertie")
    print("| case | seeds | examples |", " | ".join(methods), "| relative widths |")
    print("|---|---|---|---|---|---|---|---|")
    begin = time.perf_counter()
    for name, *case in CASES:
        for seeds, examples in ((3, 872), (5, 872), (3, 5000), (5, 5000)):
            results = measure((case[0], case[1], case[2]), seeds, examples, tables)
            coverage = " | ".join(f"{100 * np.mean(results[method]):.1f}" for method in methods)
            width = np.median(results["bertie width"])
            widths = ", ".join(f"{np.median(results[f'{method} width']) / width:.2f}" for method in methods)
            print(f"| {name} | {seeds} | {examples:,} | {coverage} | {widths} |", flush=True)
    print_verdicts(4000)
    print(f"{tables} simulations of each interval; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    main()
