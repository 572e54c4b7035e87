"""Sequential audits: runs until a wrong claim is refuted, and how often a right one is.

The noisy means are those that sequential tests of the literature are measured on: the databases (0) and (0, 1), values
in [0, 1], the true count in the denominator and in the scale of the noise, so that nothing hides the count. The noise
is Laplace of scale 1 / (n epsilon), or normal of standard deviation sqrt(2 log(1.25 / 1e-5)) / (n epsilon). The claim
is (epsilon, 0), for the normal one also (epsilon, 1e-5). The right versions have a public count of one, and the
bounded value changes by 1. Published mean runs: Kutta et al. 2026 (arXiv 2602.06518), table 1. The oracle is the run
count at which the expected log wealth of the best fixed bets, made with the true odds, reaches log 20.

20 seeds a case, times --scale: --scale 50 is the full study. A median of more than twice the published mean fails where
there are 20 seeds or more; so does a share of refuted true claims that 0.05 would exceed once in 10^4 times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from benchmarks.harness import Size, figure
from jaxdp.audit import SequentialReport, sequential

_ALPHA, _LEVEL = 0.05, 1e-4
_SPREAD = math.sqrt(2.0 * math.log(1.25e5))
_ONE, _TWO = (np.float32(0), np.float32(1)), (np.float32(1), np.float32(2))
_ONES = np.ones(10, np.float32)
_LATE = np.repeat(np.float32([1, 0]), 5), np.repeat(np.float32([0, 1]), 5)


def run(size: Size) -> Iterator[dict[str, Any]]:
    cases = [*((_power, case) for case in power()), *((_validity, case) for case in correct())]
    if size.quick:
        cases = [cases[i] for i in (3, 4, 20)]  # With a score; a black box and a claim with a delta; a true claim.
    for number, (measure, case) in enumerate(cases):
        if number and size.late:
            break
        yield measure(size.share(len(cases) - number), *case)


def power() -> list[tuple]:
    """Wrong claims: (name, sample, pair, epsilon, delta), seeds, and facts."""
    cases = []
    for epsilon, laplace, normal in ((0.01, 86.5, 59.1), (0.1, 114.1, 68.0)):
        for name, noise, published in (("Laplace", _laplace, laplace), ("normal", _normal, normal)):
            mean, score = _mean(noise, epsilon)
            case = f"{name} mean with true counts", mean, (_ONE, _TWO), epsilon
            cases.append((*case, 0.0, 20, {"published": published}))
            cases.append((*case, 0.0, 20, {"published": published, "score": score}))
            if name == "normal":
                cases.append((*case, 1e-5, 20, {"published": published}))
    numbers = np.float32(0), np.float32(1)
    for loss, claim, pairs in ((1.5, 1.0, 184), (0.2, 0.1, 1452), (0.6, 0.5, 2137)):
        cases.append((f"Laplace, loss {loss:g}", _additive(1.0 / loss), numbers, claim, 0.0, 20, {"oracle": 2 * pairs}))
    lyu4 = _sparse(4.0, 4.0 / 3.0, 1.0)
    return [
        *cases,
        ("maximum of 5 released", _max_value, (_ONES[:5], 2 * _ONES[:5]), 0.1, 0.0, 5, {"oracle": 37_600}),
        ("sparse vector, Lyu Alg. 4, c = 1", lyu4, _LATE, 0.1, 0.0, 5, {"oracle": 169_000}),
    ]


def correct() -> list[tuple]:
    """Mechanisms, pairs of inputs and exact losses: (name, sample, pair, epsilon, delta)."""
    numbers, scores = (np.float32(0), np.float32(1)), (_ONES[:5], np.float32([2, 0, 0, 0, 0]))
    bits = np.zeros(8, bool), np.arange(8) < 2
    gaussian = stats.norm.cdf(0.0) - math.exp(0.5) * stats.norm.cdf(-1.0)
    mean = [(f"Laplace mean of one, {e}", _additive(1.0 / e), numbers, e, 0.0) for e in (0.01, 0.1)]
    spreads = {e: _SPREAD / e for e in (0.01, 0.1)}
    mean += [(f"normal mean of one, {e}", _gaussian(s), numbers, e, 1e-5) for e, s in spreads.items()]
    return [
        *mean,
        ("Laplace", _additive(1.0), numbers, 1.0, 0.0),
        ("noisy max", _argmax, scores, _loss(*map(_argmax_law, scores)), 0.0),
        ("sparse vector, Lyu Alg. 1, c = 1", _sparse(2.0, 4.0, 0.5, 1.0), _LATE, _loss(*map(_sparse_law, _LATE)), 0.0),
        ("randomised response, 2 of 8 bits", _respond, bits, 2.0 * math.log(1.5), 0.0),
        ("Gaussian, sigma 1", _gaussian(1.0), numbers, 0.5, gaussian),
    ]


def _power(
    size: Size, name: str, sample: Callable, pair: tuple, epsilon: float, delta: float, seeds: int, facts: dict
) -> dict[str, Any]:
    score = facts.get("score")
    options = {"epsilon": epsilon, "delta": delta, "score": score, "max_samples": 2**23}
    started = time.perf_counter()
    reports = _reports(size, size.of(seeds, 2), sample, pair, options)
    runs = np.array([report.runs if report.refuted else np.inf for report in reports])
    seconds = (time.perf_counter() - started) / len(runs)
    low, median, high = np.quantile(runs, [0.25, 0.5, 0.75], method="nearest")
    found = f"quartiles {low:,.0f} to {high:,.0f} of {len(runs)} seeds, {np.isfinite(runs).sum()} refuted"
    known = " ".join(f"{key} {value:,g}" for key, value in facts.items() if key != "score")
    tested = "published" in facts and len(runs) >= 20
    return figure(
        f"Runs until a claim of {_claim(epsilon, delta)} is refuted: {name}, {'score' if score else 'black box'}",
        median,
        "runs",
        against=f"{found}, {seconds:.2g} s each; {known}",
        passed=bool(median <= 2.0 * facts["published"]) if tested else None,
        seeds=len(runs),
        epsilon=epsilon,
        delta=delta,
    )


def _validity(size: Size, name: str, sample: Callable, pair: tuple, epsilon: float, delta: float) -> dict[str, Any]:
    options = {"epsilon": epsilon, "delta": delta, "confidence": 1.0 - _ALPHA, "max_samples": 2**8}
    reports = _reports(size, size.of(20, 4), sample, pair, options)
    refuted = sum(report.refuted for report in reports)
    most = int(stats.binom.isf(_LEVEL, len(reports), _ALPHA))
    return figure(
        f"A true claim of {_claim(epsilon, delta)} refuted: {name}",
        refuted / len(reports),
        "",
        against=f"{refuted} of {len(reports)}, at most {most} allowed; {_ALPHA:g} in truth, or less",
        passed=refuted <= most,
        seeds=len(reports),
        epsilon=epsilon,
        delta=delta,
    )


def _reports(size: Size, seeds: int, sample: Callable, pair: tuple, options: dict) -> list[SequentialReport]:
    """One audit for each seed, until the time is up."""
    reports = []
    for seed in range(seeds):
        if seed >= 2 and size.late:
            break
        reports.append(sequential(jax.random.key(seed), sample, *pair, **options))
    return reports


def _claim(epsilon: float, delta: float) -> str:
    return f"({epsilon:.4g}, {delta:.4g})" if delta else f"{epsilon:.4g}"


# -- mechanisms: textbook float samplers, not for release ----------------------------------------------------


def _laplace(key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    one, other = jax.random.exponential(key, (2, *shape), dtype=jnp.float32)
    return one - other


def _normal(key: jax.Array) -> jax.Array:
    return np.float32(_SPREAD) * jax.random.normal(key, dtype=jnp.float32)


def _mean(noise: Callable, epsilon: float) -> tuple[Callable, Callable]:
    """The mean of a database given as (sum, count), and the log ratio of its outputs on (0) and (0, 1)."""

    def sample(key: jax.Array, database: Any) -> jax.Array:
        total, count = database
        return total / count + noise(key) / (count * np.float32(epsilon))

    def score(y: jax.Array) -> jax.Array:
        one, two = y * np.float32(epsilon), (y - np.float32(0.5)) * np.float32(2.0 * epsilon)
        if noise is _laplace:
            return jnp.abs(two) - jnp.abs(one) - np.float32(math.log(2.0))
        return (two**2 - one**2) * np.float32(0.5 / _SPREAD**2) - np.float32(math.log(2.0))

    return sample, score


def _additive(scale: float) -> Callable:
    return lambda key, x: x + np.float32(scale) * _laplace(key)


def _gaussian(sigma: float) -> Callable:
    return lambda key, x: x + np.float32(sigma) * jax.random.normal(key, dtype=jnp.float32)


def _max_value(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.max(x + np.float32(20.0) * _laplace(key, (5,)))


def _argmax(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.argmax(x + np.float32(2.0) * _laplace(key, (5,)))


def _sparse(first: float, second: float, threshold: float, epsilon: float = 0.1) -> Callable:
    """Index of the first noisy query above a noisy threshold, 10 if there is none."""

    def sample(key: jax.Array, x: jax.Array) -> jax.Array:
        one, other = jax.random.split(key)
        noisy = x + np.float32(second / epsilon) * _laplace(other, x.shape)
        above = noisy >= np.float32(threshold) + np.float32(first / epsilon) * _laplace(one)
        return jnp.where(jnp.any(above), jnp.argmax(above), len(x))

    return sample


def _respond(key: jax.Array, bits: jax.Array) -> jax.Array:
    return bits ^ (jax.random.uniform(key, bits.shape, dtype=jnp.float32) < 0.4)


# -- exact laws, by quadrature on the host -------------------------------------------------------------------

_GRID = np.linspace(-80.0, 80.0, 320_001)


def _loss(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.max(np.abs(np.log(one) - np.log(other))))


def _argmax_law(x: np.ndarray) -> np.ndarray:
    law = stats.laplace(scale=2.0)
    above = np.stack([law.cdf(_GRID - value) for value in x.astype(float)])
    mass = [law.pdf(_GRID - x[i]) * np.prod(np.delete(above, i, axis=0), axis=0) for i in range(len(x))]
    return np.array([np.trapezoid(each, _GRID) for each in mass])


def _sparse_law(x: np.ndarray) -> np.ndarray:
    below = np.stack([stats.laplace(scale=4.0).cdf(0.5 + _GRID - value) for value in x.astype(float)])
    weight = stats.laplace(scale=2.0).pdf(_GRID)
    before = np.concatenate([np.ones((1, len(_GRID))), np.cumprod(below, axis=0)])
    mass = weight * before * np.concatenate([1.0 - below, np.ones((1, len(_GRID)))])
    return np.trapezoid(mass, _GRID, axis=1)
