"""Peak memory of an audit of float Laplace noise at 10^7 and at 2 10^9 runs an input, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SCRIPT = """
import json, resource, sys, time
import jax, numpy as np
from jaxdp.audit import Batched, monte_carlo

def noisy(key, value, n):
    return value + jax.random.laplace(key, (n,), "float32")

started = time.perf_counter()
inputs = np.float32(0), np.float32(1)
report = monte_carlo(jax.random.key(0), Batched(noisy), *inputs, epsilon=1.0, num_samples=int(sys.argv[1]))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(dict(peak_kb=peak, seconds=time.perf_counter() - started, certified=report.epsilon_lower)))
"""


def run(*, quick: bool) -> Iterator[dict[str, Any]]:
    sizes = (10**6, 10**7) if quick else (10**7, 2 * 10**9)
    found = []
    for size in sizes:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(size)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
        print(f"audit_memory: {size:.0e} runs an input: {found[-1]}", file=sys.stderr)
        yield {"memory": "peak of an audit", "runs": size, **found[-1]}
    print(f"audit_memory: ratio of the peaks {found[1]['peak_kb'] / found[0]['peak_kb']:.3f}", file=sys.stderr)
