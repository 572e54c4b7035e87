"""Releases and batches of data sets spread over devices are those of one device, bit for bit, and devices do not talk.

The tests themselves have two devices (see conftest.py). Each of the long ones has a process of its own with eight, and
compares meshes of its first one, two and eight.
"""

import functools
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from oracles import quick_jit
from test_contract_mechanisms import BASIC, assert_same, make, narrow, stack

import jaxdp
from jaxdp._chacha import chacha20_prng_impl
from jaxdp._mechanism import neighbours
from jaxdp.bounds._statistic import STATISTICS

SPREAD, COPIED = PartitionSpec("runs"), PartitionSpec()
# Three for each of eight devices: code for three lanes is other code than that for a power of two.
NUMBER = 24
# Loops with a trip count that differs from lane to lane go on until all lanes are done.
AGREE_ON_TRIPS = {"ProposeTestRelease"}
SECURE = ("ExponentialMechanism", "AboveThreshold")
# What CI has the time for; all of them are `thorough`.
SOME, SOME_BOUNDS = ("AsymmetricSensitivity",), ("median", "variance")
COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute|reduce-scatter|send|recv)(-start)?\("
)


def collectives(compiled):
    return Counter(match[1] for match in COLLECTIVE.finditer(compiled.as_text()))


def over(devices):
    return NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("runs",)), SPREAD)


def split_in_place(key, number, sharding):
    return jax.jit(jax.random.split, static_argnums=1, out_shardings=sharding)(key, number)


def run(program, sharding, *args):
    """Results and collectives of one compiled program; results have to be spread like the arguments."""
    compiled = program.lower(*args).compile()
    results = compiled(*args)
    for leaf in jax.tree.leaves(results):
        whole = leaf.sharding.is_fully_replicated  # what depends on public numbers alone
        assert whole or leaf.sharding.is_equivalent_to(sharding, leaf.ndim), leaf.sharding
    return jax.tree.map(np.asarray, results), collectives(compiled)


def everywhere(program, spread, copied=(), counts=(1, 8), mapped=2, may_talk=False):
    """program(*spread, *copied) is the same on all `counts` of devices, and with shard_map on `mapped` devices.

    `spread` makes the arguments that are spread, for a sharding.
    """
    single = None
    for devices in counts:
        sharding = over(devices)
        copies = jax.device_put(copied, NamedSharding(sharding.mesh, COPIED))
        found, talk = run(quick_jit(program), sharding, *spread(sharding), *copies)
        single = found if single is None else single
        assert_same(found, single)
        assert set(talk) == ({"all-reduce"} if may_talk and devices > 1 else set()), talk
    if not mapped:
        return single
    sharding = over(mapped)
    args = *spread(sharding), *jax.device_put(copied, NamedSharding(sharding.mesh, COPIED))
    specs = (SPREAD,) * (len(args) - len(copied)) + (COPIED,) * len(copied)
    local = jax.shard_map(program, mesh=sharding.mesh, in_specs=specs, out_specs=SPREAD)
    found, talk = run(quick_jit(local), sharding, *args)
    assert_same(found, single)
    assert not talk, talk
    return single


def data_sets(record):
    """Summaries of different data sets, of one shape: the first of which there are enough."""
    rng, groups = np.random.default_rng(40), defaultdict(list)
    while True:
        summary = neighbours(record, rng)[0]
        kind = jax.tree.structure(summary), *(np.shape(leaf) for leaf in jax.tree.leaves(summary))
        groups[kind].append(summary)
        if len(groups[kind]) == NUMBER:
            return stack(groups[kind])


def mechanism_on_devices(label):
    record = make(label)
    summary, summaries = narrow(record.worst_case()[1]), data_sets(record)

    def releases(keys, summaries, summary, law):
        """On one data set, from its law, and on a data set for each key."""
        one = jax.vmap(record.sample, (0, None))(keys, summary)
        return one, jax.vmap(law.sample)(keys), jax.vmap(record.sample)(keys, summaries)

    def spread(sharding):
        return split_in_place(jax.random.key(41), NUMBER, sharding), jax.device_put(summaries, sharding)

    law, talkative = record.law(summary), label in AGREE_ON_TRIPS
    # shard_map over two devices is among the tests of the mechanisms' contract.
    found = everywhere(releases, spread, (summary, law), counts=(2, 8), mapped=2 * talkative, may_talk=talkative)
    keys = jax.random.split(jax.random.key(41), NUMBER)
    for i in (0, NUMBER - 1):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], summaries)
        alone = record.sample(keys[i], summary), law.sample(keys[i]), record.sample(keys[i], own)
        assert_same(alone, jax.tree.map(lambda leaf, i=i: leaf[i], found))


def secure_keys_on_devices(label):
    record = make(label)
    summary = narrow(record.worst_case()[1])

    def spread(sharding):
        return (split_in_place(jax.random.key(41, impl=chacha20_prng_impl), NUMBER, sharding),)

    everywhere(jax.vmap(record.sample, (0, None)), spread, (summary,))


def statistic_on_devices(name):
    rng, statistic = np.random.default_rng(42), STATISTICS[name]
    records = stack([statistic.draw(rng, 12) for _ in range(NUMBER)])
    program = jax.vmap(lambda records: statistic.call(records, 2))
    bounds = everywhere(program, lambda sharding: (jax.device_put(records, sharding),))
    assert len(np.unique(bounds.lower[:, 0])) > 1


def laws_on_devices(label):
    """Sums of doubles may be grouped otherwise for another number of lanes, but not where there is one at a time."""
    record = make(label)
    summaries, one_by_one = data_sets(record), []
    for sharding in map(over, (1, 2, 8)):
        for program in (jax.vmap(record.law), functools.partial(jax.lax.map, record.law)):
            local = jax.shard_map(program, mesh=sharding.mesh, in_specs=SPREAD, out_specs=SPREAD)
            one_by_one.append(jax.jit(local)(jax.device_put(summaries, sharding)).log_p)
    for lanes, loop in zip(one_by_one[::2], one_by_one[1::2], strict=True):
        np.testing.assert_array_equal(loop, one_by_one[1])
        np.testing.assert_allclose(lanes, loop, rtol=1e-13)


# Eight devices.

SCRIPT = """
import sys, jax
jax.config.update("jax_num_cpu_devices", 8)
import test_devices as tests
assert len(jax.devices()) == 8
for name in sys.argv[2:]:
    print(name)
    getattr(tests, sys.argv[1])(name)
"""


def on_eight_devices(check, names):
    script = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, check.__name__, *names], cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": ".."}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert script.returncode == 0, script.stdout + script.stderr
    assert script.stdout.splitlines() == list(names)


@pytest.mark.slow
def test_releases():
    on_eight_devices(mechanism_on_devices, SOME)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*BASIC} - {*SOME}))
def test_releases_of_every_mechanism(name):
    on_eight_devices(mechanism_on_devices, [name])


@pytest.mark.thorough
def test_releases_with_secure_keys():
    on_eight_devices(secure_keys_on_devices, SECURE)


@pytest.mark.slow
def test_bounds():
    on_eight_devices(statistic_on_devices, SOME_BOUNDS)


@pytest.mark.thorough
def test_bounds_of_every_statistic():
    on_eight_devices(statistic_on_devices, sorted({*STATISTICS} - {*SOME_BOUNDS}))


@pytest.mark.thorough
def test_laws_one_by_one():
    on_eight_devices(laws_on_devices, ["AboveThreshold"])


# Two devices.


def test_the_check_finds_collectives():
    numbers = jax.device_put(np.arange(8, dtype=np.float32), over(2))
    for program, expected in ((jnp.sum, "all-reduce"), (jnp.sort, "all-gather"), (jnp.flip, "collective-permute")):
        assert expected in collectives(jax.jit(program).lower(numbers).compile()), program
    assert not collectives(jax.jit(jnp.square).lower(numbers).compile())


@pytest.mark.parametrize("impl", ["threefry2x32", chacha20_prng_impl])
def test_keys_are_split_in_place(impl):
    key, data = jax.random.key(43, impl=impl), jax.random.key_data
    split = jax.jit(jax.random.split, static_argnums=1, out_shardings=over(2))
    assert not collectives(split.lower(key, 6).compile())
    keys = split(key, 6)
    assert [len(shard.data) for shard in keys.addressable_shards] == [3, 3]
    # A number that the devices do not divide is rounded up, and the first keys are the same.
    np.testing.assert_array_equal(data(keys)[:5], data(jax.random.split(key, 5)))
    with pytest.raises(ValueError, match="divide"):
        split(key, 5)


@pytest.mark.slow
def test_streams():
    """A stream a key, its scores one at a time."""
    stop, steps = jaxdp.AboveThreshold(threshold=3.0, sensitivity=1.0, epsilon=2.0), 6
    scores = np.random.default_rng(44).normal(size=(NUMBER, steps)).cumsum(axis=1).astype(np.float32)

    def stream(key, scores):
        return jax.lax.scan(stop.step, stop.init(key), scores)[1]

    def spread(sharding):
        return split_in_place(jax.random.key(45), NUMBER, sharding), jax.device_put(scores, sharding)

    halted = everywhere(jax.vmap(stream), spread, counts=(1, 2))
    assert 0 < halted.sum() < halted.size
    assert_same(stream(jax.random.split(jax.random.key(45), NUMBER)[7], scores[7]), halted[7])


@pytest.mark.slow
def test_the_batch_of_a_private_loss():
    """A training loop's evaluation, records spread: here devices do talk, and sums of integers do not mind."""
    rng, n = np.random.default_rng(46), 64
    labels = rng.integers(0, 4, n).astype(np.int32)
    logits = (rng.normal(size=(n, 4)) + 2.0 * np.eye(4)[labels]).astype(np.float32)
    stop = jaxdp.AboveThreshold(threshold=0.7, sensitivity=1.0 / n, epsilon=1.0)

    def epoch(carry, key):
        weights, state, logits, labels = carry
        loss = jaxdp.release(key, logits * weights, labels, statistic="cross_entropy", epsilon=1.0, limit=10.0)
        right = logits.argmax(axis=1).astype(labels.dtype) == labels
        state, halted = stop.step(state, jnp.mean(right.astype(jnp.float32)))
        return (weights * np.float32(1.25), state, logits, labels), (loss, halted)

    def loop(key, logits, labels):
        carry = np.float32(0.5), stop.init(jax.random.fold_in(key, 9)), logits, labels
        return jax.lax.scan(epoch, carry, jax.random.split(key, 3))[1]

    found = []
    for sharding in map(over, (1, 2)):
        args = jax.random.key(47), *jax.device_put((logits, labels), sharding)
        compiled = quick_jit(loop).lower(*args).compile()
        assert bool(collectives(compiled)) == (sharding.num_devices > 1)
        found.append(compiled(*args))
    assert_same(*found)
    assert np.isfinite(found[0][0]).all() and len(np.unique(found[0][0])) == 3
