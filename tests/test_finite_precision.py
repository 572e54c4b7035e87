"""Enumeration of all random words: the float32 Laplace sampler condemned, a discrete one exact, an oracle."""

import json
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.audit import _codes, _enumerate
from jaxdp.audit._words import used_bits, word_key
from jaxdp.audit.finite_precision import FinitePrecisionReport, finite_precision

pytestmark = pytest.mark.slow

SCALE = np.float32(10.0)


def laplace(key, x):
    return x + SCALE * jax.random.laplace(key, dtype=jnp.float32)


def word(key):
    return jax.random.bits(key, dtype=jnp.uint32)


def uniform(key):
    return jax.random.uniform(key, dtype=jnp.float32)


# -- the float32 Laplace sampler ----------------------------------------------------------------------------


def test_float32_laplace_is_condemned():
    seen = []
    inputs = np.float32(0.0), np.float32(1.0)
    report = finite_precision(laplace, *inputs, epsilon=0.1, granularities=(1.25, 0.15625), progress=seen.append)
    assert (report.width, report.bits) == (32, 23) and report.refuted and report.loss == math.inf
    bits, coarse, fine = report.resolutions
    # 0.905 with multiply-then-add, 0.907 with a fused multiply-add.
    assert bits.delta(0.1) == pytest.approx(0.905, abs=0.01) and bits.impossible == pytest.approx(0.905, abs=0.01)
    # Rounding helps, and does not mend it: the noise ends at 16.6 scales.
    assert 1e-6 < coarse.delta(0.1) < 1e-5 and 1e-5 < fine.delta(0.1) < 1e-4
    assert coarse.epsilon() == math.inf and coarse.epsilon(1e-5) == pytest.approx(0.1, abs=1e-3)
    assert seen == sorted(seen) and seen[-1] == 1.0
    # The same from the noise alone and IEEE arithmetic in NumPy, without the library's counting.
    words = np.arange(2**23, dtype=np.uint32) << np.uint32(9)
    noise = SCALE * np.asarray(jax.jit(jax.vmap(lambda w: jax.random.laplace(word_key(w), dtype=jnp.float32)))(words))
    one, other = np.sort(noise), np.sort(np.float32(1.0) + noise)
    there = other[np.minimum(np.searchsorted(other, one), len(other) - 1)] == one
    assert np.mean(~there) == pytest.approx(0.905, abs=1e-3)
    assert "refuted: exact epsilon inf, claimed 0.1; exact delta at the claimed epsilon 0.9" in str(report)


def test_a_batch_gives_the_bits_of_single_runs():
    """What is enumerated in batches is what a release, compiled on its own, would give."""
    words = np.random.default_rng(0).integers(0, 2**32, 2**17, dtype=np.uint32)

    def run(word):
        return laplace(word_key(word), np.float32(2.3))

    batch, single = np.asarray(jax.jit(jax.vmap(run))(words)), jax.jit(run)
    assert [float(single(word)) for word in words[:200]] == batch[:200].tolist()


# -- a discrete sampler -------------------------------------------------------------------------------------


def clamped_geometric(epsilon, bits):
    """Two-sided geometric noise on 0..5, clamped to it, by inversion of a table of whole numbers of words."""
    x, y = np.arange(6)[:, None], np.arange(6)[None, :]
    weight = np.exp(-epsilon * np.abs(x - y)) * np.where((y == 0) | (y == 5), 1.0, 1.0 - math.exp(-epsilon))
    p = weight / weight.sum(axis=1, keepdims=True)
    ends = np.rint(np.cumsum(p, axis=1) * 2**bits).astype(np.int64)
    table = ends[:, :-1].astype(np.uint32)

    def sample(key, value):
        top = word(key) >> np.uint32(32 - bits)
        return jnp.sum(top >= jnp.asarray(table)[value], dtype=jnp.int32)

    return sample, np.diff(ends, axis=1, prepend=0)


def test_a_discrete_sampler_has_its_exact_loss():
    sample, counts = clamped_geometric(0.7, 16)
    report = finite_precision(sample, np.int32(2), np.int32(3), epsilon=0.701)
    exact = float(np.max(np.abs(np.log(counts[2] / counts[3]))))
    assert report.bits == 16 and 0.699 < exact < 0.701
    assert report.loss == pytest.approx(exact, abs=1e-15) and not report.refuted
    assert report.resolutions[0].impossible == 0.0
    assert sorted(report.resolutions[0].counts) == sorted(Counter(zip(*counts[2:4], [1] * 6, strict=True)))
    assert report.verdict.startswith(f"exactly verified for these inputs: exact epsilon {exact:.9g}")
    # The claim itself is no slack: a little less is refuted.
    assert not finite_precision(sample, np.int32(2), np.int32(3), epsilon=exact).refuted
    assert finite_precision(sample, np.int32(2), np.int32(3), epsilon=exact - 1e-9).refuted
    # A negative control: a table for another epsilon.
    assert finite_precision(clamped_geometric(0.8, 16)[0], np.int32(2), np.int32(3), epsilon=0.701).refuted


def test_deltas_of_a_sampler_that_shows_its_input_sometimes():
    def sample(key, value):
        return jnp.where(jax.random.bits(key, dtype=jnp.uint8) < 16, value, np.int32(0))

    report = finite_precision(sample, np.int32(1), np.int32(2), epsilon=0.0, delta=1 / 16)
    assert report.resolutions[0].delta(3.0) == 1 / 16 and not report.refuted and report.bits == 8
    assert report.resolutions[0].epsilon(0.06) == math.inf
    assert finite_precision(sample, np.int32(1), np.int32(2), epsilon=5.0, delta=0.062).refuted


def test_outputs_of_several_parts_are_compared_whole():
    def sample(key, bit):
        byte = jax.random.bits(key, dtype=jnp.uint8)
        return (byte & np.uint8(3)).astype(jnp.int8), ((byte & np.uint8(1)) == 1) ^ bit

    report = finite_precision(sample, False, True, epsilon=1.0)
    assert report.resolutions[0].impossible == 1.0
    assert finite_precision(sample, True, True, epsilon=0.0).loss == 0.0


# -- counting -----------------------------------------------------------------------------------------------


def oracle(one, other):
    """Counts of counts, with dictionaries."""
    left, right = Counter(one), Counter(other)
    return sorted((*pair, n) for pair, n in Counter((left[y], right[y]) for y in {*left, *right}).items())


@pytest.mark.parametrize("limit", [1, 7, 50, 10**6])
def test_ranges_of_any_size_give_the_same_comparison(limit):
    rng = np.random.default_rng(0)
    values = [rng.normal(shift, 3.0, 3000).round(1).astype(np.float32) for shift in (0.0, 1.0)]
    for sample in values:
        sample[:40], sample[40:50], sample[50:55] = 0.25, np.nan, (-np.inf, np.inf, np.inf, -0.0, 0.0)
    with jax.enable_x64(False):
        codes = [np.asarray(_codes.encode(jnp.asarray(each), np.dtype(np.int32))) for each in values]
    streams = tuple(lambda code=code: iter(np.split(code, 6)) for code in codes)
    steps = (0.5, 100.0)
    found = _enumerate.compare(streams, np.dtype(np.float32), steps, limit)
    assert sorted(map(tuple, found[0].pairs.tolist())) == oracle(*(code.tolist() for code in codes))
    for step, each in zip(steps, found[1:], strict=True):
        rounded = [[str(v + 0.0) for v in (np.rint(sample.astype(float) / step)).tolist()] for sample in values]
        assert sorted(map(tuple, each.pairs.tolist())) == oracle(*rounded)


def test_several_passes_over_the_words_change_nothing():
    def sample(key, x):
        return x + jnp.log(jax.random.bits(key, dtype=jnp.uint16).astype(jnp.float32) + np.float32(0.5))

    reports = [
        finite_precision(sample, np.float32(0), np.float32(1), epsilon=1.0, granularities=0.25, limit=limit)
        for limit in (2**24, 9000)
    ]
    assert reports[0] == reports[1] and reports[0].bits == 16 and reports[0].resolutions[0].impossible > 0.3


# -- what is drawn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sample, expected",
    [
        (lambda key, x: uniform(key), (32, 9)),
        (lambda key, x: uniform(jax.random.fold_in(jax.random.split(key)[1], 3)), (32, 9)),
        (lambda key, x: jax.random.bernoulli(key, np.float32(0.3)), (32, None)),
        (lambda key, x: jax.random.uniform(key, (1,), dtype=jnp.float32)[0], (32, 9)),
        (lambda key, x: word(key), (32, 0)),
        (lambda key, x: word(key) >> np.uint32(12), (32, 12)),
        (
            lambda key, x: jnp.right_shift(word(key), np.uint32(4)) ^ jax.random.bits(key, (), jnp.uint32),
            None,
        ),
        (
            lambda key, x: (lambda w: (w >> np.uint32(12)) + (w & np.uint32(1)))(word(key)),
            (32, 0),
        ),
        (lambda key, x: jax.random.bits(key, dtype=jnp.uint16), (16, 0)),
        (lambda key, x: jax.lax.cond(x > 0, uniform, lambda key: uniform(key) + np.float32(1), key), (32, 9)),
    ],
)
def test_bits_of_the_word_that_are_used(sample, expected):
    if expected is None:
        with pytest.raises(ValueError, match="2 words"):
            used_bits(sample, np.float32(0))
    else:
        width, ignored = used_bits(sample, np.float32(0))
        assert width == expected[0] and expected[1] in (None, ignored)


def in_a_loop(key, x):
    return jax.lax.while_loop(lambda y: y < 0.5, lambda y: y + uniform(key), x)


@pytest.mark.parametrize(
    "sample, message",
    [
        (lambda key, x: x, "sample must draw one random word, got 0 words"),
        (lambda key, x: uniform(key) + laplace(key, x), "sample must draw one random word, got 2 words"),
        (lambda key, x: jax.random.uniform(key, (5,), dtype=jnp.float32), "got 5 words"),
        (
            lambda key, x: jax.vmap(uniform)(jax.random.split(key, 3)),
            "sample must draw one random word, got 3 words",
        ),
        (
            lambda key, x: jax.lax.scan(lambda y, _: (y + uniform(key), None), x, None, length=4)[0],
            "sample must draw one random word, got 4 words",
        ),
        (in_a_loop, "got an unknown number of words"),
        (lambda key, x: jax.random.key_data(key), "with jax.random, got random_unwrap"),
        (lambda key, x: jax.random.gamma(key, 2.0), "with jax.random, got random_gamma"),
        (lambda key, x: uniform(key) + undefined, "with jax.random, got NameError: .*undefined"),  # noqa: F821
        (lambda key, x: jax.random.bits(key, dtype=jnp.uint8) * jnp.ones(9, np.uint8), "at most 64 bits, got 72"),
        (jaxdp.Laplace(1.0, 1.0), "sample must draw one random word from its key with jax.random"),
        (3.0, "sample must be a function .* 3.0"),
    ],
)
def test_samplers_that_cannot_be_enumerated(sample, message):
    with pytest.raises(ValueError, match=message):
        finite_precision(sample, np.float32(0), np.float32(1), epsilon=1.0)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(epsilon=-1.0), "epsilon must be nonnegative and finite, got -1.0"),
        (dict(epsilon=math.nan), "epsilon must be nonnegative and finite, got nan"),
        (dict(epsilon="a"), "epsilon must be a real number, got 'a'"),
        (dict(delta=1.0), r"delta must be in \[0, 1\), got 1.0"),
        (dict(granularities=(0.0,)), r"granularities must be positive and finite, got \(0.0,\)"),
        (dict(limit=0), "limit must be a positive integer, got 0"),
        (dict(progress=1), "progress must be a function of one number, got 1"),
        (dict(neighbour=np.zeros(2, np.float32)), "outputs of one structure on summary and neighbour"),
    ],
)
def test_bad_arguments_are_named(options, message):
    arguments = dict(sample=laplace, summary=np.float32(0), neighbour=np.float32(1), epsilon=1.0)
    with pytest.raises(ValueError, match=message):
        finite_precision(**{**arguments, **options})


def test_the_report_is_read_again_from_its_json():
    sample, _ = clamped_geometric(0.7, 16)
    report = finite_precision(sample, np.int32(0), np.int32(1), epsilon=0.5, granularities=[2])
    again = FinitePrecisionReport.from_json(report.to_json())
    assert again == report and again.verdict == json.loads(report.to_json())["verdict"] and again.refuted
    with pytest.raises(ValueError, match=r"lacks mechanism, .*bits"):
        FinitePrecisionReport.from_json(json.dumps({"epsilon": 1.0}))
