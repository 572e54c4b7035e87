"""RAPPOR (Erlingsson, Pihur and Korolova, 2014): randomised response on the bits of a Bloom filter. NOT FOR RELEASE."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxdp.audit.catalogue._loss_law import LossLaw
from jaxdp.audit.catalogue._noise import Sampler

__all__ = ["Rappor", "murmur3"]

_MASK = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True, eq=False)
class Rappor(Sampler):
    """The report on one integer. Its loss is the number of bits that differ times log((1 - flip) / flip).

    A bit is kept with probability 1 - f and is a fair coin otherwise; the instantaneous report of a bit is 1 with
    probability q or p = 1 - q. Both steps together flip a bit with one probability.

    Attributes:
        f: Share of the permanent randomised response.
        q: Probability that a set bit is reported; 1 for the one-time version.
        hashes: Hash functions.
        bits: Bits of the filter.
        largest: Inputs are integers from -largest to largest.
    """

    f: float
    q: float = 1.0
    hashes: int = 4
    bits: int = 20
    largest: int = 10

    @property
    def flip(self) -> float:
        """Probability that a bit of the filter is reported wrongly."""
        wrong = self.f / 2.0
        return wrong * self.q + (1.0 - wrong) * (1.0 - self.q)

    @property
    def epsilon(self) -> float:
        """The loss if all hashes of both inputs fall on bits of their own."""
        return 2.0 * self.hashes * math.log((1.0 - self.flip) / self.flip)

    def filter(self, value: int) -> np.ndarray:
        """(bits,) the Bloom filter of one integer."""
        places = [murmur3(str(int(value)).encode(), seed) for seed in range(self.hashes)]
        # The hash is read as a signed integer, and the remainder is not negative.
        places = [(place - (place >> 31 << 32)) % self.bits for place in places]
        return np.isin(np.arange(self.bits), places)

    def words(self, x: Any) -> int:
        """One for each bit."""
        return self.bits

    def run(self, words: jax.Array, x: Any) -> jax.Array:
        """(bits,) a boolean report."""
        table = np.stack([self.filter(value) for value in range(-self.largest, self.largest + 1)])
        truth = jnp.asarray(table)[jnp.asarray(x, jnp.int32) + np.int32(self.largest)]
        return truth ^ (words < np.uint32(round(self.flip * 2**32)))

    def log_ratio(self, summary: Any, neighbour: Any) -> Any:
        """Linear in the bits on which the filters differ."""
        one, other = self.filter(summary), self.filter(neighbour)
        weights = (one.astype(np.float64) - other) * math.log((1.0 - self.flip) / self.flip)
        start, weights = np.float32(-np.sum(weights)), (2.0 * weights).astype(np.float32)
        # A product of a vector is twice as fast here as a masked sum.
        return lambda output: start + jnp.dot(output.astype(jnp.float32), weights, precision=jax.lax.Precision.HIGHEST)

    def loss_law(self, summary: Any, neighbour: Any) -> LossLaw:
        """Atoms: the number of right bits, among those that differ, is binomial."""
        differ = int(np.sum(self.filter(summary) != self.filter(neighbour)))
        right = np.arange(differ + 1)
        return LossLaw.of(*(stats.binom.pmf(right, differ, p) for p in (1.0 - self.flip, self.flip)))


def murmur3(data: bytes, seed: int) -> int:
    """The 32-bit MurmurHash3 of some bytes.

    Example:
        >>> hex(murmur3(b"test", 0)), hex(murmur3(b"Hello, world!", 1234))
        ('0xba6bd213', '0xfaf6cdb3')
    """
    value = seed
    for start in range(0, len(data), 4):
        block = data[start : start + 4]
        word = int.from_bytes(block, "little") * 0xCC9E2D51 & _MASK
        value ^= (word << 15 | word >> 17) * 0x1B873593 & _MASK
        if len(block) == 4:
            value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & _MASK
    value ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = (value ^ value >> shift) * factor & _MASK
    return value ^ value >> 16
