"""Slow truth in NumPy and exact integers, written from the definitions, and the chi-square test against it.

Nothing here shares code with jaxdp but the two tables of random words whose realised laws are recomputed at the end.
"""

import functools
import itertools
import math
from fractions import Fraction

import jax
import numpy as np
import scipy.stats

from jaxdp import random

ALPHA = 1e-9

# For programs that run once: compiled in half the time.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def p_value(counts, probabilities):
    """Chi-square p-value; cells with fewer than 10 expected are pooled, and an impossible outcome gives 0."""
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    assert counts.shape == probabilities.shape and abs(probabilities.sum() - 1.0) < 1e-9
    if np.any(counts[probabilities == 0.0] > 0):
        return 0.0
    expected = probabilities * counts.sum()
    small = expected < 10.0
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    # A pool of almost no mass: its first draw would carry an unbounded statistic.
    if expected[-1] < 10.0 and len(expected) > 1:
        counts = np.append(counts[:-2], counts[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    assert len(expected) > 1, "a test with one cell has no power"
    return scipy.stats.chisquare(counts, expected * (counts.sum() / expected.sum())).pvalue


def budgets(epsilon, *, cutoff=1, monotonic=False):
    """Threshold's and one query's budget, e1 + k e2 = epsilon with e1 : k e2 = 1 : k^(2/3)."""
    k = cutoff if monotonic else 2 * cutoff
    rest = epsilon * k ** (2 / 3) / (1 + k ** (2 / 3))
    return epsilon - rest, rest / k


# Laws of integer noise by enumeration, far enough out that what is missing is below 1e-25.


def pmf(rate, noise):
    """Values and probabilities; Laplace noise as the difference of two geometric variables."""
    k = np.arange(math.ceil(60.0 / rate))
    p = -math.expm1(-rate) * np.exp(-rate * k)
    if noise == "exponential":
        return k, p
    # P(Z = z) = sum_k P(k) P(k + |z|), a geometric series cut where it no longer changes a double.
    both = np.array([np.dot(p[: len(p) - z], p[z:]) for z in k])
    return np.concatenate([-k[:0:-1], k]), np.concatenate([both[:0:-1], both])


def tail(rate, noise):
    """u -> P(noise >= u), summed from the far end."""
    values, p = pmf(rate, noise)
    sums = np.append(np.cumsum(p[::-1])[::-1], 0.0)
    first = int(values[0])
    return lambda u: 1.0 if u <= first else sums[min(u - first, len(p))]


def threshold_rows(scores, threshold, rates, noise, strict):
    """For each value of the threshold noise: its probability and each query's probability to cross."""
    tail_of = tail(rates[1], noise)
    for k, weight in zip(*pmf(rates[0], noise), strict=True):
        yield weight, [tail_of(threshold + int(k) - int(q) + strict) for q in scores]


def above_threshold_law(scores, threshold, rates, noise="exponential", *, strict=False):
    """P(halt at i), i < n, and P(never), for integer scores and noise of the two rates per step."""
    law = np.zeros(len(scores) + 1)
    for weight, crossing in threshold_rows(scores, threshold, rates, noise, strict):
        for i, h in enumerate(crossing):
            law[i] += weight * h
            weight *= 1.0 - h
        law[-1] += weight
    return law


def sparse_vector_law(scores, threshold, rates, cutoff, noise="exponential"):
    """{mask: probability}: all answers of all queries, stopping after the cutoff-th crossing."""
    law = {}
    for weight, crossing in threshold_rows(scores, threshold, rates, noise, False):
        branches = {(): weight}
        for h in crossing:
            split = {}
            for mask, p in branches.items():
                if sum(mask) == cutoff:
                    split[(*mask, False)] = p
                else:
                    split[(*mask, True)], split[(*mask, False)] = p * h, p * (1.0 - h)
            branches = split
        for mask, p in branches.items():
            law[mask] = law.get(mask, 0.0) + p
    return law


def permute_and_flip_law(a):
    """P(i) = a_i int_0^1 prod_{j != i} (1 - t a_j) dt for floats a_i, in exact integers."""
    fractions = [Fraction(x) for x in a]
    scale = max(x.denominator for x in fractions)  # a power of two
    bits = scale.bit_length() - 1
    whole = [int(x * scale) for x in fractions]
    n = len(whole)
    product = [1]
    for w in whole:  # times (scale - w t)
        product = [(high << bits) - w * low for high, low in zip([*product, 0], [0, *product], strict=True)]
    common = math.lcm(*range(1, n + 1))
    law = []
    for w in whole:
        rest, total = 0, 0
        for k in range(n):  # divided by (scale - w t) from the constant term up, and integrated
            rest = (product[k] + w * rest) >> bits
            total += rest * (common // (k + 1))
        law.append(w * total / (common * scale**n))
    return np.array(law)


def permute_and_flip_definition(a):
    """The law by its definition, over all orders: take the first candidate whose coin of bias a_i shows heads."""
    fractions = [Fraction(x) for x in a]
    law = [Fraction(0)] * len(a)
    for order in itertools.permutations(range(len(a))):
        left = Fraction(1)
        for i in order:
            law[i] += left * fractions[i]
            left *= 1 - fractions[i]
    return [float(p / math.factorial(len(a))) for p in law]


# Samplers: a loop over the queries or candidates, each with its own noise, for `size` releases.


def draw(rng, rate, noise, size):
    geometric = rng.geometric(-math.expm1(-rate), size) - 1
    return geometric if noise == "exponential" else geometric - (rng.geometric(-math.expm1(-rate), size) - 1)


def sparse_vector(rng, scores, threshold, rates, cutoff, size, noise="exponential"):
    noisy = threshold + draw(rng, rates[0], noise, size)
    masks = np.zeros((size, len(scores)), bool)
    for i, q in enumerate(scores):
        masks[:, i] = (q + draw(rng, rates[1], noise, size) >= noisy) & (masks.sum(axis=1) < cutoff)
    return masks


def above_threshold(rng, scores, threshold, rates, size, noise="exponential"):
    mask = sparse_vector(rng, scores, threshold, rates, 1, size, noise)
    return np.where(mask.any(axis=1), mask.argmax(axis=1), len(scores))


def permute_and_flip(rng, a, size):
    order = rng.permuted(np.tile(np.arange(len(a)), (size, 1)), axis=1)
    taken = np.full(size, -1)
    for i in order.T:
        taken = np.where((taken < 0) & (rng.random(size) < np.asarray(a)[i]), i, taken)
    return taken


def noisy_max(rng, logits, size, noise):
    """argmax(logit + noise): Gumbel noise gives the exponential mechanism, exponential noise permute-and-flip."""
    draw_noise = {"gumbel": rng.gumbel, "exponential": rng.exponential}[noise]
    return np.argmax(np.asarray(logits) + draw_noise(size=(size, len(logits))), axis=1)


# Realised laws of the samplers, from the integers that they compare random words with.


def realised_geometric(rate):
    """Probabilities of 0, .., 2^D - 1 under random.geometric, from its thresholds."""
    table = np.asarray(random.thresholds(rate))[:, : random.DIGITS].astype(object)
    law = [1.0]
    for j, (first, second, third) in enumerate(table.T):
        if first == second == third == 0:
            break
        whole, bits = (first << 32) + second, 64
        if first == 0 or j == 0:  # these digits compare a third word
            whole, bits = (whole << 32) + third, 96
        one, zero = whole / 2**bits, (2**bits - whole) / 2**bits
        law = [p * zero for p in law] + [p * one for p in law]
    return np.array(law)


def words_that_happen(p, rest):
    """How many of the 2^64 word pairs give random.happens(pair, p, rest), rest = 1 - p: Python integers."""
    p, rest = np.asarray(p, np.float64), np.asarray(rest, np.float64)

    def first(top, wanted):
        # The first of the 2^63 places where the answer, which changes once, is as wanted.
        low, high = np.zeros(p.shape, np.uint64), np.full(p.shape, 2**63, np.uint64)
        for _ in range(64):
            middle = low + (high - low) // np.uint64(2)
            place = np.minimum(middle, np.uint64(2**63 - 1))
            pair = np.stack([place >> np.uint64(32) | np.uint64(top << 31), place & np.uint64(2**32 - 1)])
            holds = (np.asarray(random.happens(pair.astype(np.uint32), p, rest)) == wanted) | (middle == 2**63)
            low, high = np.where(holds, low, np.minimum(middle + np.uint64(1), high)), np.where(holds, middle, high)
        return high.astype(object)

    return first(0, False) + (2**63 - first(1, True))
