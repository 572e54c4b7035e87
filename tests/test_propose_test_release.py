"""ProposeTestRelease by exact enumeration: the source's example, its threshold, proposals of 0, MixedLaw."""

import decimal
import functools
import itertools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import ALPHA, quick_jit

import jaxdp
from jaxdp import MixedLaw, ProposeTestRelease, Release, Stability, audit
from jaxdp import _lattice_law as closed_form

GRID = np.array([0.0, 25.0, 50.0, 75.0, 100.0], np.float32)


def least_gap(x):
    return jnp.min(jnp.diff(jnp.sort(x)))


def summary(value, distance, proposal=1.0):
    """A Stability of few dtypes, since each one is another program."""
    value = value if hasattr(value, "dtype") else np.float32(value)
    return Stability(value, np.int32(distance), np.float64(proposal))


# Slow truth: the two discrete Laplace laws as arrays.


@functools.cache
def noise(rate):
    """Values and probabilities of Z on [-2^D, 2^D - 1], 2^D the first power of two with rate 2^D >= 46."""
    n = 2 ** max(0, math.ceil(math.log2(46.0 / rate)))
    z = np.arange(-n, n)
    p = np.exp(-rate * np.abs(z))
    return z, p / p.sum()


def outcome_law(value, distance, *, m, rate, step, value_rate, test_noise=True):
    """{outcome: probability}, None for a refusal."""
    z, p = noise(rate)
    accept = p[distance + z >= m].sum() if test_noise else float(distance >= m)
    k, q = noise(value_rate)
    law = dict(zip((math.floor(value / step) + k).tolist(), (accept * q).tolist(), strict=True))
    law[None] = p[distance + z < m].sum() if test_noise else 1.0 - accept
    return law


def hockey_stick(p, q, epsilon):
    return sum(max(0.0, mass - math.exp(epsilon) * q.get(outcome, 0.0)) for outcome, mass in p.items())


# The source's example.


@functools.cache
def example(bound):
    """{data set: (value, distance)} over all 125, and the pairs of neighbours."""
    points = list(itertools.product(GRID.tolist(), repeat=3))
    summaries = {}
    for x in points:
        made = jaxdp.candidates_stability(least_gap, np.array(x, np.float32), GRID, bound)
        summaries[x] = float(made.value), int(made.distance)
    pairs = [(x, (*x[:i], v, *x[i + 1 :])) for x in points for i in range(3) for v in GRID.tolist() if v != x[i]]
    assert len(points) == 125 and len(pairs) == 125 * 12
    return summaries, pairs


def worst_delta(summaries, pairs, epsilon, **how):
    """The largest divergence over all neighbours; each pair is there in both directions."""
    laws = {summary: outcome_law(*summary, **how) for summary in set(summaries.values())}
    kinds = {(summaries[x], summaries[y]) for x, y in pairs}
    return max(hockey_stick(laws[one], laws[other], epsilon) for one, other in kinds)


def test_local_sensitivity_in_the_example_of_the_source():
    bounds = [jaxdp.bounds.from_candidates(least_gap, np.float32(x), GRID, radius=2) for x in ([0, 0, 0], [0, 0, 100])]
    assert float(bounds[0].local_sensitivity()[0]) == 0.0
    assert float(bounds[1].local_sensitivity()[0]) >= 50.0
    distances = {x: d for x, (_, d) in example(25.0)[0].items()}
    assert distances[0.0, 0.0, 0.0] == 1 and distances[0.0, 0.0, 100.0] == 0
    assert set(example(50.0)[0].values()) == {(0.0, 4), (25.0, 4), (50.0, 4)}  # no data set moves by more than 50


@pytest.mark.parametrize(
    ("epsilon", "delta", "bound", "m", "refuted"),
    [(4.0, 0.01, 25.0, 3, "no noise"), (4.0, 0.01, 10.0, 3, "no logarithm"), (1.5, 0.3, 10.0, 2, None)],
)
def test_the_guarantee_on_all_neighbours_of_the_example(epsilon, delta, bound, m, refuted):
    mechanism = ProposeTestRelease(epsilon, delta, granularity=2.0)
    summaries, pairs = example(bound)
    rate = epsilon / 2.0
    how = dict(m=m, rate=rate, step=2.0, value_rate=rate / (math.ceil(bound / 2.0) + 1))
    claimed = mechanism.privacy()
    assert mechanism.threshold() == m and claimed.epsilon == epsilon and claimed.delta == delta
    assert worst_delta(summaries, pairs, epsilon, **how) <= claimed.delta + 1e-12
    # The mechanism's own laws are these.
    for value, distance in sorted(set(summaries.values())):
        law = mechanism.law(summary(value, distance, bound))
        for outcome, p in outcome_law(value, distance, **how).items():
            row = Release(np.float32(np.nan if outcome is None else 2.0 * outcome), outcome is not None)
            if outcome is None or abs(outcome) < 12:
                assert float(law.log_prob(row)) == pytest.approx(math.log(p), rel=1e-11)
    # A test without noise and a threshold without the logarithm do not keep it.
    broken = {"no noise": how | dict(test_noise=False), "no logarithm": how | dict(m=math.ceil(1.0 / rate))}
    if refuted:
        assert worst_delta(summaries, pairs, epsilon, **broken[refuted]) > 4.0 * claimed.delta


# The threshold.


def upper_tail(epsilon, m):
    """P(Z >= m) to 50 digits."""
    with decimal.localcontext(prec=50):
        q = (-decimal.Decimal(epsilon)).exp()
        return q**m / (1 + q)


def test_the_threshold_is_the_smallest_that_keeps_delta():
    rng = np.random.default_rng(0)
    for _ in range(200):
        epsilon, delta = float(rng.uniform(0.01, 32.0)), float(10.0 ** rng.uniform(-300.0, -0.01))
        m = int(ProposeTestRelease(epsilon, delta).threshold())
        assert upper_tail(epsilon / 2.0, m) <= delta
        assert m == 0 or upper_tail(epsilon / 2.0, m - 1) > delta * (1.0 - 1e-10)
        # A delta that is such a probability, rounded: rounded up at most, never down.
        steps = int(rng.integers(0, 12))
        delta = float(upper_tail(epsilon / 2.0, steps))
        m = int(ProposeTestRelease(epsilon, delta).threshold())
        assert m in (steps, steps + 1) and upper_tail(epsilon / 2.0, m) <= delta


def test_the_threshold_may_exceed_32_bits_and_is_infinite_without_delta():
    m = ProposeTestRelease(2e-7, 1e-300).threshold()
    assert m > 2.0**32 and m == np.floor(m)
    assert ProposeTestRelease(1.0, 0.0).threshold() == np.inf
    assert ProposeTestRelease(1.0, 0.01).threshold(0.0) < ProposeTestRelease(1.0, 0.01).threshold(0.5)


def test_without_delta_everything_is_refused():
    mechanism = ProposeTestRelease(1.0, 0.0)
    law = mechanism.law(summary(5.0, 2**31 - 1))
    assert law.acceptance == 0.0 and float(law.log_refuse) == 0.0 and law.expected_error(3.0) == 3.0
    assert audit.exact(mechanism, *mechanism.worst_case()) == 0.0 and mechanism.privacy().delta < 1e-19
    for draw in (mechanism.sample(jax.random.key(0), summary(5.0, 2**31 - 1)), law.sample(jax.random.key(1))):
        assert not draw.accepted and np.isnan(draw.value)


def test_parameters_may_be_traced():
    loss = quick_jit(lambda e, d: (ProposeTestRelease(e, d).worst_case(), ProposeTestRelease(e, d).privacy()))
    (one, other), privacy = loss(np.float32(1.0), np.float32(0.01))
    mechanism = ProposeTestRelease(1.0, 0.01)
    assert (float(one.distance), float(other.distance)) == (mechanism.threshold() - 1.0, mechanism.threshold())
    assert privacy.delta == np.float32(0.01) and privacy.epsilon == 1.0
    # Without delta, the ends of the noise are left.
    assert loss(np.float32(1.0), np.float32(0.0))[1].delta == pytest.approx(math.expm1(1.0) * math.exp(-46), rel=1e-5)


# A proposal of 0.


def test_a_proposal_of_zero_gives_the_test_the_whole_budget():
    mechanism = ProposeTestRelease(1.0, 1e-4)
    m = int(mechanism.threshold(0.0))
    assert m == math.ceil(math.log(1e4 / (1.0 + math.exp(-1.0))))
    summaries = [summary(np.int32(7), d, 0.0) for d in (m - 1, m)]
    assert audit.exact(mechanism, *summaries) == pytest.approx(1.0, rel=1e-3)
    laws = [mechanism.law(each) for each in summaries]
    for law, distance in zip(laws, (m - 1, m), strict=True):
        z, p = noise(1.0)
        assert float(law.acceptance) == pytest.approx(p[z + distance >= m].sum(), rel=1e-12)
        assert law.law.expected_error() == 0.0 and law.law.quantile(1e-13) == law.law.quantile(1.0 - 1e-13) == 7
        assert float(law.log_prob(Release(np.int32(7), True))) == float(law.log_accept)
        assert float(law.expectation(lambda release: jnp.where(release.accepted, release.value, 0.0))) == pytest.approx(
            7.0 * float(law.acceptance)
        )
    # Far values: only below distance 1.
    far = [mechanism.law(summary(np.int32(value), 0, 0.0)) for value in (7, 1)]
    assert 0.0 < far[0].hockey_stick(far[1], 0.0) <= 1e-4 and far[0].loss_at(far[1], 1e-4) == 0.0


def test_a_constant_value_is_released_as_it_is():
    keys = jax.random.split(jax.random.key(1), 2000)
    whole = quick_jit(jax.vmap(ProposeTestRelease(1.0, 0.01).sample, (0, None)))(keys, summary(np.int32(-3), 4, 0.0))
    assert whole.value.dtype == np.int32 and 0.2 < np.mean(whole.accepted) < 0.8
    np.testing.assert_array_equal(whole.value, np.where(whole.accepted, -3, np.iinfo(np.int32).min))
    fine = ProposeTestRelease(1.0, 0.01, granularity=0.25)
    real = quick_jit(jax.vmap(fine.sample, (0, None)))(keys, summary(2.6, 4, 0.0))
    np.testing.assert_array_equal(real.value, np.where(real.accepted, np.float32(2.5), np.nan))
    np.testing.assert_array_equal(real.accepted, whole.accepted)


def test_a_constant_float_needs_a_granularity():
    mechanism, constant = ProposeTestRelease(1.0, 0.01), summary(2.5, 50, 0.0)
    with pytest.raises(ValueError, match=r"^granularity must be given where the proposal is 0"):
        mechanism.law(constant)
    release = quick_jit(mechanism.sample)(jax.random.key(0), constant)
    assert np.isnan(release.value) and not release.accepted


def test_the_private_mode_end_to_end():
    counts = np.array([12, 3, 480, 97])
    mechanism = ProposeTestRelease(1.0, 1e-6)
    release = lambda key, counts: mechanism.sample(key, jaxdp.mode_stability(counts))  # noqa: E731
    release = quick_jit(jax.vmap(release, (0, None)))
    keys = jax.random.split(jax.random.key(2), 200)
    values, accepted = release(keys, counts)
    assert np.all(accepted) and np.all(values == 2)
    assert not np.any(release(keys, np.array([5, 5, 4, 5])).accepted)


# Values, distances, arguments.


def test_samplers_of_integers_have_the_law():
    mechanism, near = ProposeTestRelease(2.0, 0.05), summary(np.int32(40), 1, 2.0)
    keys = jax.random.split(jax.random.key(3), 100_000)
    m, outcomes = int(mechanism.threshold()), np.arange(20, 61)

    def cells(law):
        inside = [law.get(int(k), 0.0) for k in outcomes]
        return np.array([law[None], *inside, 1.0 - law[None] - sum(inside)])

    law = cells(outcome_law(40, 1, m=m, rate=1.0, step=1, value_rate=0.5))
    wrong = [
        cells(outcome_law(40, 1, m=m, rate=1.1, step=1, value_rate=0.5)),
        cells(outcome_law(40, 1, m=m, rate=1.0, step=1, value_rate=0.55)),
    ]
    for sample in (lambda key: mechanism.sample(key, near), mechanism.law(near).sample):
        values, accepted = map(np.asarray, quick_jit(jax.vmap(sample))(keys))
        assert np.all((values == np.iinfo(np.int32).min) == ~accepted)
        inside = [np.sum(accepted & (values == k)) for k in outcomes]
        counts = np.array([np.sum(~accepted), *inside, np.sum(accepted) - sum(inside)])
        assert oracles.p_value(counts, law) > ALPHA
        assert all(oracles.p_value(counts, other) < ALPHA for other in wrong)


def test_distances_are_floored_and_bad_ones_count_as_zero():
    mechanism = ProposeTestRelease(1.0, 0.01)
    acceptance = [float(mechanism.law(summary(0.0, d)).acceptance) for d in range(4)]
    assert np.all(np.diff(acceptance) > 0.0)
    for distance, same in ((2.999, 2), (np.float16(1.5), 1), (-1, 0), (-np.inf, 0), (np.nan, 0), (-0.5, 0)):
        assert mechanism.law(Stability(0.0, distance, 1.0)).acceptance == acceptance[same]
    for far in (np.inf, 2**70, 1e300, np.uint64(2**64 - 1)):
        assert float(mechanism.law(Stability(0.0, far, 1.0)).log_refuse) < -30.0


def test_values_are_clamped_and_the_dtype_is_kept(key):
    mechanism = ProposeTestRelease(1.0, 0.01)
    for value in (np.nan, -np.inf, np.inf, 3.0e38):
        release = mechanism.sample(key, summary(value, 500))
        assert release.accepted and np.isfinite(release.value)
    for dtype in (jnp.float16, jnp.bfloat16, np.float32, np.int8, np.int32):
        release = jax.eval_shape(mechanism.sample, key, Stability(np.zeros((), dtype), np.int32(5), 1.0))
        assert release.value.dtype == dtype and release.accepted.dtype == np.bool_


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, 1e-310])
def test_bad_proposals(bad, key):
    mechanism = ProposeTestRelease(1.0, 0.01)
    with pytest.raises(ValueError, match=r"^proposal must be"):
        mechanism.sample(key, Stability(1.0, 100, bad))
    with pytest.raises(ValueError, match=r"^proposal must be"):
        mechanism.threshold(bad)


@pytest.mark.parametrize("value", [np.int32(1), np.float32(1.0)])
def test_bad_traced_proposals_fail_closed(value, key):
    program = quick_jit(ProposeTestRelease(1.0, 0.01).sample)
    assert program(key, Stability(value, np.int32(100), np.float32(1.0))).accepted
    for bad in (-1.0, np.nan, np.inf):
        release = program(key, Stability(value, np.int32(100), np.float32(bad)))
        assert not release.accepted
        assert np.isnan(release.value) if value.dtype == np.float32 else release.value == np.iinfo(np.int32).min


def test_bad_summaries(key):
    mechanism = ProposeTestRelease(1.0, 0.01)
    good = dict(value=1.0, distance=3, proposal=1.0)
    for name in good:
        for bad in (np.zeros(2), "a", True, 1j, None):
            with pytest.raises(ValueError, match=rf"^{name} must"):
                mechanism.sample(key, Stability(**good | {name: bad}))
    with pytest.raises(ValueError, match=r"^epsilon must be at least"):
        mechanism.law(Stability(np.int32(1), 3, 1e9))
    assert np.isnan(
        quick_jit(lambda b: mechanism.sample(key, Stability(jnp.float32(1.0), 9, b)))(np.float32(np.nan)).value
    )


# MixedLaw.


def mixed(accept, location, rate=0.5, granularity=0.25):
    with np.errstate(divide="ignore"):
        logs = np.log(np.float64(accept)), np.log1p(-np.float64(accept))
    return MixedLaw(*logs, jaxdp.LatticeLaw(np.float64(location), rate, granularity, np.dtype(np.float32)))


def as_dict(law):
    k, q = noise(float(law.law.rate))
    accept = math.exp(law.log_accept)
    return dict(zip((int(law.law.location) + k).tolist(), (accept * q).tolist(), strict=True)) | {
        None: math.exp(law.log_refuse)
    }


ACCEPTS = (0.0, 1e-9, 0.1, 0.5, 0.9, 1.0)


def test_divergences_are_those_of_the_best_event():
    for p, q, shift, rate in itertools.product(ACCEPTS, ACCEPTS, (-3, 0, 7), (0.5, 50.0)):
        law, other = mixed(p, 10, rate), mixed(q, 10 + shift, rate)
        one, two = as_dict(law), as_dict(other)
        for epsilon in (0.0, 0.3, 2.0, 5.0):
            expected = hockey_stick(one, two, epsilon)
            assert float(law.hockey_stick(other, epsilon)) == pytest.approx(expected, rel=1e-10, abs=1e-14)
        for delta in (1e-6, 0.05, 0.5):
            loss = float(law.loss_at(other, delta))
            if loss < np.inf:
                assert hockey_stick(one, two, loss + 1e-9) <= delta + 1e-12
                assert loss == 0.0 or hockey_stick(one, two, loss - 1e-9) >= delta - 1e-12
            else:
                assert hockey_stick(one, two, 500.0) > delta
        divergence = float(law.max_divergence(other))
        ratios = [math.log(mass / two[y]) if two.get(y) else np.inf for y, mass in one.items() if mass]
        assert divergence == pytest.approx(max(ratios), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("shift", [-300, -40, -3, -1, 0, 1, 2, 40, 300])
def test_lattice_hockey_stick_at_any_epsilon(shift):
    rate = 0.7
    z, p = noise(rate)
    one, two = dict(zip(z.tolist(), p.tolist(), strict=True)), dict(zip((z - shift).tolist(), p.tolist(), strict=True))
    edge = rate * abs(shift)
    for epsilon in (-800.0, -edge - 0.1, -edge, -edge + 0.1, -1.0, -0.1, 0.0, 0.1, edge, edge + 0.1, 600.0):
        got = float(closed_form.hockey_stick(float(shift), rate, epsilon))
        assert got == pytest.approx(hockey_stick(one, two, epsilon), rel=1e-12, abs=1e-15), epsilon
    assert float(closed_form.hockey_stick(float(shift), rate, -np.inf)) == 1.0
    assert float(closed_form.hockey_stick(float(shift), rate, np.inf)) < (1e-15 if abs(shift) < 10 else 1.0 + 1e-15)


def test_expectations_and_errors():
    law = mixed(0.3, 8)
    rows = as_dict(law)
    expected = sum(p * (9.0 if y is None else abs(0.25 * y - 2.0)) for y, p in rows.items())
    fn = lambda release: jnp.where(release.accepted, jnp.abs(release.value - 2.0), 9.0)  # noqa: E731
    np.testing.assert_allclose(law.expectation(fn), expected, rtol=1e-12)
    np.testing.assert_allclose(law.expected_error(refusal=9.0), expected, rtol=1e-12)
    assert np.isnan(law.expectation(lambda release: release.value))
    assert mixed(0.0, 8).expected_error(2.0) == 2.0 and mixed(1.0, 8).expected_error(np.inf) < np.inf
    np.testing.assert_allclose(law.acceptance, 0.3, rtol=1e-15)
    # A value cannot come with a refusal, nor NaN with an acceptance.
    for value, accepted in ((2.0, False), (np.nan, True), (2.1, True)):
        assert law.log_prob(Release(np.float32(value), accepted)) == -np.inf


def test_both_sides_keep_their_relative_precision():
    mechanism = ProposeTestRelease(2.0, 1e-9)
    m = int(mechanism.threshold())
    for distance in (0, 1, m - 1, m, m + 1, m + 30):
        law = mechanism.law(summary(0.0, distance))
        q, gap = math.exp(-1.0), m - distance
        accept = q**gap / (1 + q) if gap >= 1 else 1.0 - q ** (1 - gap) / (1 + q)
        refuse = q ** (1 - gap) / (1 + q) if gap <= 0 else 1.0 - q**gap / (1 + q)
        np.testing.assert_allclose([law.log_accept, law.log_refuse], np.log([accept, refuse]), rtol=1e-12, atol=1e-17)


def test_laws_compare_with_laws_of_the_same_mechanism_only():
    law = mixed(0.3, 8)
    for other in (law.law, None, mixed(0.3, 8, rate=0.6), mixed(0.3, 8, granularity=0.5)):
        with pytest.raises(ValueError, match="other must be"):
            law.loss_at(other)
    twin = pickle.loads(pickle.dumps(ProposeTestRelease(1.0, 0.1).law(Stability(1.0, 2, 1.0))))
    assert twin.law.rate.dtype == twin.log_accept.dtype == np.float64


def test_a_mixed_law_of_nan_fails_closed(key):
    law = quick_jit(ProposeTestRelease(1.0, 0.01).law)(Stability(np.float32(1.0), 100, np.float32(np.nan)))
    release = law.sample(key)
    assert np.isnan(release.value) and not release.accepted
    divergences = quick_jit(lambda law: (law.hockey_stick(law, 1.0), law.loss_at(law, 0.1), law.loss_at(law)))(law)
    assert np.isnan([law.acceptance, law.expected_error(1.0), *map(float, divergences)]).all()
    assert np.isnan(law.log_prob(Release(np.float32(1.0), True)))
