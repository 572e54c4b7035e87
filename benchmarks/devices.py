"""One device against all: the same releases, audits, bounds and enumeration, spread over devices.

Where the devices are accelerators, one of them is compared with all. On a CPU one device is compared with two, which
share the same cores, each in a process of its own, since their number is fixed when JAX starts: that shows how much of
the machine one device leaves idle. (JAX runs most operations of one CPU device on one core.) Both get the same keys and
data, and must give the same results, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdp
from benchmarks import machine
from benchmarks.harness import Contestant, Size, race, spread
from jaxdp.audit import Batched, monte_carlo

_ROOT = Path(__file__).parents[1]


class Work(NamedTuple):
    """What one call does: `units` of something, with arrays as its result."""

    call: Callable[[], Any]
    units: int
    unit: str


def run(size: Size) -> Iterator[dict[str, Any]]:
    devices = jax.devices()
    cpu = devices[0].platform == "cpu"
    counts = [1, 2] if cpu else sorted({1, len(devices)})
    sides = {_name(n): Process(size, n) if cpu else Here(size, devices[:n]) for n in counts}
    try:
        for title, (_, units, unit) in _works(size, devices[:1]).items():
            contestants = [
                Contestant(name, lambda side=side, title=title: side.run(title), units, name == _name(1))
                for name, side in sides.items()
            ]
            records = race(title, contestants, size=size, turns=7, unit=unit)
            for record in records:
                # The work was done elsewhere, and so were CPU time and memory used.
                cpu = {name: [use.cpu for use in side.uses[title][-record["turns"] :]] for name, side in sides.items()}
                record["cpu_s"] = spread(cpu[record["contestant"]])
                record["cpu_ratio"] = spread(np.divide(cpu[_name(1)], cpu[record["contestant"]]))
                record["peak_bytes"] = max(use.peak for use in sides[record["contestant"]].uses[title])
                yield record
            digests = {side.digest(title) for side in sides.values()}
            found = f"results of {' and '.join(sides)} are {'' if len(digests) == 1 else 'not '}the same, bit for bit"
            yield {"check": title, "found": found, "differ": False, "passed": len(digests) == 1}
    finally:
        for side in sides.values():
            side.close()


def _name(devices: int) -> str:
    return f"jaxdp, {devices} device{'s' * (devices > 1)}"


def _works(size: Size, devices: Sequence[Any]) -> dict[str, Work]:
    """The questions. Nothing is computed before the first call."""
    sharding = NamedSharding(Mesh(np.array(devices), ("runs",)), PartitionSpec("runs"))
    split = jax.jit(jax.random.split, static_argnums=1, out_shardings=sharding)
    rng, many = np.random.default_rng(0), size.of(2**22, 2**14)

    laplace = jax.jit(jax.vmap(lambda key: jaxdp.random.discrete_laplace(key, 1.0 / 8.0)))
    incomes = rng.lognormal(8.0, 0.6, 10_000).astype(np.float32)
    asymmetric = jaxdp.AsymmetricSensitivity(1.0)

    def from_law() -> Any:
        bounds = jaxdp.bounds.variance(incomes, 0.0, 50_000.0, radius=100)
        law = asymmetric.law((bounds, jaxdp.geometric_grid(0.0, 50_000.0**2 / 4.0, unit=1e4)))
        return jax.vmap(law.sample)(split(jax.random.key(1), many))

    streams, length = size.of(2**12, 2**6), 1000
    scores = rng.normal(-20.0, 3.0, (streams, length)).astype(np.float32)
    above = jax.jit(jax.vmap(jaxdp.AboveThreshold(threshold=0.0, sensitivity=1.0, epsilon=1.0).sample))

    columns = rng.random((size.of(2**8, 2**3), 1000), np.float32)
    variances = jax.jit(jax.vmap(lambda x: jaxdp.bounds.variance(x, 0.0, 1.0, radius=100)))

    elements, records = (8 if size.quick else 14), 12
    histogram = rng.multinomial(2000, rng.dirichlet(np.ones(elements))).astype(np.int32)
    summary = histogram, jaxdp.Workload(rng.random((64, elements)) < 0.5)
    synthetic = jaxdp.SmallDB(1.0, size=records)

    def enumerate_all() -> Any:
        return np.asarray([synthetic.enumerate(summary, devices=devices).log_normalizer])

    def audit(target: Any, runs: int) -> Work:
        def call() -> Any:
            inputs = np.float32(0.0), np.float32(1.0)
            report = monte_carlo(jax.random.key(3), target, *inputs, epsilon=1.0, num_samples=runs, devices=devices)
            return np.asarray(report.nested_hits), np.asarray(report.nested_other_hits)

        return Work(call, 2 * runs, "run")

    works = {
        "Discrete Laplace draws at scale 8, a key each": Work(
            lambda: laplace(split(jax.random.key(0), many)), many, "draw"
        ),
        "Asymmetric sensitivity on one data set of 10,000, law included": Work(from_law, many, "release"),
        f"AboveThreshold on fresh streams of {length:,}": Work(
            lambda: above(split(jax.random.key(2), streams), jax.device_put(scores, sharding)), streams, "release"
        ),
        "Audit of float Laplace noise, a key a block": audit(_BATCHED, size.of(2**26, 2**18)),
        "Audit of float Laplace noise, a key a run": audit(_noisy, size.of(2**22, 2**16)),
        "Variance bounds, radius 100, of data sets of 1,000": Work(
            lambda: variances(jax.device_put(columns, sharding)), len(columns), "data set"
        ),
        f"SmallDB's enumeration, {elements} elements, {records} records, 64 queries": Work(
            enumerate_all, 1, "enumeration"
        ),
    }
    # Compilation is what a quick run spends its time on.
    return {title: works[title] for title in list(works)[:: 3 if size.quick else 1]}


def _noisy(key: jax.Array, value: Any) -> jax.Array:
    return value + jax.random.laplace(key, (), "float32")


_BATCHED = Batched(lambda key, value, n: value + jax.random.laplace(key, (n,), "float32"))


class Use(NamedTuple):
    """What one call took: CPU seconds of all threads, bytes of memory."""

    cpu: float
    peak: int


class Here:
    """Some devices of this process."""

    def __init__(self, size: Size, devices: Sequence[Any]):
        self._works = _works(size, devices)
        self.uses: dict[str, list[Use]] = {}
        self._results: dict[str, Any] = {}

    def run(self, title: str) -> None:
        start = time.process_time()
        with machine.Peak() as memory:
            self._results[title] = jax.block_until_ready(self._works[title].call())
        self.uses.setdefault(title, []).append(Use(time.process_time() - start, memory.bytes))

    def digest(self, title: str) -> str:
        """A hash of the last results."""
        leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(self._results[title])]
        return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()

    def close(self) -> None:
        self._results.clear()


class Process:
    """A process with a number of CPU devices, which does the work when asked."""

    def __init__(self, size: Size, devices: int):
        start = [sys.executable, "-m", "benchmarks.devices", str(devices), str(int(size.quick)), str(size.scale)]
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            start, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.uses: dict[str, list[Use]] = {}

    def run(self, title: str) -> None:
        self.uses.setdefault(title, []).append(Use(*self._ask("run", title)))

    def digest(self, title: str) -> str:
        return self._ask("digest", title)

    def _ask(self, what: str, title: str) -> Any:
        print(json.dumps([what, title]), file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError(f"the process for {title!r} ended with status {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)


def _serve(devices: int, size: Size) -> None:
    jax.config.update("jax_num_cpu_devices", devices)
    here = Here(size, jax.devices())
    for line in sys.stdin:
        what, title = json.loads(line)
        if what == "run":
            here.run(title)
            answer = here.uses[title][-1]
        else:
            answer = here.digest(title)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Size(bool(int(sys.argv[2])), int(sys.argv[3])))
