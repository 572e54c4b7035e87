"""Audits over two processes of one machine count what one process counts."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, jax
number, port, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_num_cpu_devices", 2)
if number >= 0:
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=number)
assert jax.process_count() == (2 if number >= 0 else 1)
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


def run(number, port, result):
    path = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(number), str(port), str(result)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_count_what_one_counts(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    found = []
    for group in ((0, 1), (-1,)):
        results = [tmp_path / f"process{number}.txt" for number in group]
        processes = [run(number, port, result) for number, result in zip(group, results, strict=True)]
        try:
            for process in processes:
                _, err = process.communicate(timeout=300)
                assert process.returncode == 0, err
            found += [result.read_text().splitlines() for result in results]
        finally:
            for process in processes:
                process.kill()
    first, second, alone = found
    assert len(alone) == 3 and first == second
    assert all(line.endswith("4 cpu") for line in first) and all(line.endswith("2 cpu") for line in alone)
    assert [line[:-5] for line in first] == [line[:-5] for line in alone]
