"""audit.exact and privacy_profile: broken mechanisms are refuted, and the numbers are those of brute force."""

import itertools

import jax
import numpy as np
import oracles
import pytest

import jaxdp
from jaxdp import DiscreteLaw, Privacy, audit
from jaxdp._mechanism import examples

EXAMPLES = dict(examples(1.0))


def law_of(p):
    with np.errstate(divide="ignore"):
        return DiscreteLaw(np.log(np.asarray(p, np.float64)), np.arange(len(p), dtype=np.int32))


class ByHand:
    """A mechanism given by a function from a summary to probabilities, and the epsilon that it claims."""

    def __init__(self, epsilon, probabilities):
        self.epsilon, self.probabilities = epsilon, probabilities

    def law(self, summary):
        return law_of(self.probabilities(summary))

    def privacy(self):
        return Privacy(self.epsilon)


# Broken variants, each beside the right one under the same check.


def laplace(rate):
    def probabilities(value):
        p = np.exp(-rate * np.abs(np.arange(-150, 150) - value))
        return p / p.sum()

    return probabilities


def softmax(factor):
    def probabilities(scores):
        p = np.exp(factor * np.asarray(scores, float))
        return p / p.sum()

    return probabilities


def halts(first, query):
    return lambda scores: oracles.above_threshold_law(scores, 0, (first, query))


def threshold_noise_only(rate):
    def probabilities(scores):
        law = np.zeros(len(scores) + 1)
        for k, p in zip(*oracles.pmf(rate, "exponential"), strict=True):
            law[np.argmax([*(q >= k for q in scores), True])] += p
        return law

    return probabilities


def printed_query(first, query):
    """Index of the only query and its noisy value, up to 200, or never."""

    def probabilities(scores):
        k, p = oracles.pmf(first, "exponential")
        noisy = np.arange(-10, 200) - scores[0]
        value = np.where(noisy >= 0, -np.expm1(-query) * np.exp(-query * np.maximum(noisy, 0)), 0.0)
        printed = value * [p[k <= v].sum() for v in np.arange(-10, 200)]
        return np.append(printed, 1.0 - printed.sum())

    return probabilities


SPREAD = ((0.0,) * 32, (-1.0, *(1.0,) * 31))
BUDGETS = oracles.budgets(1.0)


@pytest.mark.parametrize(
    ("broken", "right", "pair", "loss"),
    [
        (laplace(2.0), laplace(1.0), (0, 1), 2.0),
        (softmax(1.0), softmax(0.5), SPREAD, np.log((1 + 31 * np.exp(2.0)) / 32)),
        (threshold_noise_only(1.0), halts(*BUDGETS), ((0, 1), (1, 0)), np.inf),
        (printed_query(*BUDGETS), halts(*BUDGETS), ((0,), (1,)), np.inf),
        (halts(1.0, 1.0), halts(*BUDGETS), ((0, 0), (1, -1)), 3.0),
    ],
    ids=[
        "half the scale",
        "factor two forgotten",
        "noise on the threshold only",
        "noisy query printed",
        "budget thrice",
    ],
)
def test_broken_mechanism_is_refuted_and_the_right_one_is_not(broken, right, pair, loss):
    assert audit.exact(ByHand(1.0, broken), *pair) == pytest.approx(loss, abs=1e-9)
    assert audit.exact(ByHand(1.0, right), *pair) <= 1.0 + 1e-12


# Brute force over all events.


def random_laws(seed, zeros):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(8, 0.5), 2)
    if zeros:
        p[[0, 1]], q[[1, 2]] = 0.0, 0.0
    return p / p.sum(), q / q.sum()


def events(p, q):
    chosen = np.array(list(itertools.product((0.0, 1.0), repeat=len(p))))
    return chosen @ p, chosen @ q


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_profile_is_the_largest_excess_over_all_events(seed, zeros):
    p, q = random_laws(seed, zeros)
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
    a, b = events(p, q)
    factor = np.exp(epsilons)[:, None]
    truth = np.maximum(np.max(a - factor * b, axis=1), np.max(b - factor * a, axis=1))
    np.testing.assert_allclose(audit.privacy_profile(law_of(p), law_of(q), epsilons), truth, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.2])
def test_loss_is_the_largest_over_all_events(delta, zeros):
    for seed in range(3):
        p, q = random_laws(seed, zeros)
        record = ByHand(1.0, lambda law: law)
        record.privacy = lambda: Privacy(1.0, delta)
        a, b = events(p, q)
        with np.errstate(divide="ignore", invalid="ignore"):
            losses = [np.log((x - delta) / y)[(x - delta > 1e-15)] for x, y in ((a, b), (b, a))]
        assert audit.exact(record, p, q) == pytest.approx(max(np.max(np.concatenate(losses)), 0.0), rel=1e-12)
        assert audit.exact(record, p, q) == audit.exact(record, q, p)


def test_impossible_outcomes():
    first, second = law_of([0.5, 0.5, 0.0, 0.0]), law_of([0.25, 0.5, 0.25, 0.0])
    assert float(first.max_divergence(second)) == pytest.approx(np.log(2.0), rel=1e-15)
    assert float(second.max_divergence(first)) == np.inf
    assert float(second.hockey_stick(first, 50.0)) == 0.25
    assert float(first.max_divergence(first)) == 0.0


def lattice_masses(record, value, reach):
    law = record.law(value)
    return np.exp(np.asarray(jax.vmap(law.log_prob)(np.arange(-reach, reach + 1, dtype=np.float32))))


@pytest.mark.parametrize("pair", [(0, 1), (0, 3), (2, -1)])
def test_profile_of_the_laplace_mechanism_is_a_sum_over_the_lattice(pair):
    record, epsilons = jaxdp.Laplace(3.0, 1.5), np.array([0.0, 0.3, 0.5, 0.9, 1.4, 1.6])
    p, q = (lattice_masses(record, value, 200) for value in pair)
    assert abs(p.sum() - 1.0) < 1e-12
    truth = [max(np.maximum(a - np.exp(e) * b, 0.0).sum() for a, b in ((p, q), (q, p))) for e in epsilons]
    profile = audit.privacy_profile(record.law(pair[0]), record.law(pair[1]), epsilons)
    np.testing.assert_allclose(profile, truth, atol=1e-13)
    assert audit.exact(record, *pair) == pytest.approx(0.5 * abs(pair[0] - pair[1]), rel=1e-9)


def test_profile_of_a_vector_is_a_sum_over_the_product_lattice():
    record, epsilons = jaxdp.Laplace(3.0, 3.0), np.array([0.0, 0.5, 1.5, 2.9, 3.1])
    first, second = np.array([0, 0], np.int32), np.array([1, -2], np.int32)
    p, q = (np.outer(*(lattice_masses(record, int(x), 60) for x in value)) for value in (first, second))
    truth = [max(np.maximum(a - np.exp(e) * b, 0.0).sum() for a, b in ((p, q), (q, p))) for e in epsilons]
    np.testing.assert_allclose(
        audit.privacy_profile(record.law(first), record.law(second), epsilons), truth, atol=1e-12
    )
    assert audit.exact(record, first, second) == pytest.approx(3.0, rel=1e-9)


# Every mechanism.


@pytest.mark.parametrize("label", EXAMPLES)
def test_profile_of_each_mechanism_falls_to_delta_at_epsilon(label):
    record = EXAMPLES[label]
    laws = [record.law(summary) for summary in record.worst_case()]
    profile = audit.privacy_profile(*laws, np.linspace(0.0, 1.25, 6))
    assert np.all(np.diff(profile) <= 0.0) and 1e-3 < profile[0] < 1.0
    beyond = audit.privacy_profile(*laws, [1.0 + 1e-9, 2.0])
    assert np.all(beyond <= record.privacy().delta)


def test_epsilons_must_be_a_vector():
    law = law_of([0.5, 0.5])
    with pytest.raises(ValueError, match="epsilons must have shape"):
        audit.privacy_profile(law, law, 1.0)
