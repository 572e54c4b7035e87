"""A training loop on digits with private metrics and private early stopping, for the tests: plain JAX and optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxdp
from jaxdp import AboveThreshold, AsymmetricSensitivity, Ledger, Privacy

TRAIN, HELD_OUT, BATCH, WIDTH, EPOCHS = 800, 500, 100, 16, 20
RADIUS, GRID = 60, 1024
METRICS = ("cross_entropy", "accuracy", "squared_error", "absolute_error")


def digits():
    """Pictures of 8 x 8 digits: scikit-learn's, or blurred prototypes of ten classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, TRAIN + HELD_OUT)
        x = rng.random((10, 64))[labels] + 0.5 * rng.standard_normal((TRAIN + HELD_OUT, 64))
    else:
        x, labels = load_digits(return_X_y=True)
        x = x / 16.0
    x, labels = x[: TRAIN + HELD_OUT].astype(np.float32), labels[: TRAIN + HELD_OUT].astype(np.int32)
    return (x[:TRAIN], labels[:TRAIN]), (x[TRAIN:], labels[TRAIN:])


DATA, EVALUATION = digits()


def init(key, scale=1.0):
    shapes = [(64, WIDTH), (WIDTH, 10)]
    normal = [jax.random.normal(jax.random.fold_in(key, i), s, jnp.float32) for i, s in enumerate(shapes)]
    return [scale * w / np.sqrt(np.float32(s[0])) for w, s in zip(normal, shapes, strict=True)]


def forward(params, x):
    return jax.nn.relu(x @ params[0]) @ params[1]


def loss(params, x, labels):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(forward(params, x), labels))


def train_epoch(optimizer, params, state):
    """One pass over the training data; as user code runs it, with JAX's default promotion of dtypes."""

    def step(carry, batch):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, *batch), state, params)
        return (optax.apply_updates(params, updates), state), None

    batches = tuple(leaf.reshape(-1, BATCH, *leaf.shape[1:]) for leaf in map(jnp.asarray, DATA))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return jax.lax.scan(step, (params, state), batches)[0]


def records(metric, logits, labels):
    """What the statistic takes, and its public parameters. A digit is also guessed as a number from 0 to 9."""
    if metric == "cross_entropy":
        return (logits, labels), {"limit": 10.0}
    if metric == "accuracy":
        return (jnp.argmax(logits, -1), labels), {}
    guesses = jax.nn.softmax(logits) @ jnp.arange(10, dtype=jnp.float32)
    return (guesses, labels.astype(jnp.float32)), {"lower": 0.0, "upper": 9.0}


def evaluate(key, params, epsilon, evaluation=EVALUATION, mechanism="asymmetric", metrics=METRICS):
    """Some metrics, each at epsilon."""
    x, labels = map(jnp.asarray, evaluation)
    logits, released = forward(params, x), {}
    for i, metric in enumerate(metrics):
        data, public = records(metric, logits, labels)
        released[metric] = jaxdp.release(
            jax.random.fold_in(key, i),
            *data,
            statistic=metric,
            epsilon=epsilon,
            mechanism=mechanism,
            radius=RADIUS,
            grid_size=GRID,
            **public,
        )
    return released


def true_metrics(params):
    logits, labels = np.asarray(forward(params, EVALUATION[0]), np.float64), EVALUATION[1]
    clipped = np.clip(logits, -10.0, 10.0)
    log_p = clipped - np.log(np.sum(np.exp(clipped), axis=1, keepdims=True))
    softmax = np.exp(logits - logits.max(axis=1, keepdims=True))
    guesses = softmax @ np.arange(10.0) / softmax.sum(axis=1)
    return {
        "cross_entropy": -np.mean(log_p[np.arange(len(labels)), labels]),
        "accuracy": np.mean(logits.argmax(axis=1) == labels),
        "squared_error": np.mean((guesses - labels) ** 2),
        "absolute_error": np.mean(np.abs(guesses - labels)),
    }


def count_right(params):
    """An integer: its sensitivity is 1 and no float rounds it. Divided by the number of records, the accuracy."""
    x, labels = map(jnp.asarray, EVALUATION)
    return jnp.sum(jnp.argmax(forward(params, x), -1).astype(jnp.int32) == labels, dtype=jnp.int32)


def run(key, epsilon):
    """A whole run: everything is in the carry. Private metrics every epoch, until a private test stops it."""
    optimizer = optax.sgd(0.5, momentum=0.9)
    stop = AboveThreshold(threshold=0.85 * HELD_OUT, sensitivity=1.0, epsilon=epsilon)
    ledger = Ledger.of(evaluation=AsymmetricSensitivity(epsilon), stopping=stop, training=Privacy(2.0, 1e-6))
    params, noise = init(jax.random.fold_in(key, 0)), jax.random.fold_in(key, 1)

    def epoch(carry, i):
        def work(carry):
            params, state, stream, ledger, _ = carry
            params, state = train_epoch(optimizer, params, state)
            released = evaluate(jax.random.fold_in(noise, i), params, epsilon)
            stream, halted = stop.step(stream, count_right(params))
            return (params, state, stream, ledger.spend("evaluation", times=len(METRICS)), halted), released

        def rest(carry):
            return carry, dict.fromkeys(METRICS, jnp.full((), jnp.nan))

        halted = carry[-1]
        carry, released = jax.lax.cond(halted, rest, work, carry)
        return carry, (released, ~halted)

    stream = stop.init(jax.random.fold_in(key, 2), jnp.int32)
    start = params, optimizer.init(params), stream, ledger.spend("stopping").spend("training"), jnp.bool_(False)
    (params, *_, ledger, _), (released, ran) = jax.lax.scan(epoch, start, jnp.arange(EPOCHS))
    return params, ledger, released, ran
