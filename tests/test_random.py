"""The base samplers: the realised laws of their integers, edges, draws, and how they behave under JAX's transforms."""

import bisect
import math

import jax
import jax.numpy as jnp
import numpy as np
import oracles_base as oracle
import pytest
from oracles_base import ALPHA

from jaxdp import random
from jaxdp._chacha import chacha20_prng_impl

IMPLEMENTATIONS = {"threefry": "threefry2x32", "rbg": "rbg", "chacha20": chacha20_prng_impl}
RATES = [1 / scale for scale in (0.3, 1, 8, 4096)]
LOG_ERROR = 1.3e-9  # 2^-96 e^46: the last word of the rarest digit
RARE = math.log(2**32 - 1)  # 1 / (1 + e^RARE) = 2^-32: below it a digit compares three words
INT_MIN = -(2**31)


def table_of(rate):
    return np.asarray(random.thresholds(rate))


@pytest.mark.parametrize("scale", [0.3, 1, 2, 3, 8, 90, 1000, 4096])
def test_realised_law_is_the_ideal_one(scale):
    z, p, log_error = oracle.realised_law(table_of(1 / scale), 1 / scale)
    assert oracle.total_variation(p, log_error) < 2.0**-50
    assert np.ptp(log_error) <= LOG_ERROR
    assert (z[0], z[-1]) == (-oracle.support(1 / scale), oracle.support(1 / scale) - 1)


def test_realised_law_check_has_power():
    _, p, log_error = oracle.realised_law(table_of(1.05 / 8), 1 / 8)
    assert oracle.total_variation(p, log_error) > 0.01
    coarse = table_of(1 / 8).copy()
    coarse[1:, coarse[0] > 0] = 0  # thresholds of 32 bits
    _, p, log_error = oracle.realised_law(coarse, 1 / 8)
    assert oracle.total_variation(p, log_error) > 2.0**-50


def test_digits_of_every_scale():
    worst, extremes = 0.0, [45.999 / 2, 45.999 / 2**9, RARE, RARE / 2**20, 2 * RARE, 45.94, 60.0]
    for rate in [1 / scale for scale in range(1, 4097, 39)] + extremes:
        digits, sign = oracle.digit_errors(table_of(rate), rate)
        errors = np.concatenate([digits, sign[None]])
        if rate <= 32.0:
            worst = max(worst, np.sum(np.ptp(errors, axis=1)))
        p = 1 / (1 + np.exp(np.append(rate * 2.0 ** np.arange(len(digits)), rate)))
        # A bound on the total variation of the product law.
        assert np.sum(p * np.abs(errors[:, 1])) < 2.0**-50
    assert worst <= LOG_ERROR


def test_ideal_digits_make_the_ideal_law():
    rate = 0.3
    z, p = oracle.discrete_laplace(rate)
    g = z[z >= 0]
    ones = 1 / (1 + np.exp(rate * 2.0 ** np.arange(math.log2(len(g)))))
    bits = g[:, None] >> np.arange(len(ones)) & 1
    product = np.prod(np.where(bits, ones, 1 - ones), axis=1)
    np.testing.assert_allclose(product / (1 + math.exp(-rate)), p[z >= 0], rtol=1e-12)


@pytest.mark.parametrize("rate", [*RATES, 1e-7, 1 / 90, 45.99, RARE, 100.0])
def test_traced_rate_has_the_table_of_the_concrete_one(rate):
    rate = np.float32(rate)
    np.testing.assert_array_equal(table_of(float(rate)), jax.jit(random.thresholds)(rate))
    batch = jax.vmap(random.thresholds)(np.full(3, rate))
    np.testing.assert_array_equal(table_of(float(rate)), batch[1])


@pytest.mark.parametrize(
    ("rate", "digits", "rare"),
    [
        (random.MIN_RATE, 30, 1),
        (1.0, 6, 1),
        (46.0, 0, 0),
        (np.nextafter(46.0, 0.0), 1, 1),
        (23.0, 1, 1),
        (RARE - 1e-9, 2, 1),
        (RARE + 1e-9, 2, 2),
        (RARE / 4 - 1e-9, 4, 1),
        (RARE / 4 + 1e-9, 4, 2),
        (1e6, 0, 0),
    ],
)
def test_digits_in_use(rate, digits, rare):
    table = table_of(rate)
    assert len(oracle.thresholds(table)[0]) == digits
    assert np.sum(np.any(table[:, :-1] > 0, axis=0) & (table[0, :-1] == 0)) == rare
    assert table[2, -1] > 0


def test_huge_rate_is_no_noise(key):
    assert not np.any(random.discrete_laplace(key, 1e6, (10**6,)))
    assert random.discrete_laplace(key, 1e6) == 0 == random.geometric(key, 1e6)


@jax.jit
def traced_draws(key, rate):
    return random.geometric(key, rate), random.discrete_laplace(key, rate)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 0.99 * random.MIN_RATE, 1e-39, True, 1j, np.ones(2)])
def test_bad_rate(key, rate):
    for sampler in (random.geometric, random.discrete_laplace):
        with pytest.raises(ValueError, match="rate must be"):
            sampler(key, rate)
    if not isinstance(rate, float):
        return
    geometric, noise = traced_draws(key, np.float32(rate))
    assert geometric == -1 and noise == INT_MIN


@pytest.mark.parametrize("bad", [np.zeros(2, np.uint32), 0, jnp.zeros(2, jnp.uint32)])
def test_bad_key(key, bad):
    for value in (bad, jax.random.split(key)):
        for sampler in (random.exponential, lambda k: random.geometric(k, 1.0)):
            with pytest.raises(ValueError, match="key must be"):
                sampler(value)


# How draws compare words: chosen words in place of random ones.


def chosen(places, bits, rng):
    """Words (3, n) that hold the integers `places` of 64 or 96 bits; what is left over is random."""
    words = rng.integers(0, 2**32, (3, len(places)), dtype=np.uint32)
    for i in range(bits // 32):
        words[i] = [place >> (bits - 32 * (i + 1)) & 0xFFFFFFFF for place in places]
    return words


def draws_from(monkeypatch, sampler, table, words):
    """Draws with words (31, 3, n), of the digits and of the sign, in place of random ones."""
    pairs = np.zeros((63, 2, words.shape[2]), np.uint32)
    pairs[:31], pairs[32:63, 0] = words[:, :2], words[:, 2]
    monkeypatch.setattr(random, "words", lambda key, index, shape: jnp.asarray(pairs)[index])
    return np.asarray(sampler.__wrapped__(None, jnp.asarray(table), (words.shape[2],)))


@pytest.mark.parametrize("rate", [0.3, 1.0, 23.0, RARE - 1e-9, RARE + 1e-9, RARE / 8 + 1e-9, 45.9, 50.0, 1e-7])
def test_every_digit_is_one_just_below_its_threshold(monkeypatch, rate):
    table, rng = table_of(rate), np.random.default_rng(1)
    digits, (sign, _) = oracle.thresholds(table)
    words, expected = np.full((31, 3, 6), 0xFFFFFFFF, np.uint32), np.zeros(6, int)
    for j, (threshold, bits) in enumerate(digits):
        low = threshold & 0xFFFFFFFF  # the other words may agree only together with this one
        places = [0, threshold - 1, threshold, min(threshold + 1, 2**bits - 1), threshold - low, 2**bits - 1]
        words[j] = chosen(places, bits, rng)
        expected += [(place < threshold) << j for place in places]
    draws = draws_from(monkeypatch, random.draw_geometric, table, words)
    np.testing.assert_array_equal(draws, expected)
    places = [0, sign - 1, sign, sign + 1, sign - (sign & 0xFFFFFFFF), 2**96 - 1]
    words[-1] = chosen(places, 96, rng)
    negative = np.array([place < sign for place in places])
    draws = draws_from(monkeypatch, random.draw_discrete_laplace, table, words)
    np.testing.assert_array_equal(draws, np.where(negative, -1 - expected, expected))


def test_the_ends_of_the_support(monkeypatch):
    for rate in (random.MIN_RATE, 0.3, 46.0):
        size = oracle.support(rate)
        words = np.zeros((31, 3, 2), np.uint32)  # all digits one; the sign negative, then positive
        words[-1, :, 1] = 0xFFFFFFFF
        draws = draws_from(monkeypatch, random.draw_discrete_laplace, table_of(rate), words)
        assert draws.tolist() == [-size, size - 1]


# Draws.


@jax.jit
def mapped_noise(keys, table):
    return jax.vmap(random.draw_discrete_laplace, (0, None))(keys, table)


CASES = [("threefry", rate, path, 10**6) for rate in RATES for path in ("array", "vmap")]
CASES += [("rbg", 1 / 8, "array", 10**6), ("rbg", 1 / 0.3, "vmap", 2 * 10**5)]
CASES += [("chacha20", 1 / 4096, "array", 10**6), ("chacha20", 1 / 8, "vmap", 2 * 10**4)]


@pytest.mark.parametrize(("name", "rate", "path", "n"), CASES)
def test_draws_follow_the_law(name, rate, path, n):
    key = jax.random.key(2024, impl=IMPLEMENTATIONS[name])
    if path == "array":
        draws = random.discrete_laplace(key, rate, (n,))
    else:
        draws = mapped_noise(jax.random.split(key, n), random.thresholds(rate))
    assert draws.dtype == jnp.int32
    assert oracle.noise_test(draws, rate) > ALPHA
    assert oracle.noise_test(draws, rate * (1.05 if n > 10**5 else 1.3)) < ALPHA


def test_geometric_draws_follow_the_law(key):
    draws, rate = np.asarray(random.geometric(key, 0.25, (400, 500))), 0.25
    g, counts = np.arange(256), np.bincount(draws.ravel(), minlength=256)
    assert oracle.chi_square(counts, -math.expm1(-rate) * np.exp(-rate * g)) > ALPHA
    assert oracle.chi_square(counts, -math.expm1(-1.05 * rate) * np.exp(-1.05 * rate * g)) < ALPHA


def test_secure_key_draws():
    key = random.secure_key()
    assert oracle.noise_test(random.discrete_laplace(key, 1 / 8, (10**6,)), 1 / 8) > ALPHA
    assert np.any(jax.random.key_data(key) != jax.random.key_data(random.secure_key()))


# The exponential: its exact realised law, from a search over all 2^64 pairs of words.


POINTS = np.concatenate([np.geomspace(2.0**-40, 0.7, 200), np.linspace(0.69, 27.7, 300)])


@pytest.mark.parametrize(("dtype", "upper", "lower"), [(np.float64, 1e-7, 1e-7), (np.float32, 1e-6, 1e-7)])
def test_exact_tails_of_the_exponential(dtype, upper, lower):
    t = POINTS.astype(dtype)
    small, large = (oracle.count_below(random.from_words, bit, t, dtype) for bit in (0, 1))
    above = np.array([(b + 2**63 - a) / 2**64 for a, b in zip(small, large, strict=True)])
    below = np.array([(a + 2**63 - b) / 2**64 for a, b in zip(small, large, strict=True)])
    errors = oracle.tail_errors(above, below, t.astype(np.float64))
    assert errors[0] <= upper and errors[1] <= lower


def test_tails_of_the_exponential_of_jax_are_condemned():
    draws = np.asarray(jax.random.exponential(jax.random.key(3), (1000,), jnp.float32))
    bits = jax.random.bits(jax.random.key(3), (1000,), jnp.uint32)
    np.testing.assert_array_equal(draws, jax.jit(lambda b: -jnp.log1p(-oracle.jax_uniform(b)))(bits))
    values = -np.log1p(-np.arange(2**23) * 2.0**-23)
    below = np.searchsorted(values, POINTS, side="right") / 2**23
    upper, lower = oracle.tail_errors(1 - below, below, POINTS)
    assert upper == 1.0 and lower > 1e3


def test_ends_of_the_exponential():
    ends = np.array([[0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0], [0, 0xFFFFFFFF, 0xFFFFFFFF, 0]], np.uint32)
    values = np.asarray(random.from_words(ends))
    np.testing.assert_allclose(values, [65 * math.log(2), math.log(2), math.log(2), 2.0**-65], rtol=1e-15)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_exponential_draws_follow_the_law(name):
    n = 10**6 if name == "threefry" else 2 * 10**5
    key = jax.random.key(5, impl=IMPLEMENTATIONS[name])
    draws = np.asarray(random.exponential(key, (n,)))
    assert draws.dtype == np.float32
    edges = np.unique(np.concatenate([-np.log1p(-np.arange(400) / 400), 2.0 ** -np.arange(9, 25), np.arange(6, 20)]))

    def p_value(rate):
        return oracle.chi_square(np.histogram(draws, [*edges, 99])[0], -np.diff(np.exp(-rate * edges), append=0))

    assert p_value(1.0) > ALPHA and p_value(1.05) < ALPHA


def test_scalar_exponentials_under_vmap_follow_the_law(key):
    draws = jax.vmap(random.exponential)(jax.random.split(key, 10**5))
    edges = -np.log1p(-np.arange(400) / 400)
    counts = np.histogram(draws, [*edges, 99])[0]
    assert oracle.chi_square(counts, np.full(400, 1 / 400)) > ALPHA
    assert oracle.chi_square(counts, -np.diff(np.exp(-1.1 * edges), append=0)) < ALPHA


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_exponential_dtype(key, dtype):
    draws = random.exponential(key, (3, 2), dtype)
    assert draws.dtype == dtype and draws.shape == (3, 2)
    np.testing.assert_array_equal(draws, random.exponential(key, (3, 2)).astype(dtype))


# Laws as integers, and their inversion.


def integers(log_p):
    weights = np.asarray(random.counts(np.asarray(log_p, np.float64)))
    assert weights.dtype == np.uint64
    return [int(weight) for weight in weights]


@pytest.mark.parametrize("off", [0.0, 1e-12, -1e-12, 1e-7, -1e-7])
@pytest.mark.parametrize("spread", [0.1, 3.0, 40.0])
def test_counts(off, spread):
    log_p = np.random.default_rng(7).uniform(-spread, 0.0, 3000)
    log_p -= np.log(math.fsum(np.exp(log_p)))
    log_p += off  # the probabilities may sum to slightly more or less than 1
    weights = integers(log_p)
    assert sum(weights) == 2**63
    p = np.exp(log_p)
    errors = np.abs(np.array(weights, np.float64) / 2.0**63 - p) / p
    errors[np.argmax(p)] -= 2 * abs(off) / np.max(p)  # which takes what is left over
    assert np.max(errors[p >= 2.0**-46]) <= 1e-5
    if spread == 40.0:
        assert np.any(p < 2.0**-46)


def test_counts_of_special_laws():
    assert integers([0.0]) == [2**63]
    assert integers([-np.inf, 0.0, -np.inf]) == [0, 2**63, 0]
    assert integers([math.log(0.5)] * 2) == [2**62] * 2
    thirds = integers([math.log(1 / 3)] * 3)
    assert sum(thirds) == 2**63 and max(thirds) - min(thirds) < 2**11
    assert integers([math.nan, 0.0]) == integers([math.nan] * 2) == [0, 0]


@pytest.mark.parametrize(
    "weights",
    [
        [2**63],
        [0, 1, 0, 0, 2**62, 2**62 - 1, 0],
        [2**62, 2**61, 1, 0, 1, 2**61 - 2],
        [2**32, 2**32 - 1, 1, 2**63 - 2**33],
        [1] * 20 + [2**63 - 20],
        [0] * 16 + [2**62] * 2,
        [2**53] * 1024,
        [2**53] * 7 + [0] * 1026 + [2**53] * 1017,
    ],
)
def test_invert_at_every_border(weights):
    assert sum(weights) == 2**63
    cumulative = np.cumsum(np.array(weights, object)).tolist()
    places = sorted({0, 2**63 - 1} | {c + d for c in cumulative for d in (-2, -1, 0, 1) if 0 <= c + d < 2**63})
    words = chosen(places, 64, np.random.default_rng(0))[:2]
    expected = [bisect.bisect_right(cumulative, place) for place in places]
    for top_bit in (0, 0x80000000):  # it is not part of the place
        words[0] = words[0] & 0x7FFFFFFF | top_bit
        index = random.invert(words, np.array(weights, np.uint64))
        assert index.dtype == jnp.int32 and index.tolist() == expected
        once = jax.vmap(random.invert_once, (1, None))(words, np.array(weights, np.uint64))
        assert once.dtype == jnp.int32 and once.tolist() == expected
    assert all(weights[i] > 0 for i in expected)


def test_invert_without_a_law():
    assert random.invert(np.full((2, 3), 5, np.uint32), np.zeros(4, np.uint64)).tolist() == [-1] * 3
    assert int(random.invert_once(np.full(2, 5, np.uint32), np.zeros(4, np.uint64))) == -1


# Transforms.


def scalars(key, rate):
    one, two = jax.random.split(key)
    return random.discrete_laplace(one, rate), random.exponential(two)


@pytest.mark.leaks
def test_scalars_in_every_transform(key):
    keys, rates = jax.random.split(key, 6), np.geomspace(1e-5, 50.0, 6).astype(np.float32)
    loop = [scalars(k, float(rate)) for k, rate in zip(keys, rates, strict=True)]
    expected = [np.stack(rows) for rows in zip(*loop, strict=True)]
    for name, got in oracle.transforms(scalars, keys, rates):
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_vmap_of_arrays_equals_the_loop(key):
    keys, rates = jax.random.split(key, 3), np.array([0.001, 1.0, 30.0], np.float32)
    got = jax.jit(jax.vmap(lambda k, rate: random.discrete_laplace(k, rate, (2,))))(keys, rates)
    loop = [random.discrete_laplace(k, float(rate), (2,)) for k, rate in zip(keys, rates, strict=True)]
    np.testing.assert_array_equal(got, loop)


def test_no_child_key_is_used_twice(key):
    with jax.debug_key_reuse(True):
        random.discrete_laplace(key, 0.2, (3,))
        random.exponential(key)
        with pytest.raises(jax.errors.KeyReuseError):
            _ = jax.random.bits(key), jax.random.bits(key)


def test_one_program_serves_every_rate(key):
    traces = []

    @jax.jit
    def sample(key, rate):
        traces.append(rate)
        return random.discrete_laplace(key, rate)

    for rate in (1e-6, 0.1, 30.0, 1e5):
        sample(key, rate)
    assert len(traces) == 1
    random.discrete_laplace(key, 0.5)
    with jax.no_tracing(True):
        assert [random.discrete_laplace(key, rate).dtype for rate in (1e-6, 0.1, 30.0, 1e5)] == [jnp.int32] * 4
        with pytest.raises(Exception, match="no_tracing"):
            random.discrete_laplace(key, 0.5, (7, 3))
