"""Black-box Monte-Carlo audits: a certified lower bound on the privacy loss of any sampler, from streamed counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxdp import _check
from jaxdp.audit import _arguments
from jaxdp.audit._session import Session, sides
from jaxdp.audit.report import AuditReport

__all__ = ["monte_carlo"]


def monte_carlo(
    key: jax.Array,
    mechanism: Any,
    summary: Any,
    neighbour: Any,
    *,
    num_samples: int = 2**20,
    confidence: float = 0.95,
    epsilon: float | None = None,
    delta: float | None = None,
    selection: float | None = None,
    test: str | None = None,
    score: Callable[[Any], Any] | None = None,
    resolution: float = 1e-4,
    bits: bool = False,
    devices: Sequence[Any] | None = None,
    progress: Callable[[float], Any] | None = None,
) -> AuditReport:
    """Certifies a lower bound on the privacy loss of a mechanism on two neighbouring inputs, from samples alone.

    A pilot (a share of the runs) chooses an event S and a direction by the certificate that it predicts;
    fresh runs then count how often S happens on both inputs. With probability at least `confidence` over the
    certification runs, epsilon_lower is at most the true epsilon (at the claimed delta):

        label            epsilon_lower = log((1 - U) / U), U the upper limit, at alpha = 1 - confidence, of the share of
                         the neighbour among all hits, where each run picked its input by a fair coin;
        clopper-pearson  epsilon_lower = log((L - delta) / U), L and U limits of P(S) on the one and the other input
                         at alpha / 2 each.

    All limits are exact (Clopper-Pearson), the certificate is at least 0. The claim is refuted if epsilon_lower exceeds
    it. This holds for every mechanism; the choice of the event only decides how much is certified. Other pairs of
    inputs may lose more: nothing here shows that a claim is right.

    Runs are independent given the key, and the counts are the same for any number of devices (see
    `jaxdp.audit._blocks` for the keys). Memory does not grow with num_samples.

    Args:
        key: One typed key. Consumed.
        mechanism: An object with `sample(key, summary)` and `privacy()`; or, with `epsilon`, a function (key, summary)
            -> output, a `Batched` sampler or a `Foreign` function. An output is a pytree of booleans, integers and
            floats of fixed shapes; NaN and infinities are outputs like others. But for `Foreign` it must be a pure JAX
            function that vmaps over keys, and must not change between audits: its compiled program is kept.
        summary: What the mechanism reads on the one input, any pytree. Both inputs share one compiled program if
            their leaves have equal shapes and survive 32 bits; 64-bit NumPy values that do not are compiled in, exact.
        neighbour: The same on the neighbouring input.
        num_samples: Runs on each input, selection included, at least 100. The label test's coins decide how its
            share of 2 num_samples falls.
        confidence: Confidence of the certificate, in (0, 1).
        epsilon: The claim to test; by default that of `mechanism.privacy()`.
        delta: The claimed delta; by default that of `mechanism.privacy()`, or 0 for a function.
        selection: Share of the runs that chooses the event, in (0, 1). By default 0.2; with a score, whose thresholds
            need fewer, the share that 2^18 runs are, but at least 0.02 and at most 0.2.
        test: "label" or "clopper-pearson"; by default the label test, which needs fewer runs, where delta is 0 or so
            small that the runs could not show it, and Clopper-Pearson elsewhere.
        score: A pure JAX function output -> real number whose thresholds are then the only events: best the logarithm
            of the likelihood ratio of summary over neighbour, where the law is known. It must not change either.
        resolution: Scores are rounded to multiples of this, in float32, so that the last bits of floats are no event.
        bits: Whether the lowest bits of up to 16 floats are events too. They show how floats are computed: noise that
            is added in floating point is refuted by them, and by nothing else in so few runs.
        devices: Devices to spread the blocks over; by default all of `jax.devices()`.
        progress: Called with the share of the work done, from 0 to 1, between steps.

    Returns:
        An AuditReport.

    Raises:
        ValueError: An argument is out of range, or the outputs on both inputs differ in structure.

    Example:
        Randomised response that tells the truth with probability 3/4 loses log 3 = 1.0986:

        >>> import jax
        >>> def respond(key, bit):
        ...     return bit ^ jax.random.bernoulli(key, 0.25)
        >>> report = monte_carlo(jax.random.key(0), respond, False, True, epsilon=1.0, confidence=0.999)
        >>> report.refuted, report.event in ("output in {False}", "output in {True}")
        (True, True)
        >>> 1.07 < report.epsilon_lower < 1.0986
        True
    """
    started = time.perf_counter()
    _check.key(key)
    _arguments.check_concrete(key, summary, neighbour)
    num_samples = _arguments.check_samples(num_samples)
    confidence = _arguments.check_share("confidence", confidence)
    if selection is None:
        selection = 0.2 if score is None else min(0.2, max(0.02, 2**18 / num_samples))
    selection = _arguments.check_share("selection", selection)
    run, (epsilon, delta) = _arguments.sampler_of(mechanism), _arguments.check_claim(mechanism, epsilon, delta)
    devices = _arguments.check_devices(devices)
    resolution = _arguments.check_stream(mechanism, score, resolution, progress)
    pilot = min(max(round(selection * num_samples), 2), num_samples - 1)
    runs = num_samples - pilot
    test = _arguments.check_test(test, delta, runs, 1.0 - confidence)
    session = Session(
        key,
        run,
        (summary, neighbour),
        devices,
        total=num_samples,
        progress=progress,
        score=score,
        resolution=resolution,
        bits=bool(bits),
    )
    event = session.select(pilot, runs, alpha=1.0 - confidence, epsilon=epsilon, delta=delta, test=test)
    planned = sides(key, runs, test)
    hits = event.hits(session.certify(event, planned))
    if event.reverse:
        planned = planned[::-1]
    one, other = hits[::-1] if event.reverse else hits
    seconds = time.perf_counter() - started
    return AuditReport(
        mechanism=_arguments.name_of(mechanism),
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        num_samples=num_samples,
        event=event.text,
        direction="neighbour over summary" if event.reverse else "summary over neighbour",
        hits=int(one[event.main]),
        runs=planned[0],
        other_hits=int(other[event.main]),
        other_runs=planned[1],
        nested_hits=tuple(one.tolist()),
        nested_other_hits=tuple(other.tolist()),
        devices=f"{len(devices)} {devices[0].platform}",
        seconds_compile=session.seconds_compile,
        seconds_run=seconds - session.seconds_compile,
        test=test,
    )
