"""Runs, Privacy, composition, and the hand-over to dp-accounting."""

import copy
import math
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp import Privacy, Runs, compose


@pytest.mark.parametrize(
    "scores", [[3, 3, 3, 5], [1.5], [0.0, -0.0, 1.0], [2, 2], [1, 2, 1, 1], [np.inf, np.inf, -np.inf], [np.nan, np.nan]]
)
def test_runs(scores):
    scores = np.array(scores)
    runs = Runs.of(scores)
    np.testing.assert_array_equal(np.repeat(runs.scores, runs.repeats), scores)
    assert runs.repeats.dtype == np.int32 and runs.length == len(scores) == runs.repeats.sum()
    assert not np.any(runs.scores[1:] == runs.scores[:-1])
    assert runs.scores.dtype == scores.dtype


def test_runs_are_a_pytree_with_a_static_length():
    runs = Runs.of(np.array([1, 1, 4], np.int32))
    leaves, tree = jax.tree.flatten(runs)
    assert [leaf.tolist() for leaf in leaves] == [[1, 4], [2, 1]]
    assert jax.tree.unflatten(tree, leaves).length == 3
    got = jax.jit(lambda r: jnp.vdot(r.scores, r.repeats) + jnp.int32(r.length))(runs)
    assert got == 1 * 2 + 4 * 1 + 3


@pytest.mark.parametrize("bad", [[], 3.0, [[1.0, 2.0]], [True, False], [1j], ["a"]])
def test_bad_runs(bad):
    with pytest.raises(ValueError, match="scores must"):
        Runs.of(np.array(bad))


def test_composition_adds_up():
    total = compose(Privacy(0.5, 0.25), Privacy(1.0), Privacy(0.25, 0.5))
    assert (total.epsilon, total.delta, total.rho) == (1.75, 0.75, None)
    assert total.neighbours == "replace-one"
    assert compose(Privacy(0.5, 1e-9)).epsilon == 0.5


def test_composition_of_zcdp():
    total = compose(Privacy(1.0, rho=0.125), Privacy(0.5))
    assert total.rho == 0.125 + 0.5**2 / 2
    assert total.epsilon == 1.5


def test_composition_rejects_what_does_not_fit():
    with pytest.raises(ValueError, match="at least one"):
        compose()
    with pytest.raises(ValueError, match="neighbours"):
        compose(Privacy(1.0), Privacy(1.0, neighbours="add-remove"))


def test_composition_of_traced_guarantees():
    def total(epsilon):
        privacy = compose(jaxdp.Laplace(1.0, epsilon).privacy(), Privacy(0.5))
        return privacy.epsilon, privacy.delta

    epsilon, delta = jax.jit(total)(np.float32(0.25))
    assert epsilon == 0.75
    np.testing.assert_allclose(delta, math.expm1(0.25) * math.exp(-46), rtol=1e-5)


def test_records_can_be_copied():
    privacy = Privacy(0.5, 1e-9, rho=0.1)
    for other in (copy.deepcopy(privacy), pickle.loads(pickle.dumps(privacy)), jax.tree.map(lambda x: x, privacy)):
        assert (other.epsilon, other.delta, other.rho, other.neighbours) == (0.5, 1e-9, 0.1, "replace-one")
    runs = pickle.loads(pickle.dumps(Runs.of(np.array([1.0, 1.0]))))
    assert runs.repeats.tolist() == [2] and runs.length == 2
    halt = jaxdp.Halt(np.int32(3), np.bool_(True))
    assert pickle.loads(pickle.dumps(halt)) == halt


def test_the_event_needs_a_tiny_delta():
    with pytest.raises(ValueError, match="delta must be below 1e-15"):
        Privacy(1.0, 1e-9).to_dp_event()


def test_without_dp_accounting_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdp-privacy\[accounting\]'"):
        Privacy(1.0).to_dp_event()


@pytest.fixture
def accountant():
    pytest.importorskip("dp_accounting")
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    return lambda: PLDAccountant(NeighboringRelation.REPLACE_ONE)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_accountant_finds_the_claimed_epsilon(accountant, epsilon):
    event = jaxdp.Laplace(1.0, epsilon).privacy().to_dp_event()
    one = accountant().compose(event)
    np.testing.assert_allclose(one.get_epsilon(1e-12), epsilon, atol=1e-3)
    # Randomised response: delta(e) = (e^epsilon - e^e) / (1 + e^epsilon), the most that pure DP allows.
    half = epsilon / 2
    expected = (math.exp(epsilon) - math.exp(half)) / (1 + math.exp(epsilon))
    np.testing.assert_allclose(one.get_delta(half), expected, atol=2e-4)


def test_two_releases_compose_below_the_sum(accountant):
    event = Privacy(0.5).to_dp_event()
    # Not compose(event, 2): dp-accounting 0.6 counts randomised response once there.
    both = accountant().compose(event).compose(event)
    np.testing.assert_allclose(both.get_epsilon(1e-12), 1.0, atol=1e-3)
    # Only "both answers right" has a loss (1.0) above 0.5.
    p, half = 1 / (1 + math.exp(0.5)), math.exp(0.5)
    np.testing.assert_allclose(both.get_delta(0.5), (1 - p) ** 2 - half * p**2, atol=2e-4)
    assert both.get_epsilon(0.1) < 0.9
