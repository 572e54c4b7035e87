"""Memory and rate of audits of float Laplace noise by their number of runs: outputs are counted, never kept.

The larger audit makes a hundred times the runs of the smaller one (5 10^8 an input, times --scale). Its highest use of
memory may exceed the other's by 64 MB at most; stored, its outputs would need thousands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import machine
from benchmarks.harness import Size, figure, short
from jaxdp.audit import AuditReport, Batched, monte_carlo

_MOST = 64e6


def run(size: Size) -> Iterator[dict[str, Any]]:
    runs = size.of(5 * 10**8, 10**7)
    _audit(runs // 1000)  # Compiles everything.
    peaks, reports = [], []
    for number in (runs // 100, runs):
        with machine.Peak() as memory:
            report = _audit(number)
        peaks.append(memory.bytes)
        reports.append(report)
        rate = 2 * number / report.seconds_run
        yield figure(
            f"An audit with {number:,} runs an input",
            rate,
            "runs/s",
            against=f"{report.seconds_run:.3g} s, memory rose by {memory.bytes / 1e6:,.0f} MB",
            runs=number,
            certificate=report.epsilon_lower,
        )
    more = max(0, peaks[1] - peaks[0])
    yield figure(
        "Memory of the larger audit above that of the smaller",
        more / 1e6,
        "MB",
        against=f"at most {_MOST / 1e6:.0f} allowed; the stored outputs would need {short(8e-6 * runs)} MB",
        passed=more <= _MOST,
    )
    yield figure(
        "Certificate of the larger audit",
        reports[1].epsilon_lower,
        "",
        against=f"at most 1 in truth, for noise of scale 1; the smaller certified {reports[0].epsilon_lower:.4f}",
        # The larger one is about 3e-5 short; it must not exceed the truth by more than its own spread.
        passed=0.98 < reports[1].epsilon_lower < 1.0 + 10.0 / runs**0.5,
    )


def _noisy(key: jax.Array, value: Any, n: int) -> jax.Array:
    return value + jax.random.laplace(key, (n,), "float32")


_SAMPLER = Batched(_noisy)


def _audit(runs: int) -> AuditReport:
    return monte_carlo(jax.random.key(0), _SAMPLER, np.float32(0), np.float32(1), epsilon=1.0, num_samples=runs)
