"""Training loops: what private evaluation and private early stopping add to an epoch and to a step.

The network has 128 rectified units, the data are 60,000 synthetic pictures of 784 pixels in batches of 128. Once an
epoch the cross-entropy, accuracy, squared and absolute error of 10,000 more are released: promised is at most 5% of an
epoch for that, given the logits. The forward pass of 10,000 pictures takes about 5% of an epoch alone, private or not,
and is shown with both. A step of a private early-stopping stream inside a compiled loop may take 5 microseconds. The
private numbers must be near the others, where the compiled loop halts must follow the exact law, and one program with
all of it must train the same network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.harness import Contestant, Size, agree, check, race

_PIXELS, _UNITS, _BATCH, _CLASSES, _LIMIT = 784, 128, 128, 10, 10.0
_STOP = jaxdp.AboveThreshold(threshold=0.9, sensitivity=1e-4, epsilon=1.0)
_STEPS, _MICROSECONDS = 10_000, 5e-6


def run(size: Size) -> Iterator[dict[str, Any]]:
    import optax  # Here and below: without it the other scripts still run.

    examples, held_out = (1_280, 1_000) if size.quick else (60_000, 10_000)
    data, evaluation = _pictures(examples, 0), _pictures(held_out, 1)
    optimizers = {"Adam": optax.adam(1e-3), "SGD with momentum": optax.sgd(0.1, momentum=0.9)}
    for name, optimizer in list(optimizers.items())[: 1 if size.quick else 2]:
        contestants = _epochs(optimizer, data, evaluation, quick=size.quick)
        facts = {
            "examples": examples,
            "evaluated": held_out,
            "epsilon": 1.0,
            "metrics": 2 if size.quick else 4,
            "dtype": "float32",
        }
        title = f"An epoch of {name}"
        yield from race(title, contestants, size=size, turns=7, **facts)
        calls = {contestant.name: contestant.call for contestant in contestants}
        yield from _agreements(title, calls, held_out)
    loops = _loops()
    yield from race(
        "Early stopping in a compiled loop", loops, size=size, turns=9, unit="step", steps=_STEPS, epsilon=1.0
    )
    yield from _checks(20_000 if size.quick else 200_000)


def _agreements(title: str, calls: dict[str, Callable], evaluated: int) -> Iterator[dict[str, Any]]:
    """Private numbers are near the others; one program trains the same network as the epoch alone does."""
    plain = calls["the same, not private"]()
    # At epsilon 1 the noise is worth some ten records, each of the whole range. The range is a second entry, so that
    # differences are relative to it: a number near 0 is not known to a share of itself.
    ranges = {"accuracy": 1.0, "absolute_error": _CLASSES - 1.0, "squared_error": (_CLASSES - 1.0) ** 2}
    ranges["cross_entropy"] = 2.0 * _LIMIT
    private = {name: calls[name]() for name in calls if name.endswith("private numbers")}
    if "an epoch with all of it, one program" in calls:
        *trained, private["one program"] = calls["an epoch with all of it, one program"]()
        yield agree(f"{title}: the network trained in one program", trained, list(calls["an epoch"]()), within=1e-4)
        same = calls["forward pass and the same, not private"]()
        yield agree(f"{title}: forward pass and the same, not private", same, plain, within=1e-5)
    for name, metrics in private.items():
        for metric, value in metrics.items():
            ours, theirs = ([float(number), ranges[metric]] for number in (value, plain[metric]))
            yield agree(f"{title}: {name}: {metric}", np.array(ours), np.array(theirs), within=40.0 / evaluated)


def _pictures(n: int, seed: int) -> tuple[jax.Array, jax.Array]:
    """Ten prototypes with a fifth of the pixels lit, and noise."""
    prototypes = np.random.default_rng(99).random((_CLASSES, _PIXELS)) < 0.2
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, _CLASSES, n)
    x = 0.5 * prototypes[labels] + 0.4 * rng.standard_normal((n, _PIXELS), np.float32)
    return jnp.asarray(np.clip(x, 0.0, 1.0), jnp.float32), jnp.asarray(labels, jnp.int32)


def _forward(params: tuple, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params[0] + params[1]) @ params[2] + params[3]


def _loss(params: tuple, x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(_cross_entropy(_forward(params, x), labels))


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]


def _start() -> tuple:
    keys = jax.random.split(jax.random.key(0))
    first = jax.random.normal(keys[0], (_PIXELS, _UNITS)) / np.sqrt(_PIXELS)
    second = jax.random.normal(keys[1], (_UNITS, _CLASSES)) / np.sqrt(_UNITS)
    return first, jnp.zeros(_UNITS), second, jnp.zeros(_CLASSES)


def _train(optimizer: Any, params: tuple, state: Any, data: tuple) -> tuple:
    def step(carry: tuple, batch: tuple) -> tuple:
        params, state = carry
        updates, state = optimizer.update(jax.grad(_loss)(params, *batch), state, params)
        return (jax.tree.map(jnp.add, params, updates), state), None

    steps = len(data[0]) // _BATCH
    batches = tuple(leaf[: steps * _BATCH].reshape(steps, _BATCH, *leaf.shape[1:]) for leaf in data)
    return jax.lax.scan(step, (params, state), batches)[0]


def _private(key: jax.Array, logits: jax.Array, labels: jax.Array, quick: bool) -> dict[str, jax.Array]:
    """Four private numbers (two in quick runs, as each takes seconds to compile) at epsilon 1 each."""
    keys, release = jax.random.split(key, 4), functools.partial(jaxdp.release, epsilon=1.0)
    numbers = {
        "cross_entropy": release(keys[0], logits, labels, statistic="cross_entropy", limit=_LIMIT),
        "accuracy": release(keys[1], jnp.argmax(logits, -1), labels, statistic="accuracy"),
    }
    if quick:
        return numbers
    pair = jax.nn.softmax(logits) @ jnp.arange(_CLASSES, dtype=jnp.float32), labels.astype(jnp.float32)
    ends = {"lower": 0.0, "upper": _CLASSES - 1.0}
    return numbers | {
        "squared_error": release(keys[2], *pair, statistic="squared_error", **ends),
        "absolute_error": release(keys[3], *pair, statistic="absolute_error", **ends),
    }


def _plain(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """The same numbers, not private."""
    logits = jnp.clip(logits, -_LIMIT, _LIMIT)
    error = jax.nn.softmax(logits) @ jnp.arange(_CLASSES, dtype=jnp.float32) - labels
    return {
        "cross_entropy": jnp.mean(_cross_entropy(logits, labels)),
        "accuracy": jnp.mean(jnp.argmax(logits, -1) == labels),
        "squared_error": jnp.mean(error**2),
        "absolute_error": jnp.mean(jnp.abs(error)),
    }


# For all optimizers: they take seconds to compile.
_private_jit, _plain_jit = jax.jit(_private, static_argnums=3), jax.jit(_plain)
_private_too = jax.jit(lambda key, params, x, labels: _private(key, _forward(params, x), labels, False))
_plain_too = jax.jit(lambda params, x, labels: _plain(_forward(params, x), labels))


def _epochs(optimizer: Any, data: tuple, evaluation: tuple, *, quick: bool) -> list[Contestant]:
    params, key = _start(), jax.random.key(1)
    state = optimizer.init(params)
    (x, labels), promised = evaluation, None if quick else 20.0
    train = jax.jit(lambda params, state, data: _train(optimizer, params, state, data))

    @jax.jit
    def both(key: jax.Array, params: tuple, state: Any, data: tuple, x: jax.Array, labels: jax.Array) -> tuple:
        params, state = _train(optimizer, params, state, data)
        return params, state, _private(key, _forward(params, x), labels, False)

    trained, _ = train(params, state, data)
    logits = jax.jit(_forward)(trained, x)
    contestants = [
        Contestant("an epoch", lambda: train(params, state, data), reference=True),
        Contestant("private numbers", lambda: _private_jit(key, logits, labels, quick), at_least=promised, calls=5),
        Contestant("the same, not private", lambda: _plain_jit(logits, labels), calls=5),
    ]
    if quick:  # Programs with private numbers take seconds to compile.
        return contestants
    return [
        *contestants,
        Contestant("forward pass and private numbers", lambda: _private_too(key, trained, x, labels), calls=5),
        Contestant("forward pass and the same, not private", lambda: _plain_too(trained, x, labels), calls=5),
        Contestant("an epoch with all of it, one program", lambda: both(key, params, state, data, x, labels)),
    ]


def _loops() -> list[Contestant]:
    scores = jnp.asarray(np.random.default_rng(2).uniform(0.0, 0.85, _STEPS), jnp.float32)

    def private(state: Any, score: jax.Array) -> tuple:
        return _STOP.step(state, score)

    def plain(halted: jax.Array, score: jax.Array) -> tuple:
        halted |= score >= 0.9
        return halted, halted

    with_stop = jax.jit(lambda key, scores: jax.lax.scan(private, _STOP.init(key), scores))
    without = jax.jit(lambda scores: jax.lax.scan(plain, jnp.bool_(False), scores))
    key = jax.random.key(3)
    return [
        Contestant("a plain comparison", lambda: without(scores), _STEPS, reference=True, calls=5),
        Contestant(
            "AboveThreshold.step",
            lambda: with_stop(key, scores),
            _STEPS,
            at_most=_STEPS * _MICROSECONDS,
            calls=5,
        ),
    ]


def _checks(runs: int) -> Iterator[dict[str, Any]]:
    """Where streams halt in a loop follows the exact law."""
    scores = np.array([0.8995, 0.8998, 0.9, 0.8999, 0.9001, 0.9002], np.float32)

    def halt(key: jax.Array, stop: Any) -> jax.Array:
        _, halted = jax.lax.scan(stop.step, stop.init(key), jnp.asarray(scores))
        return jnp.where(jnp.any(halted), jnp.argmax(halted), len(scores))

    keys = jax.random.split(jax.random.key(4), runs)
    other = jaxdp.AboveThreshold(threshold=0.9, sensitivity=1e-4, epsilon=1.3)
    for title, stop, differ in (("early stopping", _STOP, False), ("early stopping, epsilon 30% off", other, True)):
        law: Callable = _STOP.law
        counts = np.bincount(jax.jit(jax.vmap(lambda key, stop=stop: halt(key, stop)))(keys), minlength=len(scores) + 1)
        yield check(f"Steps of a loop: {title}", counts, law(scores).log_p, differ=differ)
