"""How near samplers come to the rate at which random words can be made at all.

The limit is bare jax.random.bits reduced by its maximum. A truer one on CPUs are jaxdp's own words: Threefry unrolled,
both words of a block used, eight blocks folded before the maximum. A sampler's words are those that it compares or
inverts, derived from its code and counted; figures say what it draws besides (keys that were split for it are not its
work), the bytes of its keys, inputs and outputs, and the fraction of the truer limit. The ratio is the fraction of the
first limit: 0.4 is promised to all whose words are the work. What binds the others, and holds off the truer limit:

- law.sample looks its two words up in the law: log2 n dependent reads of a table for each release;
- exponentials need a logarithm of doubles, AboveThreshold and SparseVector an exponential and an expm1 a query:
  exponentials alone are raced;
- the exponential mechanism on fresh scores computes a softmax of n candidates to use two words: it has no promise, and
  is raced with the least arithmetic that such a law needs, one exponential and one running sum of doubles;
- secure_key's words come from twenty rounds of ChaCha on sixteen words, four times the operations of Threefry.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, Size, agree, figure, race
from jaxdp._float64 import float64

_CANDIDATES = 1000


@dataclasses.dataclass(frozen=True)
class Sampler:
    """One way to make releases.

    Attributes:
        name: What the table calls it.
        call: Makes `releases` of them.
        releases: Their number.
        words: Random words a release that are compared or inverted.
        drawn: Words that the code makes for them: Threefry's blocks give two, of which a digit's third word uses one.
        bytes: Bytes a release of keys, inputs and outputs.
        one: Makes one release with concrete arguments, so that its words can be counted; None for bare words, and for
            laws, which invert the one pair of words of their key.
        promise: Fraction of the limit.
    """

    name: str
    call: Callable[[], Any]
    releases: int
    words: int
    drawn: int
    bytes: float
    one: Callable[[], Any] | None = None
    promise: float | None = 0.4


def run(size: Size) -> Iterator[dict[str, Any]]:
    n, key = size.of(1_000_000, 100_000), jax.random.key(0)
    keys = jax.jit(lambda key: jax.random.split(key, n))(key)
    limits, sets = _limits(n, key), max(n // _CANDIDATES, 1)
    base, laws, fresh = _base(n, key, keys), _from_law(n, keys, quick=size.quick), _fresh(sets, keys)
    floors = [] if size.quick else _floors(sets, keys)
    if size.quick:
        base, fresh = base[3::2], fresh[3:]
    yield from _group(size, "Base samplers", base, limits)
    yield from _group(size, "Many releases on one data set, from the law", laws, limits)
    yield from _group(size, "Releases on fresh data sets", fresh, [*floors, *limits])
    # Operation by operation means to compile each: seconds a sampler.
    for sampler in base[:1] if size.quick or size.late else [*base, *fresh]:
        if sampler.one is not None:
            counted, derived = np.array(count_words(sampler.one)), np.array([sampler.words, sampler.drawn])
            yield agree(f"{sampler.name}: words as derived", counted, derived, within=0.0)


def _group(size: Size, title: str, samplers: list[Sampler], limits: list[Sampler]) -> Iterator[dict[str, Any]]:
    contestants = [
        Contestant(
            sampler.name,
            sampler.call,
            sampler.releases * sampler.words,
            reference=sampler.name.startswith("jax.random.bits"),
            at_least=sampler.promise,
        )
        for sampler in [*samplers, *limits]
    ]
    records = race(title, contestants, size=size, turns=9, unit="word")
    yield from records
    speed = {record["contestant"]: record["units_per_s"] for record in records}
    own = next(limit.name for limit in limits if "bare words" in limit.name)
    for sampler in samplers:
        releases = speed[sampler.name] / sampler.words
        share = speed[sampler.name] / speed[own]
        parts = f"{sampler.words:,} words compared, {sampler.drawn:,} drawn, {sampler.bytes:,.0f} bytes a release"
        yield figure(
            f"{sampler.name}: bandwidth",
            releases * sampler.bytes / 1e9,
            "GB/s",
            against=f"{parts}; {releases:,.0f} releases/s, {share:.2f} of the rate of jaxdp's bare words",
            words=sampler.words,
            drawn=sampler.drawn,
            bytes=sampler.bytes,
            share_of_own_words=share,
        )


def _limits(n: int, key: jax.Array) -> list[Sampler]:
    bits = jax.jit(lambda key: jnp.max(jax.random.bits(key, (n,), jnp.uint32)))

    @jax.jit
    def own(key: jax.Array) -> jax.Array:
        def fold(i: jax.Array, folded: jax.Array) -> jax.Array:
            first, second = jaxdp.random.words(key, i, folded.shape)
            return folded ^ first ^ second

        return jnp.max(jax.lax.fori_loop(0, 8, fold, jnp.zeros(n, jnp.uint32)))

    return [
        Sampler("jaxdp's bare words, folded, maximum", lambda: own(key), 16 * n, 1, 1, 0.0, promise=None),
        Sampler("jax.random.bits, maximum", lambda: bits(key), n, 1, 1, 0.0, promise=None),
    ]


def _digits(rate: float) -> tuple[int, int]:
    """Words that a geometric variable compares and draws: two a digit, a third for the first and for rare ones.

    Digit j is used up to rate 2^j < TAIL, and rare where its probability 1 / (1 + e^(rate 2^j)) is below 2^-32. A third
    word is half of a pair of its own.
    """
    scaled = rate * 2.0 ** np.arange(30)
    used = scaled[scaled < jaxdp.lattice.TAIL]
    thirds = 1 + int(np.sum(1.0 + np.exp(used[1:]) > 2.0**32))
    return 2 * len(used) + thirds, 2 * (len(used) + thirds)


def _laplace_words(rate: float) -> tuple[int, int]:
    """The same for discrete Laplace noise, whose sign has three words too."""
    words, drawn = _digits(rate)
    return words + 3, drawn + 4


def _base(n: int, key: jax.Array, keys: jax.Array) -> list[Sampler]:
    draw, samplers = jaxdp.random, []
    exponential = jax.jit(lambda key: draw.exponential(key, (n,)))
    geometric = jax.jit(lambda key: draw.geometric(key, 1.0 / 8.0, (n,)))
    samplers.append(Sampler("jaxdp, exponential", lambda: exponential(key), n, 2, 2, 4, lambda: draw.exponential(key)))
    one = lambda: draw.geometric(key, 1.0 / 8.0)  # noqa: E731
    samplers.append(Sampler("jaxdp, geometric, scale 8", lambda: geometric(key), n, *_digits(1.0 / 8.0), 4, one))
    for scale in (8, 4096):
        laplace = jax.jit(lambda key, rate=1.0 / scale: draw.discrete_laplace(key, rate, (n,)))
        one = lambda rate=1.0 / scale: draw.discrete_laplace(key, rate)  # noqa: E731
        name, words = f"jaxdp, discrete Laplace, scale {scale}", _laplace_words(1.0 / scale)
        samplers.append(Sampler(name, lambda laplace=laplace: laplace(key), n, *words, 4, one))
    mechanism = jaxdp.Laplace(1.0, 1.0)
    many = jax.jit(jax.vmap(mechanism.sample, (0, None)))
    words = _laplace_words(float(mechanism.law(0.5).rate))
    one = lambda: mechanism.sample(key, 0.5)  # noqa: E731
    samplers.append(Sampler("jaxdp, Laplace.sample, vmap over keys", lambda: many(keys, 0.5), n, *words, 12, one))
    secure = jaxdp.secure_key()
    chacha = jax.jit(lambda key: jnp.max(jax.random.bits(key, (n,), jnp.uint32)))
    return [*samplers, Sampler("jaxdp, ChaCha20 words of secure_key", lambda: chacha(secure), n, 1, 1, 4)]


def _from_law(n: int, keys: jax.Array, *, quick: bool) -> list[Sampler]:
    """63 of the 64 bits of two words are inverted; a key of 8 bytes is read, an outcome written."""
    rng = np.random.default_rng(0)
    scores = rng.normal(scale=3.0, size=_CANDIDATES).astype(np.float32)
    stream = np.arange(-_CANDIDATES, 40, dtype=np.int32)
    laws = {"ExponentialMechanism": (jaxdp.ExponentialMechanism(1.0, 1.0).law(scores), 12)}
    if not quick:  # The others differ in their length only.
        bounds = jaxdp.bounds.variance(rng.lognormal(1.0, 0.8, 1000).astype(np.float32), 0.0, 100.0, radius=100)
        grid = jaxdp.geometric_grid(0.0, 2500.0, unit=1e-3)
        laws |= {
            "PermuteAndFlip": (jaxdp.PermuteAndFlip(1.0, 1.0).law(scores), 12),
            "AboveThreshold": (jaxdp.AboveThreshold(0.0, 1.0, 1.0).law(stream), 13),
            "AsymmetricSensitivity": (jaxdp.AsymmetricSensitivity(1.0).law((bounds, grid)), 12),
        }
    samplers = []
    for name, (law, moved) in laws.items():
        # The law is an argument: what stands for constants would be compiled in.
        many = jax.jit(lambda keys, law: jax.vmap(law.sample)(keys))
        call = lambda many=many, law=law: many(keys, law)  # noqa: E731
        samplers.append(Sampler(f"jaxdp, {name}, {len(law.log_p):,} outcomes", call, n, 2, 2, moved))
    return samplers


def _fresh(sets: int, keys: jax.Array) -> list[Sampler]:
    """A data set, and a key of 8 bytes, for each release."""
    rng, some = np.random.default_rng(0), keys[:sets]
    scores = rng.normal(scale=3.0, size=(sets, _CANDIDATES)).astype(np.float32)
    queries = rng.integers(-1000, 1, (sets, _CANDIDATES), dtype=np.int32)
    flip, exponential = jaxdp.PermuteAndFlip(1.0, 1.0), jaxdp.ExponentialMechanism(1.0, 1.0)
    above, sparse = jaxdp.AboveThreshold(0.0, 1.0, 1.0), jaxdp.SparseVector(0.0, 1.0, 1.0, cutoff=4)
    moved = 4 * _CANDIDATES + 12
    made = [(flip, scores, "PermuteAndFlip", 0.4), (exponential, scores, "ExponentialMechanism", None)]
    made += [(above, queries, "AboveThreshold", 0.4), (sparse, queries, "SparseVector", 0.4)]
    samplers = []
    for mechanism, data, name, promise in made:
        words = drawn = 2 * _CANDIDATES  # Two words for the exponential variable of each candidate or query.
        if name == "ExponentialMechanism":
            words = drawn = 2
        if name in ("AboveThreshold", "SparseVector"):
            # The threshold's noise is geometric, of rate first / sensitivity.
            crossings = 2 * getattr(mechanism, "cutoff", 1)
            first = _digits(1.0 / (1.0 + crossings ** (2.0 / 3.0)))
            words, drawn = words + first[0], drawn + first[1]
        many = jax.jit(jax.vmap(mechanism.sample))
        call = lambda many=many, data=data: many(some, data)  # noqa: E731
        one = lambda mechanism=mechanism, data=data: mechanism.sample(some[0], data[0])  # noqa: E731
        title = f"jaxdp, {name}, {_CANDIDATES:,} {'candidates' if data is scores else 'queries'}"
        extra = _CANDIDATES if name == "SparseVector" else 0
        samplers.append(Sampler(title, call, sets, words, drawn, moved + extra, one, promise))
    return samplers


def _floors(sets: int, keys: jax.Array) -> list[Sampler]:
    """What releases on fresh data cannot do without beside their words."""
    scores = np.random.default_rng(0).normal(scale=3.0, size=(sets, _CANDIDATES)).astype(np.float32)
    softmax = jax.jit(jax.vmap(_softmax))
    draw = jax.jit(jax.vmap(lambda key: jnp.max(jaxdp.random.exponential(key, (_CANDIDATES,)))))
    names = [f"{name} alone, {_CANDIDATES:,} candidates" for name in ("softmax and running sum", "jaxdp, exponentials")]
    return [
        Sampler(names[0], lambda: softmax(scores), sets, 2, 0, 0.0, promise=None),
        Sampler(names[1], lambda: draw(keys[:sets]), sets, 2 * _CANDIDATES, 2 * _CANDIDATES, 0.0, promise=None),
    ]


@float64
def _softmax(scores: jax.Array) -> jax.Array:
    """The arithmetic that no sampler of the exponential mechanism on its law can do without."""
    return jnp.cumsum(jnp.exp(0.5 * (scores - jnp.max(scores))))[-1]


def count_words(one: Callable[[], Any]) -> tuple[int, int]:
    """Words that one release compares and draws: runs it operation by operation with a counting source of words."""
    compared = drawn = 0
    words = jaxdp.random.words

    def counting(key: jax.Array, index: Any, shape: tuple[int, ...] = ()) -> jax.Array:
        nonlocal compared, drawn
        drawn += 2 * math.prod(shape)
        compared += math.prod(shape) * (1 if int(index) >= 32 else 2)
        return words(key, index, shape)

    jaxdp.random.words = counting
    try:
        with jax.disable_jit():
            one()
    finally:
        jaxdp.random.words = words
    return compared, drawn
