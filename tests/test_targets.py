"""Batched samplers, Python callables, and the screen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audit_mechanisms import LOG3, counts, respond, uniform

import jaxdp
from jaxdp.audit import Batched, Foreign, monte_carlo, screen

pytestmark = pytest.mark.slow

RUNS = 40_000


def respond_many(key, bit, n):
    return bit ^ (uniform(key, (n,)) < 0.25)


def respond_slowly(generator, bit):
    return bit ^ (generator.random() < 0.25)


def respond_in_numpy(generator, bit, n):
    return bit ^ (generator.random(n) < 0.25)


RESPONSES = [
    pytest.param(Batched(respond_many), id="batched"),
    pytest.param(Foreign(respond_slowly, seeded=True), id="python"),
    pytest.param(Foreign(respond_in_numpy, seeded=True, batched=True), id="numpy"),
]


@pytest.mark.parametrize("target", RESPONSES)
def test_every_kind_of_target_is_audited_alike(key, target):
    report = monte_carlo(key, target, False, True, epsilon=0.9, num_samples=RUNS, confidence=0.999)
    assert report.refuted and 0.95 < report.epsilon_lower < LOG3
    assert report.event in ("output in {False}", "output in {True}") and report.mechanism.startswith("respond")
    assert report.runs + report.other_runs == 2 * round(0.8 * RUNS)
    again = monte_carlo(key, target, False, True, epsilon=0.9, num_samples=RUNS, confidence=0.999)
    assert counts(again) == counts(report)
    other = monte_carlo(jax.random.fold_in(key, 1), target, False, True, epsilon=0.9, num_samples=RUNS)
    assert counts(other) != counts(report)


def test_a_batched_sampler_counts_the_runs_of_its_blocks(key):
    report = monte_carlo(key, Batched(respond_many), False, True, epsilon=0.9, num_samples=RUNS)
    forward = report.direction == "summary over neighbour"
    runs = (report.runs, report.other_runs) if forward else (report.other_runs, report.runs)
    wanted = report.event == "output in {True}"
    hits = []
    for side, bit in enumerate((False, True)):
        part = jax.random.fold_in(jax.random.fold_in(key, 3), side)
        blocks = [respond_many(jax.random.fold_in(part, block), bit, 2**14) for block in range(3)]
        hits.append(int(np.sum(np.concatenate(blocks)[: runs[side]] == wanted)))
    assert (report.hits, report.other_hits) == (tuple(hits) if forward else tuple(hits[::-1]))


def test_tagged_outputs_of_any_length(key):
    """Sparse vector in plain Python: texts, None, and a list that ends where the first query is above."""

    def above(generator, queries):
        threshold, found = generator.laplace(scale=2.0), []
        for query in queries:
            if query + generator.laplace(scale=4.0) >= threshold:
                return [*found, "above", query]
            found.append(None)
        return found

    def unprotected(generator, queries):
        return ["above" if query >= 1 else None for query in queries] + [generator.random()]

    zeros, ones = [0] * 4, [1] * 4
    report = monte_carlo(key, Foreign(above, seeded=True), zeros, ones, epsilon=1.0, num_samples=RUNS)
    # The value of the query is released with the answer: no claim is safe.
    assert report.refuted and "value" in report.event
    report = monte_carlo(key, Foreign(unprotected, seeded=True), zeros, ones, epsilon=1.0, num_samples=2000)
    assert report.refuted and report.other_hits == 0
    sound = monte_carlo(
        key, Foreign(lambda g, x: [None] * g.integers(0, 3), seeded=True), 0, 1, epsilon=0.1, num_samples=RUNS
    )
    assert not sound.refuted


def test_doubles_of_python_keep_their_last_bit(key):
    """A change in the last bit of a double is seen, whatever the mode of JAX."""

    def sample(generator, value, n):
        return np.full(n, 1.0) + value * (generator.random(n) < 0.5)

    target = Foreign(sample, seeded=True, batched=True)
    report = monte_carlo(key, target, 0.0, np.spacing(1.0), epsilon=1.0, num_samples=2000)
    assert report.refuted and report.event == "output > 1"


def raising(value):
    raise KeyError("income")


def late(generator, value):
    late.calls += 1
    return 0 if late.calls < 2000 else None


@pytest.mark.parametrize(
    "target, message",
    [
        (Foreign(raising), "the audited function raised KeyError: 'income'"),
        (Foreign(lambda value: object()), "must return numbers, texts, None and sequences of them, got <object"),
        (Foreign(lambda value, n: np.zeros(n - 1), batched=True), "leading axis of 256, got float64 of shape .255,"),
        (Foreign(lambda value, n: ["a"] * n, batched=True), "leading axis of 256, got "),
        (Foreign(late, seeded=True), "numbers of one shape first, and something else in a later run, got None"),
        (Batched(lambda key, value, n: jnp.zeros(n + 1)), r"leading axis of n, got \(4,\) in outputs"),
        (Batched(lambda key, value, n: jnp.zeros(())), r"leading axis of n, got \(\) in outputs"),
    ],
)
def test_what_cannot_be_audited_is_said_in_one_line(key, target, message):
    late.calls = 0
    with pytest.raises(ValueError, match=message) as caught:
        monte_carlo(key, target, 0.0, 1.0, epsilon=1.0, num_samples=5000)
    assert "\n" not in str(caught.value)


# -- scores -------------------------------------------------------------------------------------------------


def laplace_sum(key, values):
    """Twenty noisy numbers, each of which loses 1/20."""
    return values + np.float32(20.0) * jax.random.laplace(key, values.shape, jnp.float32)


@pytest.mark.thorough
def test_a_score_finds_what_no_coordinate_shows(key):
    zeros, ones = np.zeros(20, np.float32), np.ones(20, np.float32)

    def log_ratio(output):
        return jnp.sum(jnp.abs(output - ones) - jnp.abs(output)) / np.float32(20.0)

    known = monte_carlo(key, laplace_sum, zeros, ones, epsilon=1.0, num_samples=200_000, score=log_ratio)
    blind = monte_carlo(key, laplace_sum, zeros, ones, epsilon=1.0, num_samples=200_000)
    assert "score" in known.event and not known.refuted
    assert known.epsilon_lower > 0.35 and known.epsilon_lower > blind.epsilon_lower
    batched = Batched(lambda key, values, n: jax.vmap(laplace_sum, (0, None))(jax.random.split(key, n), values))
    options = dict(epsilon=1.0, num_samples=200_000, score=log_ratio)
    assert monte_carlo(key, batched, zeros, ones, **options).epsilon_lower > 0.35


def test_the_last_bits_of_a_score_are_no_event(key):
    """Twenty terms of +-1/20 that cancel leave a zero of either sign: no property of the law."""
    zeros, ones = np.zeros(20, np.float32), np.ones(20, np.float32)

    def log_ratio(output):
        return jnp.sum(jnp.clip((jnp.abs(output - ones) - jnp.abs(output)) / 20, -1 / 20, 1 / 20))

    for seed in range(3):
        each = jax.random.fold_in(key, seed)
        report = monte_carlo(each, laplace_sum, zeros, ones, epsilon=1.0, num_samples=100_000, score=log_ratio)
        assert not report.refuted


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(score=3.0), "score must be a function of one output, got 3.0"),
        (dict(score=lambda output: output), r"score must return one real number, got bool of shape \(\)"),
        (dict(resolution=0.0), "resolution must lie in .* got 0.0"),
        (dict(test="bootstrap"), "test must be one of clopper-pearson, label, got 'bootstrap'"),
        (dict(test="label", delta=0.1), "test 'label' needs a delta near 0 .* got delta 0.1"),
    ],
)
def test_bad_arguments_of_scores_and_tests(key, options, message):
    with pytest.raises(ValueError, match=message):
        monte_carlo(key, respond, False, True, epsilon=1.0, num_samples=1000, **options)


# -- the screen ---------------------------------------------------------------------------------------------


def twice(key, value):
    return value + jax.random.laplace(key, (), jnp.float32) + jax.random.normal(key, (), jnp.float32)


def noiseless(key, value):
    return value * np.float32(2)


def undefined(key, value):
    return jnp.where(value > 0.5, jnp.nan, jax.random.normal(key, (), jnp.float32))


def doubled(key, value):
    return np.float32(2) * value + jax.random.normal(key, (), jnp.float32)


@pytest.mark.parametrize(
    "target, check, text",
    [
        (twice, "keys", "a key is consumed twice"),
        (noiseless, "noise", "little or no noise"),
        (undefined, "finite", "0.00% of the outputs on the summary and 100.00% on the neighbour"),
        (doubled, "sensitivity", "differ by 2, the declared sensitivity is 1"),
        (Batched(lambda key, value, n: 2 * value + uniform(key, (n,))), "sensitivity", "differ by 2"),
        (jaxdp.Laplace(0.25, 1.0), "sensitivity", "differ by 1, the declared sensitivity is 0.25"),
        (Foreign(lambda value: value), "noise", "little or no noise"),
    ],
)
def test_the_screen_finds(key, target, check, text):
    declared = None if hasattr(target, "sensitivity") else 1.0
    found = {
        finding.check: finding for finding in screen(key, target, np.float32(0), np.float32(1), sensitivity=declared)
    }
    assert text in found[check].text


def test_the_screen_is_silent_on_sound_mechanisms(key):
    for target in (
        jaxdp.Laplace(1.0, 1.0),
        jaxdp.AboveThreshold(0.0, 1.0, 1.0),
        jaxdp.SparseVector(0.0, 1.0, 1.0, cutoff=2),
    ):
        assert screen(key, target, *target.worst_case()) == ()
    assert screen(key, Foreign(respond_slowly, seeded=True), False, True) == ()


def test_the_screen_says_what_does_not_vmap(key):
    def branching(key, value):
        return 1.0 if uniform(key) > 0.5 else 0.0

    with pytest.raises(ValueError, match=r"vmaps over keys \(TracerBoolConversionError"):
        screen(key, branching, 0.0, 1.0)
