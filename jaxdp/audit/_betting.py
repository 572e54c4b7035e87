"""Bets against a privacy claim: nonnegative wealth that no (epsilon, delta)-DP mechanism lets grow, on average.

A pair is one run on the summary, with output x of law P, and one on the neighbour, with output y of law Q, independent
of each other and of the past. From the past alone, two stakes f, h >= 0 (functions of an output, bounded by F and H)
and a number k are chosen. The wealth is multiplied by

    A(x) B(y) / (1 + delta (F + H) / 2)^2,    A = 1 - k + f - e^epsilon h,    B = 1 + k + h - e^epsilon f.

Claim: if the mechanism is (epsilon, delta)-DP on this pair of inputs, and A, B >= 0, the expectation of the factor,
given the past, is at most 1. Proof: (epsilon, delta)-DP says E_P f <= e^epsilon E_Q f + delta F for every function f
from 0 to F (the layers {f > t}, t from 0 to F, are events), and the same with P and Q exchanged. So

    E_P A + E_Q B = 2 + (E_P f - e^epsilon E_Q f) + (E_Q h - e^epsilon E_P h) <= 2 + delta (F + H),

and as x and y are independent, E[A B] = E_P A * E_Q B <= ((E_P A + E_Q B) / 2)^2 <= (1 + delta (F + H) / 2)^2.

So the wealth is a nonnegative supermartingale from 1, and by Ville's inequality it ever reaches 1 / alpha with
probability at most alpha. No assumption on the mechanism is used, and none on how the stakes are found. With k = 0
these are the bets on the label of an output whose side was drawn by a fair coin. The offset k takes out what both
sides have in common: for small losses and an event of probability 1/2, it halves the number of runs.

For the odds g / (1 - g) = dP / dQ at an output, the stakes that let the log wealth grow fastest (the claim's closest
pair of laws in relative entropy) are, at delta 0 and a given k,

    f = max(0, e^-epsilon g (1 + k) - (1 - g) (1 - k)),    h = max(0, e^-epsilon (1 - g) (1 - k) - g (1 + k)).

Bets of this form with predicted odds, caps F and H, and a Kelly fraction are all that is used below.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
from scipy import special

__all__ = ["UNIT", "Runs", "Stage", "StageBets", "blocks", "grid", "growth", "run_bets", "stage_bets"]

UNIT = 2.0**-12
"""Predictions are log odds in these units, whole numbers: wealth is computed from what a report stores."""
_OFFSETS = np.array([0.0, 0.01, -0.01, 0.04, -0.04, 0.15, -0.15])
# Penalties (nats) against leaving the plain bet before the past clearly favours another.
_OFFSET_PENALTY = 1.0
_CAP_PENALTY = 0.7
_CAPS = 0.25 ** np.arange(3)
_FINE = 0.5 * np.sinh(np.linspace(-6.0, 6.0, 49)) / np.sinh(6.0)
_FRACTIONS = (1.0, 0.5)


def grid(epsilon: float) -> np.ndarray:
    """Values of epsilon that are tested: 24 equal steps up to the claim, then some beyond it."""
    below = np.linspace(0.0, epsilon, 25) if epsilon else np.zeros(1)
    steps = np.array([1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0])
    beyond = steps * epsilon if epsilon else 0.01 * 2.0 ** np.arange(11)
    return np.concatenate([below, beyond])


def growth(
    log_odds: np.ndarray,
    epsilons: np.ndarray,
    offset: np.ndarray | float = 0.0,
    caps: tuple[np.ndarray | float, np.ndarray | float] = (np.inf, np.inf),
    fraction: np.ndarray | float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of A and of B for outputs of these predicted log odds; all arguments broadcast."""
    g, other = special.expit(log_odds), special.expit(-log_odds)
    # Log odds stay below 50: past 100 no stake is positive, and what it would be multiplied by does not matter.
    limited = np.minimum(epsilons, 100.0)
    shrink, grow = np.exp(-limited), np.exp(limited)
    f = np.minimum(np.maximum(shrink * g * (1.0 + offset) - other * (1.0 - offset), 0.0), caps[0])
    h = np.minimum(np.maximum(shrink * other * (1.0 - offset) - g * (1.0 + offset), 0.0), caps[1])
    # Both A and B are positive, as g and 1 - g are; rounding may not know it.
    a = np.maximum(fraction * (f - offset - grow * h), -1.0 + 1e-15)
    b = np.maximum(fraction * (h + offset - grow * f), -1.0 + 1e-15)
    return np.log1p(a), np.log1p(b)


@functools.cache
def _plans(delta: float) -> tuple[np.ndarray, ...]:
    """Offset, caps as shares of their largest value, and penalty of the bets among which the past chooses."""
    offsets = _OFFSETS if not delta else _OFFSETS[:1]
    shares = [(1.0, 1.0)]
    if delta:
        # Stakes cost delta whether they are used or not: fewer, on one side only, or none at all.
        shares += [(c, d) for c in _CAPS for d in (c, 0.0)] + [(0.0, c) for c in _CAPS] + [(0.0, 0.0)]
    rows = [(k, *pair) for pair in dict.fromkeys(shares) for k in offsets]
    penalty = [_OFFSET_PENALTY * (k != 0.0) + _CAP_PENALTY * ((c, d) != (1.0, 1.0)) for k, c, d in rows]
    return (*np.array(rows).T, np.array(penalty))


def blocks(pairs: int) -> list[tuple[int, int]]:
    """First and last pair of each block: two pairs at first, later an eighth, in the end a quarter of all before."""
    ends = [0]
    while ends[-1] < pairs:
        ends.append(min(ends[-1] + max(2, ends[-1] // (8 if ends[-1] < 512 else 4)), pairs))
    return list(itertools.pairwise(ends))


class Runs:
    """Bets on single pairs, whose odds were predicted from earlier pairs.

    Every pair is bet on under each of a few plans (offset k, caps F and H); the plan that counts is the one that has
    grown most on the earlier pairs. So the choice is made from the past alone.
    """

    def __init__(self, epsilons: np.ndarray, delta: float):
        self.epsilons, self.delta = epsilons, delta
        self.plans = _plans(delta)
        self.grown = -np.repeat(self.plans[3][:, None], len(epsilons), axis=1)
        self.log_wealth = np.zeros(len(epsilons))

    def update(self, predictions: np.ndarray) -> np.ndarray:
        """Log wealth (pairs, epsilons) after each pair, from predicted log odds (2, pairs) in units."""
        offset, one, other, _ = (column[None, :, None] for column in self.plans)
        top = np.exp(-self.epsilons)
        # At most f = e^-epsilon (1 + k) and h = e^-epsilon (1 - k): the caps bind only where delta asks for less.
        caps = one * top * (1.0 + offset), other * top * (1.0 - offset)
        odds = (UNIT * np.asarray(predictions, np.float64))[:, :, None, None]
        a, _ = growth(odds[0], self.epsilons, offset, caps)
        _, b = growth(odds[1], self.epsilons, offset, caps)
        steps = a + b - 2.0 * np.log1p(0.5 * self.delta * (caps[0] + caps[1]))
        before = self.grown + np.concatenate([np.zeros((1, *self.grown.shape)), np.cumsum(steps, axis=0)])
        chosen = np.argmax(before[:-1], axis=1)
        self.grown = before[-1]
        taken = np.take_along_axis(steps, chosen[:, None, :], axis=1)[:, 0]
        path = self.log_wealth + np.cumsum(taken, axis=0)
        self.log_wealth = path[-1] if len(path) else self.log_wealth
        return path


def run_bets(predictions: np.ndarray, epsilons: np.ndarray, delta: float) -> np.ndarray:
    """Log wealth (pairs + 1, epsilons) before the first and after every pair."""
    game, predictions = Runs(epsilons, delta), np.asarray(predictions).reshape(2, -1)
    # In the blocks in which the audit went, so that every sum is rounded alike.
    paths = [game.update(predictions[:, start:stop]) for start, stop in blocks(predictions.shape[1])]
    return np.concatenate([np.zeros((1, len(epsilons))), *paths])


@dataclasses.dataclass(frozen=True)
class Stage:
    """Counted pairs of one frozen event: what a report stores of it.

    Attributes:
        event: The event in words.
        reverse: Whether it is more likely on the neighbour.
        main: The cells 0 to main make up the event; the later cells, and their order, are those of a nested family.
        pilot: Pairs that chose the event; nothing is bet on them.
        calls: (calls, 2, cells) counts of fresh pairs: equal numbers on both sides, summary first.
    """

    event: str
    reverse: bool
    main: int
    pilot: int
    calls: tuple[tuple[tuple[int, ...], ...], ...] = ()


class StageBets:
    """Bets on the cells of a frozen event, fixed for each call from the counts of the earlier ones (none in the first).

    All pairs of a call are bet on alike, so that the factors of its pairs multiply to a function of its counts. Three
    games are followed, each with all and with half of its stakes: the nested event that looks best against the rest,
    the chosen event against the rest, and all cells. The one that has grown most so far counts.
    """

    def __init__(self, main: int, cells: int, epsilons: np.ndarray, delta: float):
        self.main, self.epsilons, self.delta = main, epsilons, delta
        self.seen = np.zeros((2, cells))
        self.grown = np.zeros((len(_FRACTIONS) * (3 if cells > 2 else 1), len(epsilons)))
        self.grown -= 0.5 * np.arange(len(self.grown))[:, None]

    def update(self, counts: np.ndarray) -> np.ndarray:
        """Log growth (epsilons,) of the wealth in a call."""
        steps = np.concatenate([self._play(past, new) for past, new in self._games(counts)])
        chosen = np.argmax(self.grown, axis=0)
        self.grown = self.grown + steps
        self.seen = self.seen + counts
        return steps[chosen, np.arange(len(self.epsilons))]

    def forecast(self, rates: np.ndarray) -> np.ndarray:
        """Log growth (epsilons,) per pair of the best bets on an event of probability rates[0], rates[1]."""
        cells = np.stack([rates, 1.0 - rates], axis=1)
        return np.max(self._values(cells[:, :, None]), axis=(0, 1))

    def _games(self, counts: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Past and new counts (2, cells, 1 or epsilons) of each game's cells."""

        def halves(cells: np.ndarray) -> np.ndarray:
            inside = np.cumsum(cells, axis=1)[:, :-1]
            return np.stack([inside, cells.sum(axis=1, keepdims=True) - inside], axis=1)

        past, new = halves(self.seen), halves(counts)
        games = [(past[:, :, [self.main]], new[:, :, [self.main]])]
        if self.seen.shape[1] > 2:
            cuts = [np.max(self._values(_smooth(past[:, :, [cut]])), axis=(0, 1)) for cut in range(past.shape[2])]
            best = np.argmax(np.stack(cuts), axis=0)
            whole = self.seen[:, :, None], counts[:, :, None]
            games = [(past[:, :, best], new[:, :, best]), *games, whole]
        return games

    def _play(self, past: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Log growth (fractions, epsilons) on new counts of the bets that look best on past ones."""
        smooth = _smooth(past)
        values = self._values(smooth).reshape(-1, len(self.epsilons))
        best, at = np.argmax(values, axis=0), np.arange(len(self.epsilons))
        row, column = np.divmod(best, len(_FINE))
        k, (one, other) = _FINE[column], (caps[row, column, at] for caps in self._choices[1])
        odds, rows = np.log(smooth[0]) - np.log(smooth[1]), []
        for fraction in _FRACTIONS:
            a, b = growth(odds, self.epsilons, k, (one, other), fraction)
            fee = 2.0 * np.log1p(0.5 * self.delta * fraction * (one + other))
            rows.append(np.sum(new[0] * a + new[1] * b, axis=0) - new[0].sum(axis=0) * fee)
        return np.stack(rows)

    def _values(self, rates: np.ndarray) -> np.ndarray:
        """Expected log growth (caps, offsets, epsilons) per pair, for probabilities (2, cells, 1 or epsilons)."""
        k, caps = self._choices
        odds = (np.log(rates[0]) - np.log(rates[1]))[:, None, None]
        a, b = growth(odds, self.epsilons, k, caps)
        value = np.sum(rates[0][:, None, None] * a + rates[1][:, None, None] * b, axis=0)
        return value - 2.0 * np.log1p(0.5 * self.delta * (caps[0] + caps[1]))

    @functools.cached_property
    def _choices(self) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Offsets and caps, (caps, offsets, epsilons)."""
        shares = np.array([(1.0, 1.0)])
        if self.delta:
            shares = np.array([(c, 0.0) for c in _CAPS] + [(0.0, c) for c in _CAPS] + [(0.0, 0.0), (1.0, 1.0)])
        k = _FINE[None, :, None]
        top = np.exp(-self.epsilons)
        return k, (shares[:, 0, None, None] * top * (1.0 + k), shares[:, 1, None, None] * top * (1.0 - k))


def stage_bets(stage: Stage, epsilons: np.ndarray, delta: float) -> np.ndarray:
    """Log growth (calls, epsilons) of the wealth in each call of a stage."""
    if not stage.calls:
        return np.zeros((0, len(epsilons)))
    bets = StageBets(stage.main, len(stage.calls[0][0]), epsilons, delta)
    return np.stack([bets.update(np.array(counts, np.float64)) for counts in stage.calls])


def _smooth(counts: np.ndarray) -> np.ndarray:
    """Probabilities of cells, half a run added to each: a cell unseen on one side is no certainty."""
    return (counts + 0.5) / np.sum(counts + 0.5, axis=1, keepdims=True)
