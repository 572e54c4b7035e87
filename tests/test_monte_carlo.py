"""Monte-Carlo audits: validity on correct mechanisms, power on broken ones, exact counting, reproducibility."""

import doctest
import importlib
import json
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit_mechanisms import (
    CORRECT,
    LOG3,
    OTHER_SCORES,
    RUNS,
    SCORES,
    exponential,
    geometric,
    geometric_half,
    respond,
    uniform,
)
from marks import first

from jaxdp.audit import _blocks
from jaxdp.audit.monte_carlo import monte_carlo
from jaxdp.audit.report import AuditReport

pytestmark = pytest.mark.slow

# -- validity and power -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run, summary, neighbour, epsilon", first(2, CORRECT))
def test_correct_mechanisms_are_refuted_no_more_often_than_stated(key, run, summary, neighbour, epsilon):
    keys = jax.random.split(key, 200)
    certified = {0.9: [], 0.999: []}
    for each in keys:
        report = monte_carlo(each, run, summary, neighbour, epsilon=epsilon, num_samples=RUNS, confidence=0.9)
        certified[0.9].append(report.epsilon_lower)
        # The counts are certified again at the higher confidence.
        strict = AuditReport(**{**vars_of(report), "confidence": 0.999})
        certified[0.999].append(strict.epsilon_lower)
    # One thousand audits in all: at 0.999 more than 2 of 200 has probability 1e-3 at the nominal rate, and at 0.9
    # more than 40 has 1e-5; the exact rates are below the nominal ones.
    assert np.sum(np.array(certified[0.999]) > epsilon) <= 2
    assert np.sum(np.array(certified[0.9]) > epsilon) <= 40
    # Not valid by silence: the certificates come close to the truth.
    assert np.median(certified[0.9]) > 0.85 * epsilon


def vars_of(report):
    return {name: getattr(report, name) for name in report.__dataclass_fields__}


BROKEN = [
    pytest.param(geometric(1.0), 0, 1, 0.5, id="half the scale"),
    pytest.param(lambda key, bit: bit ^ (uniform(key) < 0.2), False, True, LOG3, id="too few lies"),
    pytest.param(
        lambda key, scores: exponential(key, 2 * scores), SCORES, OTHER_SCORES, 0.7, id="the factor 2 forgotten"
    ),
    pytest.param(lambda key, x: x + uniform(key), np.float32(0), np.float32(1), 5.0, id="bounded noise"),
]


@pytest.mark.parametrize("run, summary, neighbour, epsilon", BROKEN)
def test_broken_mechanisms_are_refuted(key, run, summary, neighbour, epsilon):
    report = monte_carlo(key, run, summary, neighbour, epsilon=epsilon, num_samples=200_000, confidence=0.999)
    assert report.refuted and report.verdict.startswith("refuted at confidence 0.999: certified epsilon >= ")


def leaky(key, bit):
    """Randomised response that shows the bit in plain sight with probability 1/50: (log 3, 1/50)-DP."""
    coin, noise = jax.random.split(key)
    return jnp.where(uniform(coin) < 0.02, 10 + bit.astype(jnp.int32), respond(noise, bit).astype(jnp.int32))


@pytest.mark.parametrize("delta, refuted", [(0.02, False), (0.015, True), (0.0, True)])
def test_approximate_claims(key, delta, refuted):
    report = monte_carlo(key, leaky, False, True, epsilon=LOG3, delta=delta, num_samples=200_000, confidence=0.999)
    assert report.refuted == refuted
    if refuted:
        assert report.delta_lower > delta and report.event in ("output >= 11", "output in {10}", "output in {11}")
    lower, estimate = report.profile([0.0, 0.5, LOG3, 5.0])
    exact = 0.02 + 0.98 * np.maximum(0.75 - 0.25 * np.exp([0.0, 0.5, LOG3, 5.0]), 0.0)
    assert np.all(lower <= exact) and np.all(lower > exact - 0.01)
    np.testing.assert_allclose(estimate, exact, atol=0.006)


def test_no_loss_certifies_nothing(key):
    report = monte_carlo(key, lambda key, x: uniform(key) + 0 * x, 0.0, 1.0, epsilon=0.0, num_samples=RUNS)
    assert report.epsilon_lower == 0.0 and report.verdict.startswith("not refuted: certified epsilon >= 0, claimed 0; ")


# -- events -------------------------------------------------------------------------------------------------


def sometimes(key, value):
    """The value, unless it is zero, with probability 1/100, else a uniform number."""
    coin, noise = uniform(key, (2,))
    return jnp.where((coin < 0.01) & (value != 0), value, noise)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_non_finite_outputs_are_an_event(key, odd):
    report = monte_carlo(key, sometimes, np.float32(0), np.float32(odd), epsilon=1.0, num_samples=200_000)
    assert report.event == f"output in {{{odd}}}" and report.direction == "neighbour over summary"
    assert report.other_hits == 0 and report.refuted
    assert report.epsilon_lower == report.cap > 6.0
    assert report.epsilon_estimate == math.inf


def test_nan_in_one_coordinate_of_a_vector(key):
    def sample(key, x):
        values = uniform(key, (40,))
        return {"tag": values[0] < 0.5, "values": values.at[33].set(jnp.where((values[1] < 0.02) & x, jnp.nan, 0.5))}

    report = monte_carlo(key, sample, False, True, epsilon=1.0, num_samples=50_000)
    assert report.refuted and report.other_hits == 0 and "nan" in report.event and "['values']" in report.event


def test_negative_zero_and_neighbouring_floats_are_told_apart(key):
    def coin(key, x):
        return jnp.where(uniform(key) < 0.5, x, np.float32(0.0))

    report = monte_carlo(key, coin, np.float32(-0.0), np.float32(0.0), epsilon=5.0, num_samples=20_000)
    assert report.event in ("output <= -0", "output in {-0}") and report.other_hits == 0
    tiny = np.nextafter(np.float32(0), np.float32(1))
    report = monte_carlo(key, coin, tiny, np.float32(0.0), epsilon=5.0, num_samples=20_000)
    assert report.event == "output > 0" and report.other_hits == 0


def test_an_atom_among_continuous_outputs(key):
    def sample(key, share):
        coin, noise = jax.random.split(key)
        return jnp.where(uniform(coin) < share, np.float32(0.3), uniform(noise))

    report = monte_carlo(key, sample, np.float32(0.3), np.float32(0.1), epsilon=1.0, num_samples=100_000)
    assert report.event == "output in {0.300000012}"
    assert 1.03 < report.epsilon_lower <= math.log(3.0)


def test_whole_outputs_are_events(key):
    """Neither coordinate, sum, maximum nor minimum of two bits depends on the input: only their parity does."""

    def sample(key, bit):
        one, other = jax.random.split(key)
        first = uniform(one) < 0.5
        return jnp.stack([first, first ^ respond(other, bit)])

    report = monte_carlo(key, sample, False, True, epsilon=1.0, num_samples=200_000)
    # Which of the events with ratio 3 wins is the pilot's luck; none of them looks at one coordinate.
    assert report.refuted and 1.0 < report.epsilon_lower <= LOG3
    assert report.event.startswith(("output in {(", "sum(output)"))


def test_64_bit_outputs_are_exact_in_either_mode(key):
    def sample(key, x):
        coin = uniform(key) < 0.5
        with jax.enable_x64(True):
            return jnp.where(coin, jnp.asarray(2**60, jnp.int64) + x.astype(jnp.int64), jnp.asarray(0, jnp.int64))

    report = monte_carlo(key, sample, np.int32(0), np.int32(1), epsilon=1.0, num_samples=20_000)
    assert report.event in (f"output >= {2**60 + 1}", f"output in {{{2**60}}}") and report.other_hits == 0


def test_events_are_read_off_the_report_and_counted_again(key):
    """The documented keys and the event in words give the very counts of the report, the masked block included."""
    report = monte_carlo(key, geometric_half, 0, 1, epsilon=1.0, num_samples=50_001)
    forward = report.direction == "summary over neighbour"
    runs = (report.runs, report.other_runs) if forward else (report.other_runs, report.runs)
    assert sum(runs) == 2 * (50_001 - 10_000) and all(each % _blocks.BLOCK for each in runs)
    word, relation, threshold = report.event.split()
    assert word == "output" and relation in ("<=", ">=")
    hits = []
    for side, value in enumerate((0, 1)):
        keys = [
            jax.random.split(
                jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, 3), side), block), _blocks.BLOCK
            )
            for block in range(3)
        ]
        outputs = jax.vmap(geometric_half, (0, None))(jnp.concatenate(keys)[: runs[side]], value)
        outputs = np.asarray(outputs)
        hits.append(int(np.sum(outputs <= int(threshold) if relation == "<=" else outputs >= int(threshold))))
    one, other = hits if forward else hits[::-1]
    assert (report.hits, report.other_hits) == (one, other)


# -- the report ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report():
    return monte_carlo(jax.random.key(3), respond, False, True, epsilon=2.0, num_samples=100_000)


def test_the_report_is_certified_again_from_its_json(report):
    text = report.to_json()
    found = json.loads(text)
    again = AuditReport.from_json(text)
    assert again == report and again.epsilon_lower == found["epsilon_lower"] and again.verdict == found["verdict"]
    # What is derived is not believed.
    forged = AuditReport.from_json(json.dumps({**found, "epsilon_lower": 9.0, "refuted": True}))
    assert forged.epsilon_lower == report.epsilon_lower and not forged.refuted
    with pytest.raises(ValueError, match="lacks hits"):
        AuditReport.from_json(json.dumps({name: value for name, value in found.items() if name != "hits"}))


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(hits=10**9), "hits must be whole numbers"),
        (dict(hits=1.5), "hits must be whole numbers"),
        (dict(other_hits="5"), "other_hits must be whole numbers"),
        (dict(confidence=2), "confidence must be a number"),
        (dict(confidence=0), "confidence must be a number"),
        (dict(delta=-1), "delta must be a number"),
        (dict(epsilon="x"), "epsilon must be a number"),
        (dict(test="foo"), "test must be one of"),
        (dict(nested_hits=[1]), "equally long"),
        (dict(nested_hits=3), "nested_hits must be a list"),
        (dict(runs=800_000), "fair coins"),
    ],
)
def test_files_that_no_audit_wrote_are_not_certified(report, change, message):
    with pytest.raises(ValueError, match=message):
        AuditReport.from_json(json.dumps({**json.loads(report.to_json()), **change}))


def test_the_report_in_words(report):
    text = str(report)
    assert "not refuted: certified epsilon >= 1.0" in text and ", claimed 2" in text
    assert "passed" not in text.lower()
    assert (
        "respond" in text and report.event in ("output in {True}", "output in {False}") and f"{report.runs:,}" in text
    )
    assert report.devices == f"{len(jax.devices())} {jax.devices()[0].platform}"
    assert report.samples_per_second > 0


def test_infinite_values_are_valid_json():
    report = AuditReport("", 1.0, 0.0, 0.95, 100, "", "", 10, 80, 0, 80)
    found = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert found["epsilon_estimate"] == "inf"
    assert found["epsilon_lower"] == found["cap"]


def test_the_profile_is_a_lower_bound_and_monotone(report):
    epsilons = np.linspace(0.0, 1.5, 16)
    lower, estimate = report.profile(epsilons)
    exact = np.maximum(0.75 - 0.25 * np.exp(epsilons), 0.0)
    assert np.all(lower <= exact) and np.all(lower > exact - 0.02) and np.all(lower <= estimate)
    assert np.all(np.diff(lower) <= 0)
    assert report.profile(0.0)[0].shape == ()
    assert np.all(report.profile([800.0, np.inf])[0] == 0.0)
    with pytest.raises(ValueError, match="epsilons must"):
        report.profile([-1.0])


# -- arguments ----------------------------------------------------------------------------------------------


class Record:
    def __init__(self, epsilon=1.0, delta=0.0):
        self.epsilon, self.delta = epsilon, delta

    def sample(self, key, bit):
        return respond(key, bit)

    def privacy(self):
        return self


def test_the_claim_is_that_of_the_mechanism_unless_given(key):
    record = Record(2.0, 0.25)
    report = monte_carlo(key, record, False, True, num_samples=1000)
    assert (report.epsilon, report.delta, report.mechanism) == (2.0, 0.25, "Record")
    report = monte_carlo(key, record, False, True, num_samples=1000, epsilon=np.float32(1.5), delta=0)
    assert (report.epsilon, report.delta) == (1.5, 0.0)
    assert monte_carlo(key, respond, False, True, num_samples=1000, epsilon=1).delta == 0.0


@pytest.mark.parametrize("num_samples", [100, 101, _blocks.BLOCK * 2, _blocks.BLOCK * 2 + 1])
@pytest.mark.parametrize("selection", [1e-6, 0.2, 0.999999])
def test_any_number_of_samples_is_honoured(key, num_samples, selection):
    report = monte_carlo(key, respond, False, True, epsilon=1.0, num_samples=num_samples, selection=selection)
    pilot = min(max(round(selection * num_samples), 2), num_samples - 1)
    runs = num_samples - pilot
    assert report.runs + report.other_runs == 2 * runs
    assert report.test == ("label" if runs >= 32 else "clopper-pearson")
    # Six standard deviations of 2 runs fair coins.
    assert abs(report.runs - runs) <= (6.0 * math.sqrt(runs / 2.0) if runs >= 32 else 0.0)
    assert report.hits <= report.nested_hits[-1] <= report.runs


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(key=jax.random.PRNGKey(0)), "key must be a typed key"),
        (dict(key=0), "key must be a typed key"),
        (dict(mechanism=3.0), "mechanism must have a method sample.* 3.0"),
        (dict(epsilon=None), "epsilon must be given .*None"),
        (dict(epsilon=-1.0), "epsilon must be nonnegative and finite, got -1.0"),
        (dict(epsilon=math.inf), "epsilon must be nonnegative and finite, got inf"),
        (dict(epsilon=math.nan), "epsilon must be a real number, got nan"),
        (dict(epsilon="1"), "epsilon must be a real number, got '1'"),
        (dict(delta=1.0), r"delta must be in \[0, 1\), got 1.0"),
        (dict(delta=-0.1), r"delta must be in \[0, 1\), got -0.1"),
        (dict(num_samples=99), "num_samples must be an integer .*got 99"),
        (dict(num_samples=1e6), "num_samples must be an integer .*got 1000000.0"),
        (dict(num_samples=True), "num_samples must be an integer .*got True"),
        (dict(num_samples=2**46), "num_samples must be an integer .*got 70368744177664"),
        (dict(confidence=1.0), "confidence must lie strictly between 0 and 1, got 1.0"),
        (dict(confidence=None), "confidence must be a real number, got None"),
        (dict(selection=0.0), "selection must lie strictly between 0 and 1, got 0.0"),
        (dict(devices=[]), r"devices must be distinct JAX devices, at least one, got \[\]"),
        (dict(devices=[1]), r"devices must be distinct JAX devices, at least one, got \[1\]"),
        (dict(progress=1), "progress must be a function of one number, got 1"),
        (
            dict(mechanism=lambda key, x: jax.random.key(0)),
            "mechanism must return booleans, integers or floats, got key",
        ),
        (dict(mechanism=lambda key, x: ()), r"mechanism must return at least one scalar, got \(\)"),
        (dict(mechanism=lambda key, x: x, neighbour=np.zeros(2)), "outputs of one structure on summary and neighbour"),
    ],
)
def test_bad_arguments_are_named(key, options, message):
    arguments = dict(key=key, mechanism=respond, summary=False, neighbour=True, epsilon=1.0, num_samples=1000)
    with pytest.raises(ValueError, match=message):
        monte_carlo(**{**arguments, **options})


def test_the_example_runs():
    # The package may export the function under the name of the module.
    importlib.import_module("jaxdp.audit.monte_carlo")
    outcome = doctest.testmod(sys.modules["jaxdp.audit.monte_carlo"])
    assert outcome.attempted > 0 and outcome.failed == 0
