"""Two processes of one machine count in audits, and release, what one process does."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

START = """
import sys, jax
number, port, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_num_cpu_devices", 2)
if number >= 0:
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=number)
assert jax.process_count() == (2 if number >= 0 else 1)
"""

AUDITS = """
import numpy as np
from jaxdp.audit import Batched, monte_carlo
from jaxdp import Laplace

def respond(key, bits):
    return bits ^ (jax.random.uniform(key, bits.shape, "float32") < 0.25)

def noisy(key, value, n):
    return value + jax.random.laplace(key, (n,), "float32")

zeros = np.zeros(6, bool)
found = []
audits = [(Laplace(1.0, 1.0), 0.0, 1.0, None), (respond, zeros, ~zeros, 1.0), (Batched(noisy), 0.0, 1.0, 1.0)]
for target, one, other, epsilon in audits:
    report = monte_carlo(jax.random.key(5), target, one, other, epsilon=epsilon, num_samples=600_001)
    counts = report.nested_hits, report.nested_other_hits, report.runs
    found.append(f"{report.event} {report.direction} {counts} {report.devices}")
# Not to the standard output, where the collectives write from threads of their own.
open(path, "w").write(chr(10).join(found))
"""


RELEASES = """
import hashlib, numpy as np, jaxdp
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()), ("runs",))
sharding = NamedSharding(mesh, PartitionSpec("runs"))
split = jax.jit(jax.random.split, static_argnums=1, out_shardings=sharding)
keys, scores = split(jax.random.key(1), 64), np.arange(-6, 3).astype(np.float32)
mechanism = jaxdp.AboveThreshold(threshold=0.0, sensitivity=1.0, epsilon=1.0)
records = np.random.default_rng(2).normal(size=(64, 9)).astype(np.float32)
spread = jax.make_array_from_callback(records.shape, sharding, lambda index: records[index])
found = [
    jax.vmap(mechanism.law(scores).sample)(keys),
    jax.jit(jax.vmap(mechanism.sample))(keys, spread),
    jax.jit(jax.vmap(lambda x: jaxdp.bounds.mean(x, 0.0, 1.0, radius=3)))(spread),
]
assert number < 0 or not any(leaf.is_fully_addressable for leaf in jax.tree.leaves(found[0]))
counts = np.array([40, 5, 20, 3])
pairs = jaxdp.Workload(np.random.default_rng(3).random((5, 4)) < 0.5)
synthetic = jaxdp.SmallDB(1.0, size=5).enumerate((counts, pairs), devices=jax.devices())
found.append(jax.vmap(synthetic.sample)(keys))
with open(path, "w") as file:
    for tree in found:
        leaves = [np.asarray(process_allgather(leaf, tiled=True)) for leaf in jax.tree.leaves(tree)]
        hashes = [hashlib.sha256(leaf.tobytes()).hexdigest() for leaf in leaves]
        print(*hashes, len(np.unique(leaves[0])) > 1, file=file)
"""


def run(script, number, port, result):
    path = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", START + script, str(number), str(port), str(result)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def two_and_one(script, folder):
    """Lines that a script writes: by each of two processes, and by one alone."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    found = []
    for group in ((0, 1), (-1,)):
        results = [folder / f"process{number}.txt" for number in group]
        processes = [run(script, number, port, result) for number, result in zip(group, results, strict=True)]
        try:
            for process in processes:
                _, err = process.communicate(timeout=300)
                assert process.returncode == 0, err
            found += [result.read_text().splitlines() for result in results]
        finally:
            for process in processes:
                process.kill()
    return found


def test_two_processes_count_what_one_counts(tmp_path):
    first, second, alone = two_and_one(AUDITS, tmp_path)
    assert len(alone) == 3 and first == second
    assert all(line.endswith("4 cpu") for line in first) and all(line.endswith("2 cpu") for line in alone)
    assert [line[:-5] for line in first] == [line[:-5] for line in alone]


@pytest.mark.thorough
def test_two_processes_release_what_one_releases(tmp_path):
    first, second, alone = two_and_one(RELEASES, tmp_path)
    assert first == second == alone
    assert len(alone) == 4 and all(line.endswith("True") for line in alone)
