"""How often audits refute claims that are exactly true, over 1,000 seeds, for both tests of a fixed number of runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from jaxdp.audit import monte_carlo
from jaxdp.audit.catalogue import catalogue

_ALPHA = 0.1
_RUNS = 20_000


def gaussian(key: jax.Array, value: Any) -> jax.Array:
    return value + jax.random.normal(key, (), jnp.float32)


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    seeds = 50 if quick else 1000
    entries = {entry.name: entry for entry in catalogue()}
    targets: dict[str, tuple] = {}
    for name in ("LaplaceMechanism", "ReportNoisyMax1", "SVT1", "RAPPOR"):
        entry = entries[name]
        targets[name] = entry.sample, entry.worst, entry.loss_law(*entry.worst).epsilon, 0.0
    delta = float(special.ndtr(-0.5) - math.e * special.ndtr(-1.5))
    targets["Gaussian"] = gaussian, (np.float32(0), np.float32(1)), 1.0, delta
    for name, (sample, pair, epsilon, delta) in targets.items():
        for test in ("clopper-pearson",) if delta else ("clopper-pearson", "label"):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(9), len(name)), seeds)
            settings = dict(epsilon=epsilon, delta=delta, num_samples=_RUNS, confidence=1.0 - _ALPHA, test=test)
            refuted = sum(monte_carlo(key, sample, *pair, **settings).refuted for key in keys)
            most = _ALPHA + 3.0 * math.sqrt(_ALPHA * (1.0 - _ALPHA) / seeds)
            print(
                f"audit_validity: {name:18} {test:16} {refuted / seeds:.4f} of {seeds} (at most {most:.3f})",
                file=sys.stderr,
            )
            yield {
                "validity": name,
                "test": test,
                "seeds": seeds,
                "rate": refuted / seeds,
                "at_most": most,
                "passed": refuted / seeds <= most,
            }
