"""A record of what a loop has spent, which the loop carries."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _accounting, _check
from jaxdp._float64 import float64, read
from jaxdp.types import Privacy, check_privacy

__all__ = ["Ledger"]

_MANY = np.iinfo(np.int32).max
"""Count of calls that stands for this many or more, for an unknown number too."""

_ROUNDING = 1e-12


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Ledger:
    """What the releases of a loop have cost so far: for each kind of release its guarantee and the number of calls.

    A pytree of integers that jit, scan, cond and vmap carry; it holds nothing secret. A kind is named once, in `of`,
    and counted by `spend`.

    A stream (`AboveThreshold.init`) costs its epsilon once, however many steps it makes: spend it at init. Whatever was
    computed elsewhere enters as `Privacy(epsilon, delta)` and is spent once: the training by DP-SGD, say, with the
    numbers of jax_privacy's or opacus's accountant. Those speak of records that are added or removed by default;
    `Privacy.to_replace_one` converts them, and guarantees of different relations are refused. Calls add up if they
    look at the same records. Where each record belongs to one of several data sets by a public split (training and
    evaluation data), keep a ledger for each: the whole costs their maximum. A batch of ledgers from vmap has looked
    at the same records as often as it has entries: its cost is the sum over the batch.

    Attributes:
        calls: (k,) int32, numbers of calls; 2^31 - 1 stands for that many or more.
        words: (k, 3, 2) uint32, the doubles epsilon, delta and rho of one call of each kind, low word first: no
            precision is lost in a program of 32 bits.
        names: The kinds, static.
        has_rho: Whether each guarantee has its own rho, static.
        neighbours: The relation of data sets, static.

    Guarantee:
        Basic composition: the loop has the guarantee `privacy()` of its costliest run, also if later calls and their
        numbers depend on earlier releases. A run that stopped early leaves the rest to be spent later, but the claim
        for the loop stays that of the costliest one. Counts must not depend on the data other than through releases.

    Floating point:
        Totals are sums of products in float64. Numbers that come through jit as float32 are float32 numbers.

    Example:
        >>> stop = jaxdp.AboveThreshold(threshold=0.9, sensitivity=0.002, epsilon=0.5)
        >>> ledger = jaxdp.Ledger.of(
        ...     evaluation=jaxdp.AsymmetricSensitivity(0.25), stopping=stop, training=jaxdp.Privacy(3.0, 1e-6)
        ... )
        >>> ledger = ledger.spend("training").spend("stopping")
        >>> epoch = lambda ledger, _: (ledger.spend("evaluation"), None)
        >>> print(jax.lax.scan(epoch, ledger, length=20)[0])
                    calls  epsilon        delta  total epsilon  total delta
        evaluation     20     0.25  2.99096e-21              5  5.98193e-20
        stopping        1      0.5  6.83144e-21            0.5  6.83144e-21
        training        1        3        1e-06              3        1e-06
        total          22                                  8.5        1e-06
        neighbours: replace-one
    """

    calls: Any
    words: Any
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    has_rho: tuple[bool, ...] = dataclasses.field(metadata={"static": True})
    neighbours: str = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, **parts: Any) -> Ledger:
        """An empty ledger.

        Args:
            **parts: For each kind of release its name, and a mechanism or the Privacy of one call. Numbers may be
                traced; bad traced ones make the totals NaN.

        Raises:
            ValueError: For no part, bad concrete numbers, and parts with different neighbouring relations.
        """
        if not parts:
            raise ValueError("parts must be mechanisms or Privacy by name, such as evaluation=Privacy(0.1), got none")
        each = {name: _guarantee(name, part) for name, part in parts.items()}
        relations = {name: part.neighbours for name, part in each.items()}
        if len(set(relations.values())) > 1:
            raise ValueError(f"parts must have the same neighbours (see Privacy.to_replace_one), got {relations}")
        words = [_pack(name, part) for name, part in each.items()]
        words = (jnp if any(map(_check.is_traced, words)) else np).stack(words)
        has_rho = tuple(part.rho is not None for part in each.values())
        return cls(np.zeros(len(each), np.int32), words, tuple(each), has_rho, next(iter(relations.values())))

    def spend(self, name: str, times: Any = 1) -> Ledger:
        """The ledger after `times` more calls of one kind.

        Args:
            name: A name given to `of`.
            times: Integer >= 0, or a boolean: whether the release was made. May be traced; a negative traced number
                counts as infinitely many.

        Raises:
            ValueError: For an unknown name (the message has the known ones) and bad concrete times.
        """
        _check.choice("name", name, self.names)
        self._check_single()
        return dataclasses.replace(self, calls=_add(self.calls, _times(times), index=self.names.index(name)))

    def privacy(self) -> Privacy:
        """The guarantee of all calls together, by basic composition: what `compose` of all of them gives.

        Returns:
            Privacy with float64 numbers; infinite if a count is at its end, NaN for bad traced numbers. A batch of
            ledgers: `jax.vmap(Ledger.privacy)(ledgers)`.
        """
        self._check_single()
        epsilon, delta, rho = map(read, _totals(self.words, self.calls))
        return Privacy(epsilon, delta, rho if any(self.has_rho) else None, neighbours=self.neighbours)

    def remaining(self, budget: Privacy) -> Privacy:
        """What is left of a budget: epsilon and delta, negative where they were exceeded.

        Args:
            budget: Privacy of the same neighbouring relation.

        Returns:
            Privacy with float64 numbers, as those of `privacy`; decisions in a loop are easier by `within`.
        """
        epsilon, delta, _ = self._check_budget(budget)
        left = _left(_totals(self.words, self.calls), epsilon, delta)
        return Privacy(*map(read, left), neighbours=self.neighbours)

    def within(self, budget: Privacy) -> Any:
        """Whether all that was spent lies within a budget, up to a relative 1e-12; False for bad traced numbers.

        Ask before a release, of the ledger after it: a loop that skips what does not fit keeps the budget, also where
        its decisions depend on earlier releases.

        Args:
            budget: Privacy of the same neighbouring relation; its rho is not looked at.

        Example:
            >>> ledger, budget = jaxdp.Ledger.of(evaluation=jaxdp.Privacy(0.1)), jaxdp.Privacy(0.3)
            >>> [bool(ledger.spend("evaluation", times).within(budget)) for times in (3, 4)]
            [True, False]
        """
        epsilon, delta, _ = self._check_budget(budget)
        return _fits(_totals(self.words, self.calls), epsilon, delta)

    def get_epsilon(self, delta: float) -> float:
        """The least epsilon that is known for all calls together at a total delta.

        The minimum of three: basic composition; zCDP, with the rho of each kind (epsilon^2 / 2 where it has none); and
        the optimal composition of binary randomised responses, which dominate all pure mechanisms, both directions
        being the same. The deltas of the calls are added up, and only the rest is left for the composition.

        It holds for numbers of calls that were fixed beforehand: for a loop that may stop early, ask it of the longest
        run. On the host, not under jit. The optimal composition is computed here, exactly where all epsilons are equal;
        dp-accounting is not needed, and `Privacy.to_dp_event` hands over to it.

        Args:
            delta: The total delta, at least the sum of the deltas of the calls.

        Returns:
            Python float; never above `privacy().epsilon`.

        Raises:
            ValueError: For a bad or too small delta, and for traced or batched ledgers.

        Source:
            Kairouz, Oh, Viswanath (2015), theorem 3.3; Bun, Steinke (2016); Canonne, Kamath, Steinke (2020).

        Example:
            >>> ledger = jaxdp.Ledger.of(evaluation=jaxdp.AsymmetricSensitivity(0.1)).spend("evaluation", 100)
            >>> float(ledger.privacy().epsilon), round(ledger.get_epsilon(delta=1e-6), 2)
            (10.0, 4.77)
        """
        delta = _check.probability("delta", delta)
        self._check_single()
        if _check.is_traced(self.calls) or _check.is_traced(self.words):
            raise ValueError("ledger must be concrete for get_epsilon: call it outside jit and vmap")
        basic, spent, rho = (float(total) for total in _totals(self.words, self.calls))
        if not math.isfinite(basic + spent + rho):
            return basic if math.isnan(basic) else math.inf
        rest = delta - spent
        if rest < -_ROUNDING * spent:
            raise ValueError(f"delta must be at least {spent:g}, the sum of the deltas of the calls, got {delta!r}")
        if rest <= _ROUNDING * delta:
            return basic
        pure: dict[float, int] = {}
        for epsilon, times in zip(_numbers(self.words)[:, 0].tolist(), np.asarray(self.calls).tolist(), strict=True):
            if times and epsilon:
                pure[epsilon] = pure.get(epsilon, 0) + times
        optimal = _accounting.optimal_epsilon(pure, rest) if pure else 0.0
        return min(basic, optimal, _accounting.epsilon_of_rho(rho, rest))

    def __repr__(self) -> str:
        """A table of calls and costs; of a batch, the largest entry of each cell."""
        if _check.is_traced(self.calls) or _check.is_traced(self.words):
            return f"Ledger({', '.join(self.names)}; traced)"
        calls, numbers = np.asarray(self.calls), _numbers(self.words)
        batch = calls.shape[:-1]
        calls, numbers = calls.reshape(-1, len(self.names)), numbers.reshape(-1, len(self.names), 3)
        product = _products(numbers, calls.astype(np.float64), np)
        rows = [("", "calls", "epsilon", "delta", "total epsilon", "total delta")]
        for k, name in enumerate(self.names):
            cells = *numbers[:, k, :2].max(axis=0), *product[:, k, :2].max(axis=0)
            rows.append((name, _count(calls[:, k].max()), *(f"{cell:g}" for cell in cells)))
        totals = product.sum(axis=1)[:, :2].max(axis=0)
        rows.append(
            ("total", _count(calls.sum(axis=1, dtype=np.int64).max()), "", "", *(f"{cell:g}" for cell in totals))
        )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        last = f"neighbours: {self.neighbours}" + (f"; the largest of a batch of shape {batch}" if batch else "")
        return "\n".join([*lines, last])

    def _check_single(self) -> None:
        if np.ndim(self.calls) != 1:
            raise ValueError(f"ledger must be a single one (batch with jax.vmap), got calls of {np.shape(self.calls)}")

    def _check_budget(self, budget: Any) -> tuple[Any, Any, Any]:
        self._check_single()
        if not isinstance(budget, Privacy):
            raise ValueError(f"budget must be a Privacy, got {budget!r}")
        if budget.neighbours != self.neighbours:
            raise ValueError(f"budget must have neighbours {self.neighbours!r}, got {budget.neighbours!r}")
        return check_privacy(budget, "budget.")


def _guarantee(name: str, part: Any) -> Privacy:
    guarantee = part if isinstance(part, Privacy) else getattr(part, "privacy", lambda: None)()
    if not isinstance(guarantee, Privacy):
        raise ValueError(f"{name} must be a mechanism or a Privacy, got {part!r}")
    return guarantee


def _pack(name: str, part: Privacy) -> Any:
    """(3, 2) words of epsilon, delta and rho."""
    epsilon, delta, rho = check_privacy(part, f"{name}.")
    numbers = epsilon, delta, epsilon**2 / 2.0 if rho is None else rho
    if any(map(_check.is_traced, numbers)):
        return _words(*numbers)
    return np.array(numbers, "<f8").view("<u4").reshape(3, 2)


def _numbers(words: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(words)).view("<f8")[..., 0]


def _times(times: Any) -> Any:
    times = _check.array("times", times)
    if not any(jnp.issubdtype(times.dtype, kind) for kind in (jnp.integer, jnp.bool_)):
        raise ValueError(f"times must be an integer or a boolean, got {times!r}")
    if np.shape(times) != ():
        raise ValueError(f"times must be a scalar (batch with jax.vmap), got shape {np.shape(times)}")
    if _check.is_traced(times):
        return times
    if int(times) < 0:
        raise ValueError(f"times must be at least 0, got {times!r}")
    return np.int32(min(int(times), _MANY))


def _count(calls: Any) -> str:
    return str(calls) if calls < _MANY else f"{_MANY} or more"


def _products(numbers: Any, calls: Any, xp: Any) -> Any:
    calls = xp.where(calls >= float(_MANY), xp.inf, calls)[..., None]
    # Infinitely often nothing is nothing.
    return xp.where(numbers == 0.0, 0.0, calls * xp.where(numbers == 0.0, 1.0, numbers))


@float64
def _words(epsilon: Any, delta: Any, rho: Any) -> jax.Array:
    numbers = jnp.stack([number.astype(jnp.float64) for number in (epsilon, delta, rho)])
    valid = jnp.all((numbers >= 0.0) & (numbers < jnp.inf)) & (delta < 1.0)
    return jax.lax.bitcast_convert_type(jnp.where(valid, numbers, jnp.nan), jnp.uint32)


@float64(static_argnames=("index",))
def _add(calls: Any, times: Any, *, index: int) -> jax.Array:
    total = calls[index].astype(jnp.float64) + times.astype(jnp.float64)
    fits = (times >= jnp.zeros_like(times)) & (total < float(_MANY))
    return calls.at[index].set(jnp.where(fits, total, float(_MANY)).astype(jnp.int32))


@float64
def _totals(words: Any, calls: Any) -> jax.Array:
    numbers = jax.lax.bitcast_convert_type(words, jnp.float64)
    return jnp.sum(_products(numbers, calls.astype(jnp.float64), jnp), axis=0)


@float64
def _left(totals: Any, epsilon: Any, delta: Any) -> jax.Array:
    budget = jnp.stack([number.astype(jnp.float64) for number in (epsilon, delta)])
    left = budget - totals[:2]
    return jnp.where(jnp.abs(left) <= _ROUNDING * budget, 0.0, left)


@float64
def _fits(totals: Any, epsilon: Any, delta: Any) -> jax.Array:
    return jnp.all(_left(totals, epsilon, delta) >= 0.0)
