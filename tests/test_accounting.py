"""Tight composition: against the closed form, dp-accounting, enumeration, and the composed exact laws."""

import itertools
import math

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from marks import first

import jaxdp
from jaxdp import Ledger, Privacy, _accounting, composed_loss
from jaxdp._accounting import epsilon_of_rho
from jaxdp._mechanism import examples

pytestmark = pytest.mark.slow


def closed_form(epsilon, k, i):
    """Kairouz, Oh, Viswanath (2015), theorem 3.3: ((k - 2i) epsilon, delta) for k releases."""
    terms = (math.comb(k, j) * (math.exp((k - j) * epsilon) - math.exp((k - 2 * i + j) * epsilon)) for j in range(i))
    return math.fsum(terms) / (1.0 + math.exp(epsilon)) ** k


def optimal_delta(epsilon, k, total):
    """The same between those points: j wrong answers of k have the loss (k - 2j) epsilon."""
    excess = (-math.expm1(total - (k - 2 * j) * epsilon) for j in range(k + 1))
    terms = (math.comb(k, j) * math.exp((k - j) * epsilon) * max(0.0, x) for j, x in enumerate(excess))
    return math.fsum(terms) / (1.0 + math.exp(epsilon)) ** k


def hockey_stick(epsilons, epsilon):
    """The optimal delta for releases of given epsilons, by enumeration of all answers."""
    delta = 0.0
    for signs in itertools.product((1, -1), repeat=len(epsilons)):
        loss = np.dot(signs, epsilons)
        mass = np.prod(1.0 / (1.0 + np.exp(-np.multiply(signs, epsilons))))
        delta += mass * max(0.0, 1.0 - math.exp(epsilon - loss))
    return delta


def spent(*parts):
    """A ledger of (guarantee, times) pairs."""
    ledger = Ledger.of(**{f"part{i}": part for i, (part, _) in enumerate(parts)})
    for i, (_, times) in enumerate(parts):
        ledger = ledger.spend(f"part{i}", times)
    return ledger


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("k", [1, 2, 3, 10, 101])
def test_equal_parts_against_the_closed_form(epsilon, k):
    ledger = spent((Privacy(epsilon), k))
    for i in range(1, k // 2 + 1):
        delta, want = closed_form(epsilon, k, i), (k - 2 * i) * epsilon
        assert optimal_delta(epsilon, k, want) == pytest.approx(delta, rel=1e-12)
        # In delta, since the curve can be flat.
        assert optimal_delta(epsilon, k, ledger.get_epsilon(delta)) == pytest.approx(delta, rel=2e-9, abs=1e-13)
        if want > 0.0 and delta < 0.9:
            assert ledger.get_epsilon(0.999 * delta) > want > ledger.get_epsilon(1.001 * delta)
    for delta in (1e-10, 1e-6, 1e-2):
        got = ledger.get_epsilon(delta)
        assert optimal_delta(epsilon, k, got) == pytest.approx(delta, rel=2e-9, abs=1e-12) or got <= 1e-14
        assert optimal_delta(epsilon, k, got) <= delta
    assert ledger.get_epsilon(0.0) == float(ledger.privacy().epsilon)


def test_different_parts_against_enumeration():
    rng = np.random.default_rng(1)
    for _ in range(10):
        numbers = rng.uniform(0.05, 1.5, 3)
        times = rng.integers(1, 4, 3)
        ledger = spent(*((Privacy(e), t) for e, t in zip(numbers.tolist(), times.tolist(), strict=True)))
        epsilons = np.repeat(numbers, times)
        for delta in (1e-1, 1e-3, 1e-6):
            got = ledger.get_epsilon(delta)
            assert hockey_stick(epsilons, got * (1.0 + 1e-7) + 1e-9) <= delta
            assert hockey_stick(epsilons, got * (1.0 - 1e-6)) > delta or got == 0.0


def test_many_different_parts_are_rounded_up():
    numbers = np.linspace(0.05, 0.2, 12)
    ledger, exact = spent(*((Privacy(e), 40) for e in numbers.tolist())), spent((Privacy(0.2), 480))
    got = ledger.get_epsilon(1e-6)
    # Heterogeneous parts lie between the best and the worst of them, and a normal law of losses says where.
    mean, spread = 40 * np.sum(numbers * np.tanh(numbers / 2)), math.sqrt(40 * np.sum(numbers**2))
    cdf = scipy.stats.norm.cdf

    def excess(e):
        lost = math.exp(e - mean + spread**2 / 2) * cdf((mean - e) / spread - spread)
        return cdf((mean - e) / spread) - lost - 1e-6

    normal = scipy.optimize.brentq(excess, mean, mean + 9 * spread)
    assert got == pytest.approx(normal, rel=0.01) and got < exact.get_epsilon(1e-6) < 480 * 0.2


@pytest.mark.parametrize(("cells", "cut"), [(16, 1e-7), (64, 1e-7), (512, 1e-7), (8192, 0.5)])
def test_bounds_hold_on_any_grid_and_with_any_cut(cells, cut, monkeypatch):
    # On a coarse grid a rounding in the wrong direction shows, as does lost mass where much is cut.
    monkeypatch.setattr(_accounting, "_CELLS", cells)
    monkeypatch.setattr(_accounting, "_CUT", cut)
    monkeypatch.setattr(_accounting, "_EXACT", 8)
    numbers, times, rng = [0.3, 0.45, 0.7], [3, 2, 3], np.random.default_rng(2)
    ledger, epsilons = spent(*((Privacy(e), t) for e, t in zip(numbers, times, strict=True))), np.repeat(numbers, times)
    law, other = random_laws(rng, 8, 0.5)
    both = power(law, 5), power(other, 5)
    for delta in (1e-4, 1e-2):
        got = ledger.get_epsilon(delta)
        assert hockey_stick(epsilons, got) <= delta and hockey_stick(epsilons, 0.8 * got) > delta
        want = float(np.maximum(both[0].loss_at(both[1], delta), both[1].loss_at(both[0], delta)))
        loss = composed_loss(law, other, 5, delta)
        assert loss.lower <= want <= loss.upper
        assert 1e-4 < loss.upper - loss.lower < 30.0 / cells + 0.5 * cut


@pytest.mark.parametrize(("parts", "delta"), [([(0.1, 100)], 1e-6), ([(0.5, 12), (0.2, 30), (1.0, 2)], 1e-8)])
def test_dp_accounting_agrees(parts, delta):
    distributions = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    total = None
    for epsilon, times in parts:
        one = distributions.from_randomized_response(2.0 / (1.0 + math.exp(epsilon)), 2)
        one = one.self_compose(times)
        total = one if total is None else total.compose(one)
    theirs = total.get_epsilon_for_delta(delta)
    ours = spent(*((Privacy(epsilon), times) for epsilon, times in parts)).get_epsilon(delta)
    # Theirs is rounded up, on a grid of 1e-4.
    assert theirs - 1e-2 <= ours <= theirs + 1e-6
    assert ours < 0.95 * sum(epsilon * times for epsilon, times in parts)


def test_deltas_of_the_parts_are_taken_off():
    ledger = spent((Privacy(0.1, 1e-8), 50), (Privacy(0.1), 50))
    assert ledger.get_epsilon(1.5e-6) == pytest.approx(spent((Privacy(0.1), 100)).get_epsilon(1e-6), rel=1e-9)
    assert ledger.get_epsilon(5e-7) == float(ledger.privacy().epsilon)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("rho", [1e-3, 0.1, 2.0])
def test_zcdp_converts_to_a_little_more_than_the_gaussian_loses(rho, delta):
    got = epsilon_of_rho(rho, delta)
    shift = math.sqrt(2.0 * rho)  # the Gaussian mechanism with this shift is rho-zCDP, tight
    normal = scipy.stats.norm
    true = normal.sf(got / shift - shift / 2.0) - math.exp(got) * normal.sf(got / shift + shift / 2.0)
    assert true <= delta and got < rho + 2.0 * math.sqrt(-rho * math.log(delta))
    less = 0.7 * got
    assert normal.sf(less / shift - shift / 2.0) - math.exp(less) * normal.sf(less / shift + shift / 2.0) > delta


def test_a_known_rho_helps():
    flat, known = spent((Privacy(0.1), 100)), spent((jaxdp.ExponentialMechanism(1.0, 0.1), 100))
    assert known.get_epsilon(1e-6) == pytest.approx(epsilon_of_rho(100 * 0.1**2 / 8, 1e-6))
    assert known.get_epsilon(1e-6) < flat.get_epsilon(1e-6) < 10.0


@pytest.mark.parametrize(
    "mechanism",
    [
        jaxdp.AsymmetricSensitivity(0.1),
        jaxdp.Laplace(1.0, 0.1),
        jaxdp.ExponentialMechanism(1.0, 0.1),
        jaxdp.InverseSensitivity(0.1),
        jaxdp.ProposeTestRelease(0.1, 1e-9),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_a_hundred_evaluations_lie_between_the_composed_laws_and_the_sum(mechanism):
    laws = [mechanism.law(summary) for summary in mechanism.worst_case()]
    loss = composed_loss(*laws, 100, 1e-6)
    tight = spent((mechanism, 100)).get_epsilon(1e-6)
    assert 0.5 < loss.lower <= loss.upper <= loss.lower + 0.05
    assert loss.lower <= tight < 100 * 0.1
    # Half of the claim is refuted where the worst case is close to it.
    if isinstance(mechanism, jaxdp.Laplace):
        assert loss.lower > 0.95 * tight
        half = composed_loss(*[jaxdp.Laplace(1.0, 0.2).law(v) for v in (0, 1)], 100, 1e-6)
        assert half.lower > tight


@pytest.mark.parametrize("label", ["ExponentialMechanism", "Laplace", "AboveThreshold", "ProposeTestRelease"])
def test_one_release_is_the_law_itself(label):
    mechanism = dict(examples())[label]
    law, other = (mechanism.law(summary) for summary in mechanism.worst_case())
    for delta in (0.0, 1e-12, 1e-3, 0.2):
        got = composed_loss(law, other, 1, delta)
        want = float(np.maximum(law.loss_at(other, delta), other.loss_at(law, delta)))
        assert got.lower == pytest.approx(want, rel=1e-6, abs=1e-7)
        assert got.upper == pytest.approx(want, rel=1e-6, abs=1e-7)


def random_laws(rng, n, scale):
    p = rng.exponential(size=n)
    q = p * np.exp(scale * rng.uniform(-1.0, 1.0, n))
    return [jaxdp.DiscreteLaw(np.log(x / x.sum()), np.arange(n)) for x in (p, q)]


def power(law, times):
    log_p = np.asarray(law.log_p)
    for _ in range(times - 1):
        log_p = np.add.outer(log_p, np.asarray(law.log_p)).ravel()
    return jaxdp.DiscreteLaw(log_p, np.arange(len(log_p)))


@pytest.mark.parametrize(("n", "times"), first(2, [(2, 12), (400, 2), (5, 5), (60, 3)]))
def test_few_releases_against_the_product_law(n, times):
    rng = np.random.default_rng(n)
    for delta in (0.0, 1e-6, 1e-2):
        law, other = random_laws(rng, n, 0.4)
        both = power(law, times), power(other, times)
        want = float(np.maximum(both[0].loss_at(both[1], delta), both[1].loss_at(both[0], delta)))
        got = composed_loss(law, other, times, delta)
        assert got.lower * (1.0 - 1e-7) - 1e-12 <= want <= got.upper * (1.0 + 1e-7) + 1e-12
        assert got.upper - got.lower <= 2e-3 * times * 0.8


def test_impossible_outcomes_add_up():
    law = jaxdp.DiscreteLaw(np.log([0.01, 0.99]), np.arange(2))
    with np.errstate(divide="ignore"):
        other = jaxdp.DiscreteLaw(np.log([0.0, 1.0]), np.arange(2))
    mass = 1.0 - 0.99**10
    assert composed_loss(law, other, 10, 0.999 * mass) == (math.inf, math.inf)
    loss = composed_loss(law, other, 10, 1.001 * mass)
    assert 0.0 <= loss.lower <= loss.upper <= 10 * -math.log(0.99) + 1e-9
    assert composed_loss(law, law, 10, 0.0) == (0.0, 0.0)


def test_laplace_against_dp_accounting():
    distributions = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    theirs = distributions.from_laplace_mechanism(10.0).self_compose(100).get_epsilon_for_delta(1e-6)
    mechanism = jaxdp.Laplace(1.0, 0.1)
    loss = composed_loss(mechanism.law(0.0), mechanism.law(1.0), 100, 1e-6)
    # A fine lattice loses what the continuous law loses.
    assert loss.lower == pytest.approx(theirs, abs=0.03) and loss.upper == pytest.approx(theirs, abs=0.03)


def test_bad_arguments():
    law = jaxdp.ExponentialMechanism(1.0, 1.0).law(np.arange(2))
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=r"^times must"):
            composed_loss(law, law, bad, 1e-6)
    for bad in (-0.1, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"^delta must"):
            composed_loss(law, law, 2, bad)
    with pytest.raises(ValueError, match=r"^other must"):
        composed_loss(law, jaxdp.Laplace(1.0, 1.0).law(0), 2, 1e-6)
    with pytest.raises(ValueError, match=r"^law must be a DiscreteLaw"):
        composed_loss(0.5, law, 2, 1e-6)
    with pytest.raises(ValueError, match=r"on the host"):
        jax.jit(lambda scores: composed_loss(*[jaxdp.ExponentialMechanism(1.0, 1.0).law(scores)] * 2, 2).lower)(
            np.arange(2.0, dtype=np.float32)
        )
    with pytest.raises(ValueError, match=r"no NaN"):
        bad = jaxdp.DiscreteLaw(np.full(2, np.nan), np.arange(2))
        composed_loss(bad, bad, 2, 1e-6)
