"""SmallDB's enumeration is the same bit for bit on any number of devices, and in two processes."""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdp

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, jax
devices, number, port, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.config.update("jax_num_cpu_devices", devices)
if number >= 0:
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=number)
assert len(jax.devices()) == devices * jax.process_count()
import test_small_db_devices as tests
# Not to the standard output, where the collectives write from threads of their own.
open(path, "w").write(tests.fingerprint())
"""


def summary():
    rng = np.random.default_rng(3)
    workload = jaxdp.Workload(rng.random((9, 16)) < 0.5)
    return rng.multinomial(500, rng.dirichlet(np.ones(16))).astype(np.int32), workload


def fingerprint(**options):
    """Hashes of the law of the segments, its normaliser and releases with keys on one device and on all."""
    mechanism, keys = jaxdp.SmallDB(1.0, size=6), jax.random.split(jax.random.key(5), 160)
    if jax.process_index() == 0:
        mechanism.sample(keys[0], summary())  # Waits for no other process.
    enumeration = mechanism.enumerate(summary(), **options)
    releases = np.asarray(jax.vmap(enumeration.sample)(keys))
    # The keys of several processes are no array of one of them.
    spread = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices"))
    data = np.asarray(jax.random.key_data(keys))
    data = jax.make_array_from_callback(data.shape, spread, lambda index: data[index])
    sharded = jax.vmap(lambda data: enumeration.sample(jax.random.wrap_key_data(data)))(data)
    assert len(sharded.sharding.device_set) == len(jax.devices())
    for shard in sharded.addressable_shards:
        np.testing.assert_array_equal(shard.data, releases[shard.index])
    found = enumeration.weights, enumeration.log_normalizer, releases
    return " ".join(hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest() for part in found)


def run(devices, number, port, result):
    arguments = [str(argument) for argument in (devices, number, port, result)]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": ".."},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def here():
    """The tests themselves run on two devices."""
    return fingerprint()


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((8, [-1]), id="8"),
        pytest.param((1, [-1]), id="1", marks=pytest.mark.thorough),
        pytest.param((2, [0, 1]), id="2 processes with 2", marks=pytest.mark.thorough),
    ],
)
def test_enumerations_do_not_depend_on_the_devices(tmp_path, here, numbers):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    devices, processes = numbers
    results = [tmp_path / f"process{number}.txt" for number in processes]
    processes = [run(devices, *pair[:1], port, pair[1]) for pair in zip(processes, results, strict=True)]
    try:
        for process in processes:
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
    finally:
        for process in processes:
            process.kill()
    assert all(result.read_text() == here for result in results)


def test_devices_and_progress_change_no_bit(here):
    assert fingerprint(devices=jax.devices()[-1:]) == here
    assert fingerprint(devices=jax.devices()[::-1], progress=lambda share: None) == here
