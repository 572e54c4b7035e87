"""How audits count: codes, cells, blocks and keys, on any number of devices."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit_mechanisms import BITS, counts, geometric_half, mask, respond, uniform
from marks import first

from jaxdp.audit import _blocks, _codes, _events, _session
from jaxdp.audit.monte_carlo import monte_carlo
from jaxdp.audit.report import AuditReport

pytestmark = pytest.mark.slow

# -- codes and cells ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_float_codes_keep_order_and_bits(dtype):
    values = np.array([-np.inf, -3e4, -1, -1e-7, -0.0, 0.0, 1e-7, 1, 3e4, np.inf, np.nan, -np.nan], np.float32)
    values = np.asarray(jnp.asarray(values).astype(dtype))
    codes = np.asarray(_codes.encode(jnp.asarray(values), np.dtype(np.int32)))
    assert np.all(np.diff(codes[:-1]) > 0) and codes[-1] == codes[-2] == np.iinfo(np.int32).max
    back = _codes.decode(codes, values.dtype)
    np.testing.assert_array_equal(back, values.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(back[:-1]), np.signbit(values[:-1].astype(np.float32)))
    assert tuple(codes[[0, -3]]) == (_codes.float_edges(values.dtype)[0], _codes.float_edges(values.dtype)[2])


def test_subnormals_and_nan_payloads():
    bits = np.array([1, 2, 0x7FC00001, 0x7F800001, 0xFFC12345], np.uint32)
    codes = np.asarray(_codes.encode(jnp.asarray(bits.view(np.float32)), np.dtype(np.int32)))
    assert codes.tolist() == [1, 2, *[2**31 - 1] * 3]


def test_integer_codes():
    values = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    codes = np.asarray(_codes.encode(jnp.asarray(values), np.dtype(np.int32)))
    assert np.all(np.diff(codes.astype(np.int64)) > 0)
    np.testing.assert_array_equal(_codes.decode(codes, values.dtype), values)
    for dtype in (np.bool_, np.int8, np.uint16, np.int32):
        small = np.array([0, 1], dtype)
        assert np.asarray(_codes.encode(jnp.asarray(small), np.dtype(np.int32))).tolist() == [0, 1]


@pytest.mark.parametrize("size", _events.SIZES)
@pytest.mark.parametrize("used", [0, 1, 20, 32])
def test_cells_are_those_of_searchsorted(size, used):
    rng = np.random.default_rng(size + used)
    edges = np.unique(rng.integers(-50, 50, used if size == 32 else 20 * used).astype(np.int32))[:size]
    padded = _events.pad([edges, np.arange(size, dtype=np.int32)])[0]
    codes = np.concatenate([np.arange(-60, 60), [-(2**31), 2**31 - 1]]).astype(np.int32)
    found = jax.jit(_codes.cells)(codes, padded)
    np.testing.assert_array_equal(found, np.searchsorted(edges, codes, side="left"))
    np.testing.assert_array_equal(_events.count_cells(codes, edges), np.bincount(found, minlength=len(edges) + 1))


def wide(key, x):
    """A mask, three doubles with ties and an integer, all in one output."""
    coin, noise = jax.random.split(key)
    values = jnp.round(uniform(noise, (3,)) * np.float32(2)) + x
    with jax.enable_x64(True):
        values = values.astype(jnp.float64) * np.float64(1e10)
    return {"bits": mask(coin, jnp.zeros(40, bool)), "floats": values, "n": jnp.asarray(3, jnp.int32)}


def halves(key, x):
    return x + jnp.round(uniform(key, (2,)) * np.float32(3)) / np.float32(2)


@pytest.mark.parametrize("run, chunk", first(1, [(halves, 2**13), (wide, 2**16)]))
def test_device_counts_are_host_counts(key, run, chunk, monkeypatch):
    monkeypatch.setitem(_blocks._SCALARS_AT_ONCE, "cpu", chunk)
    monkeypatch.setattr(_blocks, "_SCALARS_PER_DRAW", 16 * chunk)
    # Certification counts the runs that the host has.
    monkeypatch.setattr(_session, "_CERTIFICATION", 0)
    session = _session.Session(key, run, (np.float32(0), np.float32(1)), tuple(jax.devices()), total=1, progress=None)
    runs = 17_001
    codes = session._draw(0, runs)
    pooled = [np.concatenate([side[j] for side in codes]) for j in range(len(session.features))]
    edges = [_events.find_edges(*pair) for pair in zip(pooled, session.features, strict=True)]
    host = _session._on_host(codes, edges)
    device = session._count_all(0, runs, edges)
    for feature, ours, theirs in zip(session.features, host, device, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=feature.name)
        assert ours.sum() == 2 * runs
    # One feature of each kind: coordinate, statistic, table.
    for j in {1, len(session.columns), len(edges) - 1} & set(range(len(edges))):
        event = _events.Event(j, False, edges[j], np.arange(len(edges[j]) + 1), 1, 0, "", 0.0)
        np.testing.assert_array_equal(session.certify(event, (runs, runs))[:, : len(edges[j]) + 1], host[j])


# -- reproducibility ----------------------------------------------------------------------------------------


def test_counts_depend_on_the_key_alone(key, monkeypatch):
    def audit(**options):
        return monte_carlo(key, geometric_half, 0, 1, epsilon=0.5, num_samples=300_000, **options)

    first = audit()
    assert counts(audit()) == counts(first) and audit().event == first.event
    monkeypatch.setattr(_blocks, "FIRST_SHARE", 1)
    monkeypatch.setattr(_blocks, "SECONDS_PER_CALL", 0.0)
    monkeypatch.setitem(_blocks._SCALARS_AT_ONCE, "cpu", 2**9)
    _session._ENGINES.clear()
    steps = []
    assert counts(audit(progress=steps.append)) == counts(first)
    assert len(steps) >= 8 and steps == sorted(steps) and steps[-1] == 1.0
    other = monte_carlo(jax.random.fold_in(key, 1), geometric_half, 0, 1, epsilon=0.5, num_samples=300_000)
    assert counts(other) != counts(first)


SCRIPT = """
import sys, jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import test_audit_blocks as tests
assert len(jax.devices()) == int(sys.argv[1])
print(tests.on_all_devices())
"""


def on_all_devices():
    return counts(monte_carlo(jax.random.key(5), mask, BITS, ~BITS, epsilon=0.5, num_samples=150_000))


@pytest.mark.parametrize("devices", first(1, [8, 1]))
def test_counts_do_not_depend_on_the_devices(devices):
    """The tests themselves run on two."""
    script = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(devices)], cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": ".."},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert script.returncode == 0, script.stderr
    assert script.stdout.strip() == str(on_all_devices())


def test_a_long_pilot_is_counted_on_the_device(key, monkeypatch):
    monkeypatch.setattr(_session, "HOST_RUNS", 4096)
    report = monte_carlo(key, geometric_half, 0, 1, epsilon=0.4, num_samples=200_000, confidence=0.99)
    assert report.refuted and report.epsilon_lower <= 0.5


@pytest.mark.thorough
def test_one_program_serves_many_audits(key):
    traces = []

    def sample(key, x):
        traces.append(1)
        return x + uniform(key)

    for j in range(3):
        # The values differ, the shapes and kinds do not.
        report = monte_carlo(key, sample, float(j), j + 1.0, epsilon=1.0, num_samples=1000)
        if j == 0:
            assert report.seconds_compile > 0.0
            after_first = len(traces)
    assert len(traces) == after_first and report.seconds_compile == 0.0
    # A value that 32 bits would change is compiled in; everywhere else it is an argument too.
    exact = monte_carlo(key, lambda key, x: jnp.float32(x * 1e12 - 1e11) + 0 * uniform(key), 0.1, 0.5, epsilon=1.0,
                        num_samples=1000)  # fmt: skip
    assert exact.refuted


def test_bound_methods_share_their_program(key):
    class Noise:
        traces = 0

        def sample(self, key, x):
            Noise.traces += 1
            return x + uniform(key)

    noise, traces = Noise(), []
    for _ in range(2):
        monte_carlo(key, noise.sample, 0.0, 1.0, epsilon=1.0, num_samples=1000)
        traces.append(Noise.traces)
    assert traces[0] == traces[1]


def test_keys_are_not_reused(key):
    with jax.debug_key_reuse(True):
        monte_carlo(key, respond, False, True, epsilon=1.0, num_samples=1000)


def test_totals_do_not_overflow():
    totals = _blocks.Totals((2,))
    for _ in range(5):
        totals.add(0, np.array([[2**32 - 1, 0], [2**32 - 1, 7]], np.uint32))
    assert totals.counts.tolist() == [[10 * (2**32 - 1), 35], [0, 0]]


def test_counts_beyond_32_bits_are_certified():
    runs = 10**12
    report = AuditReport("", 1.0, 0.0, 1 - 1e-9, runs, "", "", runs // 2, runs, int(0.184 * runs), runs)
    assert 0.99 < report.epsilon_lower < report.epsilon_estimate < 1.0 and report.cap > 20


def test_no_run_repeats_the_words_of_another(key):
    """2^20 runs of all parts, both sides and 8 blocks each: keys that are used are all different."""
    parts = _blocks.part_keys(key)
    seen = []
    for part in range(_blocks.PARTS):
        for side in range(2):
            keys = _blocks._run_keys(parts[part, side], np.arange(8, dtype=np.uint32))
            seen.append(np.asarray(jax.random.key_data(keys)))
    words = np.concatenate(seen)
    assert len(words) == 2**20 and len(np.unique(words, axis=0)) == 2**20
    assert len(np.unique(words[:, :1], axis=0)) < 2**20  # One word alone does repeat: the check can fail.
