"""Private numbers and decisions inside jitted training loops: an MLP on digits, with optax."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import quick_jit

import jaxdp
from jaxdp import AboveThreshold, AsymmetricSensitivity, Ledger, PermuteAndFlip

optax = pytest.importorskip("optax")

from training_loop import (  # noqa: E402
    EPOCHS,
    EVALUATION,
    GRID,
    HELD_OUT,
    METRICS,
    RADIUS,
    count_right,
    evaluate,
    forward,
    init,
    records,
    run,
    train_epoch,
    true_metrics,
)

pytestmark = pytest.mark.slow

MECHANISMS = ("asymmetric", "inverse", "smooth", "laplace")
TRACES = []


@quick_jit
def program(key, epsilon):
    TRACES.append(1)
    return run(key, epsilon)


@pytest.fixture(scope="module")
def trained():
    """Parameters after one epoch of 32 seeds, made by one program."""
    optimizer = optax.sgd(0.5, momentum=0.9)

    def one(key):
        params = init(key)
        return train_epoch(optimizer, params, optimizer.init(params))[0]

    return quick_jit(jax.vmap(one))(jax.random.split(jax.random.key(3), 32))


def test_one_program_serves_20_epochs_and_5_epsilons(key):
    stopped = []
    for epsilon in (0.25, 0.5, 1.0, 4.0, 16.0):
        params, ledger, released, ran = program(key, np.float32(epsilon))
        ran = np.asarray(ran)
        made = int(ran.sum())
        assert ran[:made].all(), "once stopped, always stopped"
        assert dict(zip(ledger.names, np.asarray(ledger.calls).tolist(), strict=True)) == {
            "evaluation": made * len(METRICS),
            "stopping": 1,
            "training": 1,
        }
        total = ledger.privacy()
        assert total.epsilon == epsilon * (4 * made + 1) + 2.0
        tail = AsymmetricSensitivity(epsilon).privacy().delta
        assert total.delta == pytest.approx(1e-6 + (4 * made + 1) * tail, rel=1e-9)
        for metric in METRICS:
            assert np.isfinite(np.asarray(released[metric])[:made]).all()
            assert np.isnan(np.asarray(released[metric])[made:]).all()
        stopped.append(made)
    assert len(TRACES) == 1
    # At epsilon 16 the noise is a fraction of a record: the run stops at the first epoch above the threshold.
    truth = true_metrics(params)
    assert truth["accuracy"] >= 0.845 and 1 < stopped[-1] < EPOCHS
    for metric in METRICS:
        last = float(released[metric][stopped[-1] - 1])
        assert last == pytest.approx(truth[metric], rel=0.1, abs=0.02)


def record_of(mechanism, bounds):
    if mechanism == "laplace":
        return jaxdp.Laplace(bounds.sensitivity, 1.0)
    kinds = {
        "asymmetric": AsymmetricSensitivity,
        "inverse": jaxdp.InverseSensitivity,
        "smooth": jaxdp.SmoothSensitivity,
    }
    return kinds[mechanism](1.0)


@pytest.fixture(scope="module")
def summaries(trained):
    """The bounds of all metrics, of 32 seeds."""

    def one(params):
        x, labels = map(jnp.asarray, EVALUATION)
        logits, made = forward(params, x), {}
        for metric in METRICS:
            data, public = records(metric, logits, labels)
            made[metric] = getattr(jaxdp.bounds, metric)(*data, **public, radius=RADIUS)
        return made

    return quick_jit(jax.vmap(one))(trained)


def entry(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_error_in_a_loop_is_that_of_the_exact_law(mechanism, trained, summaries):
    params, metrics = entry(trained, 0), METRICS if mechanism == "asymmetric" else ("cross_entropy", "accuracy")
    keys = jax.random.split(jax.random.key(5), 200)

    def step(count, key):
        return count + 1, evaluate(key, params, 1.0, mechanism=mechanism, metrics=metrics)

    @quick_jit
    def expected_error(bounds):
        record = record_of(mechanism, bounds)
        return jaxdp.expected_error(record, bounds, jaxdp.default_grid(record, bounds, GRID))

    count, released = quick_jit(lambda keys: jax.lax.scan(step, jnp.int32(0), keys))(keys)
    assert int(count) == len(keys)
    for metric in metrics:
        truth = true_metrics(params)[metric]
        bounds = entry(summaries[metric], 0)
        assert float(bounds.value) == pytest.approx(truth, rel=1e-5)
        expected = float(expected_error(bounds))
        found = np.mean(np.abs(np.asarray(released[metric], np.float64) - truth))
        assert 0.6 * expected < found < 1.5 * expected, (metric, found, expected)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_vmap_over_32_seeds_releases_what_32_calls_do(mechanism, summaries):
    keys = jax.random.split(jax.random.key(6), 32)

    def one(key, bounds):
        record = record_of(mechanism, bounds)
        grid = jaxdp.default_grid(record, bounds, GRID)
        return record.sample(key, bounds.value if mechanism == "laplace" else (bounds, grid))

    together, alone = quick_jit(jax.vmap(one)), quick_jit(one)
    for metric in METRICS:
        releases = together(keys, summaries[metric])
        each = [alone(keys[i], entry(summaries[metric], i)) for i in range(32)]
        np.testing.assert_array_equal(releases, np.array(each))
        assert len(np.unique(releases)) > 5, "32 seeds give different releases"


@pytest.mark.thorough
def test_whole_runs_agree_between_vmap_and_loop():
    keys = jax.random.split(jax.random.key(7), 4)
    together = quick_jit(jax.vmap(run, (0, None)))(keys, np.float32(1.0))
    for i, key in enumerate(keys):
        one = program(key, np.float32(1.0))
        params, ledger, released, ran = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        for a, b in zip(one[0], params, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(one[1].calls, ledger.calls)
        np.testing.assert_array_equal(one[1].words, ledger.words)
        np.testing.assert_array_equal(one[3], ran)
        for metric in METRICS:  # a release is a candidate, the same one unless rounding crossed one of its thresholds
            np.testing.assert_allclose(one[2][metric], released[metric], rtol=1e-5, atol=1e-5)
    assert together[1].calls.shape == (4, 3) and "batch of shape (4,)" in str(together[1])


SHARDED = """
import sys
sys.path[:0] = {paths!r}
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import training_loop as t
from oracles import quick_jit

mesh = Mesh(np.array(jax.devices()), ("data",))
rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
keys, params = jax.random.split(jax.random.key(8), 8), t.init(jax.random.key(9), scale=3.0)
evaluation = tuple(leaf[:496] for leaf in t.EVALUATION)
metrics = ("cross_entropy", "accuracy", "absolute_error")

def releases(keys, params, evaluation):
    return jax.lax.map(lambda key: t.evaluate(key, params, 1.0, evaluation, metrics=metrics), keys)

one = quick_jit(releases)(keys, params, evaluation)
sharded = jax.device_put(evaluation, rows)
assert len(sharded[0].sharding.device_set) == 8 and sharded[0].addressable_shards[0].data.shape == (62, 64)
eight = quick_jit(releases, in_shardings=(whole, whole, rows))(keys, params, sharded)
for metric in metrics:
    np.testing.assert_array_equal(np.asarray(one[metric]), np.asarray(eight[metric]), err_msg=metric)
    assert len(np.unique(one[metric])) > 1
print("same", len(jax.devices()))
"""


@pytest.mark.thorough
def test_evaluation_data_on_8_devices_give_the_release_of_one():
    here = Path(__file__).parent
    code = SHARDED.format(paths=[str(here), str(here.parent)])
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["same", "8"]


def test_choice_of_the_best_model_by_permute_and_flip(trained):
    right = quick_jit(jax.vmap(count_right))(trained)
    choice = PermuteAndFlip(sensitivity=1.0, epsilon=2.0)  # counts: accuracy with sensitivity 1 / n is the same law
    ledger = Ledger.of(choice=choice)

    @quick_jit
    def best(key, right, params, ledger):
        index = choice.sample(key, right)
        return index, jax.tree.map(lambda leaf: leaf[index], params), ledger.spend("choice")

    index, chosen, ledger = best(jax.random.key(10), right, trained, ledger)
    np.testing.assert_array_equal(chosen[0], trained[0][int(index)])
    assert ledger.privacy().epsilon == 2.0
    accuracy = np.asarray(right) / np.float32(HELD_OUT)
    same = PermuteAndFlip(sensitivity=1.0 / HELD_OUT, epsilon=2.0).law(accuracy)
    np.testing.assert_allclose(same.log_p, choice.law(right).log_p, rtol=1e-4)
    # The chosen model is better than one taken at random, by the exact law.
    right = np.asarray(right, np.float32)
    mean = float(choice.law(right).expectation(lambda i: jnp.asarray(right)[i]))
    assert np.mean(right) + 2.0 < mean <= np.max(right)


def plateau_scores(right, window):
    """Minus the improvement of the last `window` epochs, for counts of right answers by epoch."""
    return right[:-window] - right[window:]


def test_sensitivity_of_the_plateau_test_is_2():
    # A record is right or wrong in each epoch; it contributes r[t - w] - r[t] in {-1, 0, 1} to the score of epoch t.
    # Replaced by another, it moves the score by at most 2, and by exactly 2 if it was forgotten and the other learnt.
    rng, largest = np.random.default_rng(11), 0
    for _ in range(300):
        epochs, window, n = rng.integers(4, 9), rng.integers(1, 4), rng.integers(1, 6)
        answers = rng.integers(0, 2, (epochs, n))
        other = answers.copy()
        other[:, 0] = rng.integers(0, 2, epochs)
        change = plateau_scores(answers.sum(axis=1), window) - plateau_scores(other.sum(axis=1), window)
        largest = max(largest, np.abs(change).max())
    assert largest == 2


def test_learning_rate_drops_on_a_private_plateau():
    window, patience, epochs = 2, 3, 24
    plateau = AboveThreshold(threshold=-patience, sensitivity=2.0, epsilon=8.0)
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.3)
    key = jax.random.key(12)

    def epoch(carry, i):
        params, state, stream, past, ledger = carry
        params, state = train_epoch(optimizer, params, state)
        right = count_right(params)
        # Until the window is full there is nothing to compare: a score that never halts.
        score = jnp.where(i >= window, past[0] - right, jnp.int32(-HELD_OUT))
        stream, halted = plateau.step(stream, score)
        fresh = plateau.init(jax.random.fold_in(key, i), jnp.int32)
        # The answer is public: the drop costs nothing, a new stream does.
        rate = state.hyperparams["learning_rate"]
        state.hyperparams["learning_rate"] = jnp.where(halted, 0.1 * rate, rate)
        stream = jax.tree.map(lambda new, old: jnp.where(halted, new, old), fresh, stream)
        ledger = ledger.spend("plateau", times=halted)
        past = jnp.append(past[1:], right)
        return (params, state, stream, past, ledger), (rate, score, halted)

    @quick_jit
    def whole(key):
        params = init(key)
        ledger = Ledger.of(plateau=plateau).spend("plateau")
        start = params, optimizer.init(params), plateau.init(key, jnp.int32), jnp.zeros(window, jnp.int32), ledger
        return jax.lax.scan(epoch, start, jnp.arange(epochs))

    (params, _, _, _, ledger), (rates, scores, halted) = whole(jax.random.key(13))
    drops = int(np.sum(halted))
    assert 1 <= drops < epochs and int(ledger.calls[0]) == 1 + drops
    assert ledger.privacy().epsilon == 8.0 * (1 + drops)
    np.testing.assert_allclose(rates, 0.3 * 0.1 ** np.append(0, np.cumsum(halted)[:-1]), rtol=1e-5)
    # No drop while the network still improved by many records an epoch.
    assert not np.any(np.asarray(halted) & (np.asarray(scores) < -patience - 8))
    assert true_metrics(params)["accuracy"] > 0.8
