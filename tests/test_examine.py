"""Claims of every kind, and the whole audit of one."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.audit import AuditReport, Claim, Foreign, examine

pytestmark = pytest.mark.slow

EPSILONS = np.linspace(0.0, 4.0, 17)
PURE = Claim.pure(1.0, neighbours="replace-one")
APPROXIMATE = Claim.approximate(1.0, 0.05, neighbours="replace-one")
GAUSSIAN = Claim.gaussian(1.0, neighbours="replace-one")


def laplace(key, value):
    return value + jax.random.laplace(key, (), jnp.float32)


def normal(key, value):
    return value + jax.random.normal(key, (), jnp.float32)


def noisy_sum(key, records):
    return jnp.sum(records) + jax.random.laplace(key, (), jnp.float32)


# -- claims -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [PURE, APPROXIMATE, GAUSSIAN], ids=lambda claim: claim.kind)
def test_profile_and_trade_off_curve_are_dual(claim):
    """delta(e) = max over a of 1 - f(a) - e^e a, by a fine grid; and the f-DP claim with that curve is the same."""
    levels = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 200_001)])
    gains = 1.0 - claim.trade_off(levels)[:, None] - np.exp(EPSILONS)[None, :] * levels[:, None]
    np.testing.assert_allclose(claim.profile(EPSILONS), np.maximum(gains.max(axis=0), 0.0), atol=2e-5)
    same = Claim.f_dp(claim.trade_off, neighbours="replace-one")
    np.testing.assert_allclose(same.profile(EPSILONS), claim.profile(EPSILONS), atol=1e-9)


def test_known_values_of_claims():
    assert PURE.profile(1.0) == 0.0 and math.isclose(PURE.profile(0.0), math.tanh(0.5))
    assert APPROXIMATE.profile(1.0) == pytest.approx(0.05)
    # Dong, Roth and Su: mu = 1 is (1, 0.1269)-DP.
    assert GAUSSIAN.profile(1.0) == pytest.approx(0.126936737)
    assert Claim.gaussian(0.0, neighbours="x").profile(0.5) == 0.0
    assert Claim.of(jaxdp.AboveThreshold(0.0, 1.0, 2.0)).epsilon == 2.0


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Claim.pure(-1.0, neighbours="x"), "epsilon must lie in .*got -1.0"),
        (lambda: Claim.approximate(1.0, 1.0, neighbours="x"), "delta must lie in .*got 1.0"),
        (lambda: Claim.gaussian(float("nan"), neighbours="x"), "mu must lie in .*got nan"),
        (lambda: Claim.pure(1.0, neighbours=""), "neighbours must say in words .*got ''"),
        (lambda: Claim.f_dp(lambda a: 1.0 - 0.5 * a, neighbours="x"), "curve must be convex"),
        (lambda: Claim.f_dp(lambda a: 1.0 - 2.0 * a, neighbours="x"), "curve must be convex"),
        (lambda: Claim.f_dp(lambda a: np.where(a < 0.5, 0.4, 0.0), neighbours="x"), "curve must be convex"),
        (lambda: Claim.f_dp(lambda a: max(0.0, 1.0 - a), neighbours="x"), "curve must map an array .*ValueError"),
        (lambda: Claim.f_dp(lambda a: 0.0, neighbours="x"), "one of its shape"),
        (lambda: Claim.f_dp(3.0, neighbours="x"), "curve must be a function .*got 3.0"),
    ],
)
def test_bad_claims(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_counts_against_a_trade_off_curve():
    """10,000 runs of an event with p = 0.69 and q = 0.31, the best of a Gaussian pair with mu = 1."""
    report = AuditReport("", 3.0, 0.0, 0.95, 10_000, "", "", 6915, 10_000, 3085, 10_000)
    assert not report.refuted and not GAUSSIAN.refuted_by(report)
    assert not Claim.gaussian(0.97, neighbours="x").refuted_by(report)
    assert Claim.gaussian(0.9, neighbours="x").refuted_by(report)
    assert not Claim.pure(0.9, neighbours="x").refuted_by(report)
    assert Claim.pure(0.7, neighbours="x").refuted_by(report)


# -- examinations -------------------------------------------------------------------------------------------

PAIRS = [(np.float32([0, 1, 1]), np.float32([1, 1, 1])), (np.float32([0, 1, 1]), np.float32([2, 1, 1]))]


def test_the_best_pair_is_found_and_certified(key):
    shares = []
    found = examine(key, noisy_sum, PURE, PAIRS, num_samples=100_000, sensitivity=1.0, progress=shares.append)
    assert found.refuted and found.report.refuted and found.pair == 1
    assert 0.9 < found.predicted[0] < 1.0 and 1.8 < found.predicted[1] < 2.0
    assert [finding.check for finding in found.findings] == ["sensitivity"]
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    text = str(found)
    assert "pair       1" in text and "replace-one" in text and "hits" in text
    document = json.loads(found.to_json())
    assert document["refuted"] and AuditReport.from_json(json.dumps(document["report"])) == found.report
    assert found.verdict.startswith("refuted at confidence 0.95") and "passed" not in text.lower()


def test_a_sound_claim_is_not_refuted_and_what_would_have_been_caught_is_said(key):
    found = examine(key, laplace, PURE, [(0.0, 1.0), (1.0, 0.0)], num_samples=100_000)
    assert not found.refuted and "with 90 % power" in found.verdict and not found.findings


def test_exact_losses_decide_where_laws_are_known(key):
    sound = examine(key, jaxdp.Laplace(1.0, 1.0), num_samples=50_000)
    assert not sound.refuted and sound.verdict.startswith("exactly verified for these inputs, others may lose more")
    assert sound.exact[0] == pytest.approx(1.0, abs=1e-3) and not sound.predicted
    pairs = [(0.0, 1.0), (0.0, 2.0)]
    # The lattice ends: only a delta makes the loss finite.
    claim = Claim.approximate(1.5, 1e-12, neighbours="a value in [0, 2]")
    broken = examine(key, jaxdp.Laplace(1.0, 1.0), claim, pairs, num_samples=1000, sensitivity=9.0)
    assert broken.refuted and broken.pair == 1 and broken.exact[1] == pytest.approx(2.0, abs=1e-3)


@pytest.mark.thorough
def test_vectors_are_audited_by_their_exact_log_ratio(key):
    found = examine(key, jaxdp.Laplace(1.0, 1.0), pairs=[(np.zeros(4), np.full(4, 0.25))], num_samples=50_000)
    assert "score" in found.report.event and not found.refuted and found.report.epsilon_lower > 0.5


def test_gaussian_claims(key):
    sound = examine(key, normal, GAUSSIAN, [(0.0, 1.0)], num_samples=200_000)
    assert not sound.refuted and sound.report.delta == pytest.approx(0.126936737)
    loose = Claim.gaussian(0.95, neighbours="a value in [0, 1]")
    assert examine(key, normal, loose, [(0.0, 1.0)], num_samples=200_000).refuted


def rare_lie(key, bit):
    return bit ^ (jax.random.uniform(key, (), jnp.float32) < np.float32(np.exp(-12.0)))


def scaled_afterwards(key, value):
    return np.float32(2) * (value + jax.random.laplace(key, (), jnp.float32))


@pytest.mark.parametrize(
    "sound, epsilon, pair",
    [(rare_lie, 12.0, (False, True)), (scaled_afterwards, 1.0, (np.float32(0), np.float32(1)))],
)
def test_what_a_screen_sees_refutes_nothing(key, sound, epsilon, pair):
    claim = Claim.pure(epsilon, neighbours="x")
    found = examine(key, sound, claim, [pair], num_samples=10_000, sensitivity=1.0)
    assert found.findings and not found.refuted


def test_no_noise_at_all_is_refuted(key):
    found = examine(key, lambda key, value: jnp.float32(2) * value, PURE, [(0.0, 0.0), (0.0, 1.0)], num_samples=1000)
    assert found.report.refuted and found.findings[0].check == "noise"


def test_python_callables(key):
    target = Foreign(lambda generator, value, n: value + generator.laplace(size=n), seeded=True, batched=True)
    assert examine(key, target, Claim.pure(0.8, neighbours="x"), [(0.0, 1.0)], num_samples=200_000).refuted


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((laplace,), "claim must be given .*None"),
        ((laplace, 1.0), "claim must be a Claim.*got 1.0"),
        ((laplace, PURE), "pairs must be given .*None"),
        ((laplace, PURE, [(0.0,)]), "pairs must be a sequence of .summary, neighbour."),
        ((laplace, PURE, []), "pairs must be a sequence"),
    ],
)
def test_bad_arguments(key, arguments, message):
    with pytest.raises(ValueError, match=message):
        examine(key, *arguments)
