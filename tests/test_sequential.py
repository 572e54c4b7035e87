"""Sequential audits: the bets against a claim, predictions from the past alone, reports, arguments."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit_mechanisms import LOG3, geometric_half, masked, respond, uniform

from jaxdp.audit import _betting, _predictor
from jaxdp.audit._outputs import Layout
from jaxdp.audit.sequential import SequentialReport, sequential
from jaxdp.audit.targets import Batched, Foreign

pytestmark = pytest.mark.slow

# -- bets ---------------------------------------------------------------------------------------------------


def hockey_stick(p, q, epsilon):
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


def random_bets(rng, p, q, epsilon, delta):
    """Expectation of one factor under laws p, q, for random stakes of the form that audits use."""
    odds = rng.normal(scale=3.0, size=len(p))
    k, fraction = rng.uniform(-0.5, 0.5), rng.uniform(0.1, 1.0)
    caps = tuple(rng.uniform(0.0, 1.0, 2) * math.exp(-epsilon) * np.array([1.0 + k, 1.0 - k]))
    a, b = _betting.growth(odds, np.float64(epsilon), k, caps, fraction)
    fee = 2.0 * np.log1p(0.5 * delta * fraction * sum(caps))
    return float(p @ np.exp(a)) * float(q @ np.exp(b)) * math.exp(-fee)


@pytest.mark.parametrize("delta", [False, True])
def test_no_private_mechanism_lets_the_wealth_grow(delta):
    """Every bet's expectation is at most one if the claim is right, and some bets win if it is wrong."""
    rng, right, wrong = np.random.default_rng(1), [], []
    for _ in range(3000):
        p, q = rng.dirichlet(np.full(6, 3.0), 2)
        loss = float(np.max(np.abs(np.log(p / q))))
        epsilon = rng.uniform(0.1, 1.0) * loss if delta else loss
        exact = max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon)) if delta else 0.0
        right.append(random_bets(rng, p, q, epsilon, exact))
        wrong.append(random_bets(rng, p, q, 0.5 * epsilon, 0.2 * exact))
    assert max(right) <= 1.0 + 1e-12
    assert max(right) > 0.98, "the bound is nearly attained"
    assert max(wrong) > 1.03, "negative control: half the loss is refuted on average"


def test_the_true_odds_let_the_log_wealth_grow_fastest():
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(5), 2)
    odds, epsilon = np.log(p / q), np.float64(0.3)

    def expected(odds, k=0.05):
        a, b = _betting.growth(odds, epsilon, k)
        return p @ a + q @ b

    assert expected(odds) > 0.05
    for _ in range(50):
        assert expected(odds) >= expected(odds + rng.normal(scale=0.3, size=5)) - 1e-12


def test_wealth_is_the_same_in_one_piece_and_block_by_block():
    rng, epsilons = np.random.default_rng(3), _betting.grid(0.5)
    predictions = np.sort(rng.integers(-9000, 9000, (2, 300)), axis=0)[::-1]
    game = _betting.Runs(epsilons, 0.0)
    paths = [game.update(predictions[:, start:stop]) for start, stop in _betting.blocks(300)]
    whole = _betting.run_bets(predictions, epsilons, 0.0)
    np.testing.assert_array_equal(np.concatenate(paths), whole[1:])
    np.testing.assert_array_equal(_betting.run_bets(predictions[:, :57], epsilons, 0.0), whole[:58])
    assert whole[0].max() == whole[0].min() == 0.0 and whole[-1, 0] > whole[-1, 24]


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_bets_of_a_call_do_not_look_at_its_counts(delta):
    epsilons = _betting.grid(0.4)
    first = np.array([[600, 200, 200], [400, 200, 400]])
    growths = []
    for factor in (0, 1, 2, 5):
        bets = _betting.StageBets(0, 3, epsilons, delta)
        assert np.all(bets.update(first) == 0.0), "nothing is known in the first call"
        growths.append(bets.update(factor * np.array([[61, 20, 19], [39, 21, 40]])))
    assert growths[1][24] == pytest.approx(growths[2][24] / 2) == pytest.approx(growths[3][24] / 5)
    assert np.all(growths[0] == 0.0) and growths[1][0] > 0.5


# -- predictions --------------------------------------------------------------------------------------------


def outputs(seed, pairs, shift):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4, (2, pairs, 3)).astype(np.int32)
    codes[0, :, 1] += shift
    return [[side, np.zeros((pairs, 9), np.int32), side] for side in codes]


def test_predictions_depend_on_earlier_pairs_only():
    layout = Layout.of(jax.ShapeDtypeStruct((3,), jnp.int32))
    drawn, other = outputs(0, 120, 1), outputs(1, 120, -2)
    width = layout.statistics_count
    for each in (*drawn, *other):
        each[1] = np.zeros((120, width), np.int32)
    for start, stop in [block for block in _betting.blocks(120) if block[0] in (0, 18, 72)]:
        mixed = [
            [np.concatenate([mine[:stop], theirs[stop:]]) for mine, theirs in zip(*pair, strict=True)]
            for pair in zip(drawn, other, strict=True)
        ]
        found = []
        for each in (drawn, mixed):
            predictor = _predictor.Predictor(layout, 0.3)
            predictor.extend(each)
            found.append([predictor.predict(*block) for block in _betting.blocks(120) if block[1] <= stop][-1])
        np.testing.assert_array_equal(*found)
        # An output's own side cannot matter: both sides swapped in the block swap their predictions.
        swapped = [[array.copy() for array in side] for side in drawn]
        for one, two in zip(*swapped, strict=True):
            one[start:stop], two[start:stop] = two[start:stop].copy(), one[start:stop].copy()
        predictor = _predictor.Predictor(layout, 0.3)
        predictor.extend(swapped)
        again = [predictor.predict(*block) for block in _betting.blocks(120) if block[1] <= stop][-1]
        np.testing.assert_allclose(again, found[0][::-1], atol=1e-12)
    assert np.any(found[0] != 0.0)


# -- audits -------------------------------------------------------------------------------------------------

BITS = np.zeros(4, bool)


def parity(key, bit):
    """Two fair bits of which only the parity depends on the input."""
    one, other = jax.random.split(key)
    first = uniform(one) < 0.5
    return jnp.stack([first, first ^ respond(other, bit)])


def mean_with_true_count(key, database):
    total, count = database
    one, other = -jnp.log1p(-uniform(key, (2,)))
    return total / count + np.float32(10.0) * (one - other) / count


def leaky(key, bit):
    """Randomised response that shows the bit in plain sight with probability 1/10: (log 3, 1/10)-DP."""
    coin, noise = jax.random.split(key)
    return jnp.where(uniform(coin) < 0.1, 10 + bit.astype(jnp.int32), respond(noise, bit).astype(jnp.int32))


ONE, TWO = (np.float32(0), np.float32(1)), (np.float32(1), np.float32(2))


@pytest.mark.parametrize(
    "run, summary, neighbour, claim, most",
    [
        pytest.param(respond, False, True, dict(epsilon=0.2), 400, id="bit"),
        pytest.param(parity, False, True, dict(epsilon=0.2), 1500, id="parity"),
        pytest.param(masked, False, True, dict(epsilon=0.2), 500, id="NaN"),
        pytest.param(mean_with_true_count, ONE, TWO, dict(epsilon=0.1), 1000, id="true count"),
        pytest.param(leaky, False, True, dict(epsilon=LOG3, delta=0.01), 3000, id="delta"),
        pytest.param(Batched(lambda key, x, n: x + uniform(key, (n,))), *np.float32([0, 1]), dict(epsilon=4.0), 2000,
                     id="batched"),
        pytest.param(Foreign(lambda rng, x: x + rng.integers(2), seeded=True), 0, 1, dict(epsilon=0.5), 200,
                     id="foreign"),
    ],
)  # fmt: skip
def test_wrong_claims_are_refuted_early(key, run, summary, neighbour, claim, most):
    report = sequential(key, run, summary, neighbour, confidence=0.99, max_samples=16_384, **claim)
    assert report.refuted and report.runs <= most and report.stopped == "refuted"
    assert report.epsilon_lower >= claim["epsilon"] and report.p_value <= 0.01 * (1 + 1e-9)
    assert report.verdict.startswith("refuted at confidence 0.99: certified epsilon >= ")


@pytest.mark.parametrize(
    "run, claim", [(respond, dict(epsilon=LOG3)), (leaky, dict(epsilon=LOG3, delta=0.1)), (parity, dict(epsilon=LOG3))]
)
def test_right_claims_are_not_refuted(key, run, claim):
    report = sequential(key, run, False, True, max_samples=2**12, confidence=0.999999, **claim)
    assert not report.refuted and report.stopped == "max_samples" and report.runs == 2**12
    assert report.verdict.startswith("not refuted: certified epsilon >= ") and "passed" not in str(report)


def test_a_score_needs_no_learning(key):
    def score(output):
        return jnp.where(output, -1.0, 1.0).astype(jnp.float32) * np.float32(LOG3)

    learned = sequential(key, respond, False, True, epsilon=0.8)
    scored = sequential(key, respond, False, True, epsilon=0.8, score=score)
    assert scored.refuted and scored.runs < learned.runs and set(scored.predictions[0]) == {4500, -4500}
    wrong = sequential(key, respond, False, True, epsilon=0.8, score=lambda y: -score(y), max_samples=2048)
    assert not wrong.refuted, "a wrong score costs power only"


@pytest.fixture(scope="module")
def counted():
    """An audit that ends in the second part, where events are counted in blocks."""
    return sequential(jax.random.key(5), geometric_half, 0, 1, epsilon=0.485, max_samples=2**21)


def test_long_audits_count_an_event(counted):
    assert counted.refuted and len(counted.predictions[0]) == 8192 and counted.stages
    assert 0.485 <= counted.epsilon_lower <= 0.5 and counted.event.startswith("output")
    pairs = 8192 + sum(stage.pilot + sum(sum(call[0]) for call in stage.calls) for stage in counted.stages)
    assert counted.runs == 2 * pairs <= 2**21
    assert all(sum(one) == sum(other) for stage in counted.stages for one, other in stage.calls)


def test_counts_do_not_depend_on_devices(counted):
    again = sequential(
        jax.random.key(5), geometric_half, 0, 1, epsilon=0.485, max_samples=2**21, devices=jax.devices()[:1]
    )
    assert again.stages == counted.stages and again.predictions == counted.predictions


def test_hopeless_audits_stop_early(key):
    shares = []
    report = sequential(key, geometric_half, 0, 1, epsilon=0.6, max_samples=2**24, progress=shares.append)
    assert report.stopped == "futile" and report.runs < 2**21 and not report.refuted
    assert shares[-1] == 1.0 and np.all(np.diff(shares) >= 0) and "more runs were unlikely" in report.verdict
    assert 0.4 < report.epsilon_lower < 0.5, "certified on the way"


# -- the report ---------------------------------------------------------------------------------------------


def test_the_report_is_certified_again_from_its_json(counted):
    text = counted.to_json()
    again = SequentialReport.from_json(text)
    assert again == counted and again.verdict == counted.verdict and again.epsilon_lower == counted.epsilon_lower
    found = json.loads(text)
    # What is derived is not believed.
    found |= {"epsilon_lower": 9.0, "refuted": True, "stages": [], "predictions": [[0] * 50] * 2}
    forged = SequentialReport.from_json(json.dumps(found))
    assert forged.epsilon_lower == 0.0 and not forged.refuted and forged.runs == 100 and forged.p_value == 1.0
    with pytest.raises(ValueError, match="lacks stages"):
        SequentialReport.from_json(json.dumps({name: value for name, value in found.items() if name != "stages"}))
    with pytest.raises(ValueError, match="malformed"):
        SequentialReport.from_json(json.dumps(found | {"stages": [{}]}))


def test_the_path(counted):
    runs, wealth, certified = counted.path
    assert runs[0] == 0 and runs[-1] == counted.runs and np.all(np.diff(runs) > 0)
    assert np.all(np.diff(certified) >= 0) and certified[0] == 0.0 and certified[-1] == counted.epsilon_lower
    assert wealth[0] == 0.0 and np.max(wealth) >= math.log(20.0) > np.max(wealth[:-1])


def test_the_report_in_words(counted):
    text = str(counted)
    assert "stopped: refuted" in text and "epsilon 0.485" in text and f"{counted.runs:,}" in text


# -- arguments ----------------------------------------------------------------------------------------------


class Record:
    def sample(self, key, bit):
        return respond(key, bit)

    def privacy(self):
        self.epsilon, self.delta = 2.0, 0.25
        return self


def test_the_claim_is_that_of_the_mechanism_unless_given(key):
    report = sequential(key, Record(), False, True, max_samples=100)
    assert (report.epsilon, report.delta, report.mechanism, report.runs) == (2.0, 0.25, "Record", 100)
    report = sequential(key, respond, False, True, max_samples=101, epsilon=0)
    assert report.epsilon == 0.0 and report.runs <= 100


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(key=jax.random.PRNGKey(0)), "key must be a typed key"),
        (dict(mechanism=3.0), "mechanism must have a method sample.* 3.0"),
        (dict(epsilon=None), "epsilon must be given .*None"),
        (dict(epsilon=-1.0), "epsilon must be nonnegative and finite, got -1.0"),
        (dict(delta=1.0), r"delta must be in \[0, 1\), got 1.0"),
        (dict(max_samples=99), "max_samples must be an integer .*got 99"),
        (dict(max_samples=1e6), "max_samples must be an integer .*got 1000000.0"),
        (dict(max_samples=True), "max_samples must be an integer .*got True"),
        (dict(confidence=1.0), "confidence must lie strictly between 0 and 1, got 1.0"),
        (dict(score=1), "score must be a function of one output, got 1"),
        (dict(progress=1), "progress must be a function of one number, got 1"),
        (dict(resolution=0.0), r"resolution must lie in \[1e-30, 1e30\], got 0.0"),
        (dict(devices=[]), r"devices must be distinct JAX devices, at least one, got \[\]"),
        (dict(mechanism=lambda key, x: x, neighbour=np.zeros(2)), "outputs of one structure on summary and neighbour"),
    ],
)
def test_bad_arguments_are_named(key, options, message):
    arguments = dict(key=key, mechanism=respond, summary=False, neighbour=True, epsilon=1.0, max_samples=1000)
    with pytest.raises(ValueError, match=message):
        sequential(**{**arguments, **options})
