"""How often audits refute claims that are exactly true, for both tests of a fixed number of runs.

They may do so in a tenth of the audits; a share that a tenth would exceed once in 10^4 times fails. 100 seeds a claim,
times --scale: --scale 10 is the full study.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from benchmarks.harness import Size, figure
from jaxdp.audit import monte_carlo
from jaxdp.audit.catalogue import catalogue

_ALPHA, _LEVEL = 0.1, 1e-4
_RUNS = 20_000


def gaussian(key: jax.Array, value: Any) -> jax.Array:
    return value + jax.random.normal(key, (), jnp.float32)


def run(size: Size) -> Iterator[dict[str, Any]]:
    cases = _cases()
    if size.quick:
        cases = cases[:2]
    for number, (name, sample, pair, epsilon, delta, test) in enumerate(cases):
        if number and size.late:
            break
        part = size.share(len(cases) - number)
        settings = dict(epsilon=epsilon, delta=delta, num_samples=_RUNS, confidence=1.0 - _ALPHA, test=test)
        seeds, refuted = 0, 0
        for key in jax.random.split(jax.random.fold_in(jax.random.key(9), number), size.of(100, 8)):
            if seeds >= 2 and part.late:
                break
            seeds, refuted = seeds + 1, refuted + monte_carlo(key, sample, *pair, **settings).refuted
        most = int(stats.binom.isf(_LEVEL, seeds, _ALPHA))
        yield figure(
            f"{name}, {test}: true claims refuted",
            refuted / seeds,
            "",
            against=f"{refuted} of {seeds}, at most {most} allowed; {_ALPHA:g} in truth, or less",
            passed=refuted <= most,
            seeds=seeds,
        )


def _cases() -> list[tuple]:
    """Name, sampler, pair of inputs, exact epsilon and delta, test."""
    entries = {entry.name: entry for entry in catalogue()}
    cases = []
    for name in ("LaplaceMechanism", "ReportNoisyMax1", "SVT1", "RAPPOR"):
        entry = entries[name]
        claim = entry.loss_law(*entry.worst).epsilon, 0.0
        cases += [(name, entry.sample, entry.worst, *claim, test) for test in ("clopper-pearson", "label")]
    delta = float(special.ndtr(-0.5) - math.e * special.ndtr(-1.5))
    return [*cases, ("Gaussian", gaussian, (np.float32(0), np.float32(1)), 1.0, delta, "clopper-pearson")]
