"""Sequential audits: they may stop at any moment, and what they certify holds at every moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxdp import _check
from jaxdp.audit import _betting, _blocks, _predictor
from jaxdp.audit._arguments import check_claim, check_devices, check_share, check_stream, name_of, sampler_of
from jaxdp.audit._betting import Stage
from jaxdp.audit._sequential_report import SequentialReport
from jaxdp.audit._stream import Stream

__all__ = ["SequentialReport", "sequential"]

# Pairs that are bet on one by one, and after how many of them more are drawn.
_DRAWS = (64, 1024, 8192)
# Total pairs after which a stage ends and another event is chosen; a twelfth of them choose it. An event is chosen by
# its predicted certificate at the end of the stage: small samples favour large events.
_STAGES = tuple(2**power for power in range(17, 46, 3))
# The event's rates are taken this many standard errors in favour of a violation before an audit is called futile.
_OPTIMISM = 2.5
_FUTILE_FROM = 8 * _blocks.BLOCK


def sequential(
    key: jax.Array,
    mechanism: Any,
    summary: Any,
    neighbour: Any,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    max_samples: int = 2**24,
    score: Callable[[Any], Any] | None = None,
    resolution: float = 1e-4,
    futility: bool = True,
    devices: Sequence[Any] | None = None,
    progress: Callable[[float], Any] | None = None,
) -> SequentialReport:
    """Runs a mechanism on two neighbouring inputs until its privacy claim is refuted, as early as the runs allow.

    Runs come in pairs, one on each input. A gambler who starts with wealth 1 bets against the claim, on each pair's
    outputs, by what the pairs before it show. If the claim is right, the wealth is a nonnegative supermartingale
    (proof in `jaxdp.audit._betting`), so that it ever reaches 1 / alpha with probability at most
    alpha = 1 - confidence (Ville). Reaching it refutes the claim, whenever that happens and however the audit was
    to go on.

    The same game is played against each epsilon of a fixed grid. The certificate is the largest grid value e such
    that e and all smaller ones have been rejected so far. With probability at least `confidence` it never exceeds
    the true epsilon (at the claimed delta), at any moment: to exceed it, the smallest grid value at or above the
    true epsilon, for which the mechanism is (e, delta)-DP, must have been rejected; that is one value, rejected with
    probability at most alpha. `refuted` says that the certificate has reached the claim.

    The first 8,192 pairs are bet on one by one. The odds of an output come from `score`, or are learned online:
    whole outputs count, so that vectors and mixed outputs are used as they are. Later pairs are counted on the
    devices in blocks of 2^14: a pilot (not bet on) freezes an event and a nested family around it as in
    `monte_carlo`, and the bets of each call are fixed from the counts of the calls before. The event is chosen
    anew after 2^17, 2^20, 2^23, ... pairs.

    Other pairs of inputs may lose more: nothing here shows that a claim is right. Results are the same for any
    number of devices. Outputs are drawn in chunks of up to 2,048, of which the first pairs may use only a few.

    Args:
        key: One typed key. Consumed.
        mechanism: An object with `sample(key, summary)` and `privacy()`, or a function (key, summary) -> output, which
            needs `epsilon`, as in `monte_carlo`.
        summary: What the mechanism reads on the one input, any pytree.
        neighbour: The same on the neighbouring input.
        epsilon: The claim to test; by default that of `mechanism.privacy()`.
        delta: The claimed delta; by default that of `mechanism.privacy()`, or 0 for a function.
        confidence: Confidence of the verdict and of all certificates together, in (0, 1).
        max_samples: Most runs of both inputs together, at least 100.
        score: A pure JAX function output -> real number, the logarithm of the likelihood ratio of summary over
            neighbour where the law is known. A wrong one costs power, never validity. It must not change.
        resolution: Scores are rounded to multiples of this.
        futility: Whether to give up when even optimistic rates of the event would not refute the claim in time.
        devices: Devices to spread the blocks over; by default all of `jax.devices()`.
        progress: Called with the share of max_samples used so far, between steps; last with 1.

    Returns:
        A SequentialReport.

    Raises:
        ValueError: An argument is out of range, or the outputs on both inputs differ in structure.

    Example:
        Randomised response that tells the truth with probability 3/4 loses log 3 = 1.0986:

        >>> import jax
        >>> def respond(key, bit):
        ...     return bit ^ jax.random.bernoulli(key, 0.25)
        >>> report = sequential(jax.random.key(0), respond, False, True, epsilon=0.5)
        >>> report.refuted, report.runs < 1000, 0.5 <= report.epsilon_lower < 1.0986
        (True, True, True)
    """
    started = time.perf_counter()
    _check.key(key)
    confidence = check_share("confidence", confidence)
    total = _pairs(max_samples)
    run, (epsilon, delta) = sampler_of(mechanism), check_claim(mechanism, epsilon, delta)
    devices = check_devices(devices)
    resolution = check_stream(mechanism, score, resolution, progress)
    report = progress or (lambda share: None)
    target = -math.log(1.0 - confidence)
    epsilons = _betting.grid(epsilon)
    claim = int(np.searchsorted(epsilons, epsilon))

    def stream(number: int) -> Stream:
        options = {"score": score, "resolution": resolution} if score is not None else {}
        part = jax.random.fold_in(key, number)
        return Stream(part, run, (summary, neighbour), devices, total=2 * total, progress=None, **options)

    first = stream(0)
    predictions, wealth, best = _bet_on_pairs(
        first, min(total, _DRAWS[-1]), epsilons, claim, epsilon, delta, target, score is not None, report, total
    )
    stages, used, stopped = [], predictions.shape[1], "max_samples"
    for end in _STAGES:
        if np.all(best[: claim + 1] >= target) or stopped == "futile":
            break
        end = min(end, total)
        pilot = max((end - used) // 12, 256)
        if end - used - pilot < 2 * _blocks.BLOCK:
            break
        source = stream(len(stages) + 1)
        options = {"alpha": 1.0 - confidence, "epsilon": epsilon, "delta": delta, "test": "clopper-pearson"}
        event = source.select(pilot, end - used - pilot, **options)
        used += pilot
        bets = _betting.StageBets(event.main, event.nested + 1, epsilons, delta)
        calls = []
        while (end - used) >= _blocks.BLOCK and stopped != "futile":
            blocks = min(max(source.counted // 4, 1), (end - used) // _blocks.BLOCK)
            counts = source.count(event, blocks)
            calls.append(counts)
            used += blocks * _blocks.BLOCK
            wealth = wealth + bets.update(counts)
            best = np.maximum(best, wealth)
            report(used / total)
            if np.all(best[: claim + 1] >= target):
                break
            hopeless = wealth[claim] + _prospect(bets, event.main, claim) * (total - used) < target
            if futility and used >= _FUTILE_FROM and hopeless:
                stopped = "futile"
        stages.append(Stage(event.text, event.reverse, event.main, pilot, _ints(calls)))
    if np.all(best[: claim + 1] >= target):
        stopped = "refuted"
    report(1.0)
    # All streams share their compiled programs.
    compiling = first.seconds_compile
    return SequentialReport(
        mechanism=name_of(mechanism),
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        max_samples=2 * total,
        stopped=stopped,
        predictions=_ints(predictions),
        evidence="scores of single outputs" if score is not None else "predictions of single outputs, learned online",
        stages=tuple(stages),
        devices=f"{len(devices)} {devices[0].platform}",
        seconds_compile=compiling,
        seconds_run=time.perf_counter() - started - compiling,
    )


def _bet_on_pairs(
    source: Stream,
    pairs: int,
    epsilons: np.ndarray,
    claim: int,
    epsilon: float,
    delta: float,
    target: float,
    scored: bool,
    report: Callable,
    total: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions (2, pairs used), log wealth and its largest value so far (epsilons,)."""
    game = _betting.Runs(epsilons, delta)
    best, made = np.zeros(len(epsilons)), []
    predictor = _predictor.Predictor(source.layout, epsilon, scored)
    draws = iter(enumerate(_DRAWS))
    for start, stop in _betting.blocks(pairs):
        while stop > predictor.size:
            part, size = next(draws)
            predictor.extend(source.outputs(part, min(size, pairs) - predictor.size))
        units = _predictor.as_units(predictor.predict(start, stop), epsilon)
        path = game.update(units)
        largest = np.maximum(best, np.maximum.accumulate(path, axis=0))
        done = np.flatnonzero(np.all(largest[:, : claim + 1] >= target, axis=1))
        length = int(done[0]) + 1 if len(done) else stop - start
        made.append(units[:, :length])
        best = largest[length - 1]
        report((start + length) / total)
        if len(done):
            break
    return np.concatenate(made, axis=1), game.log_wealth, best


def _prospect(bets: _betting.StageBets, main: int, claim: int) -> float:
    """Log growth per pair that the event would bring if chance had hidden as much of a violation as is plausible."""
    pairs = float(bets.seen[0].sum())
    hits = bets.seen[:, : main + 1].sum(axis=1)
    rates = (hits + 1.0) / (pairs + 2.0)
    spread = _OPTIMISM * np.sqrt(rates * (1.0 - rates) / pairs)
    prospects = []
    for sign in (1.0, -1.0):
        optimistic = np.clip(rates + sign * np.array([spread[0], -spread[1]]), 1e-12, 1.0 - 1e-12)
        prospects.append(bets.forecast(optimistic)[claim])
    return max(prospects)


def _pairs(value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or not 100 <= value <= 2**45:
        raise ValueError(f"max_samples must be an integer from 100 to 2**45, got {value!r}")
    return int(value) // 2


def _ints(array: Any) -> tuple:
    """Nested tuples of Python integers."""

    def convert(nested: Any) -> Any:
        return tuple(convert(each) for each in nested) if isinstance(nested, list) else nested

    return convert(np.asarray(array).tolist())
