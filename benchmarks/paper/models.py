"""Models whose losses are released: trained here with fixed seeds, kept with their test metrics.

Gradient-boosted trees (xgboost's defaults, 80/20 split) on tables, a network with one hidden layer on MNIST, a small
convolutional one on CIFAR-10.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.paper import data
from benchmarks.paper.study import Settings

OUT = Path(__file__).resolve().parent / "out" / "models"


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A model and what is released of it.

    Attributes:
        name: Identifies it in results.
        title: For figures.
        kind: "binary", "multiclass" or "regression".
        limit: Of the logits; for regression the upper end of the range of predictions and targets (the lower is 0).
        unit: Of the targets.
        train: Settings -> (outputs, labels, facts) on the test part; logits or predictions.
    """

    name: str
    title: str
    kind: str
    limit: float
    unit: str
    train: Callable[[Settings], tuple[np.ndarray, np.ndarray, dict[str, Any]]]


def outputs(task: Task, settings: Settings) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Outputs and labels on the test part, and the model's facts; trained once."""
    path = OUT / f"{task.name}{'-quick' if settings.quick else ''}-{settings.seed}.npz"
    if path.exists():
        with np.load(path) as kept:
            return kept["outputs"], kept["labels"], json.loads(str(kept["facts"]))
    made, labels, facts = task.train(settings)
    made = np.asarray(made, np.float32)
    facts = {"test_rows": len(labels), **facts, **metrics(task.kind, made, labels)}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, outputs=made, labels=labels, facts=json.dumps(facts))
    return made, labels, facts


def metrics(kind: str, outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Test metrics, of unclipped outputs."""
    made = outputs.astype(np.float64)
    if kind == "regression":
        error = made - labels
        r2 = 1.0 - np.mean(error**2) / np.var(labels.astype(np.float64))
        return {"mse": float(np.mean(error**2)), "mae": float(np.mean(np.abs(error))), "r2": float(r2)}
    if kind == "binary":
        sign = np.where(labels > 0, -made, made)
        right = (made > 0) == (labels > 0)
        return {"cross_entropy": float(np.mean(np.logaddexp(0.0, sign))), "accuracy": float(np.mean(right))}
    top = made.max(axis=1, keepdims=True)
    logs = made - top - np.log(np.sum(np.exp(made - top), axis=1, keepdims=True))
    chosen = logs[np.arange(len(labels)), labels]
    return {"cross_entropy": float(-np.mean(chosen)), "accuracy": float(np.mean(made.argmax(axis=1) == labels))}


def _trees(features: np.ndarray, target: np.ndarray, seed: int, *, binary: bool) -> tuple[Any, Any, dict[str, Any]]:
    """Boosted trees with xgboost's defaults on 80% of the rows, evaluated on the others."""
    try:
        import xgboost
    except ImportError as error:
        raise ImportError("this part trains xgboost models: pip install 'jaxdp-privacy[study]'") from error
    order = np.random.default_rng(seed).permutation(len(target))
    cut = len(target) * 4 // 5
    train, test = order[:cut], order[cut:]
    kind = xgboost.XGBClassifier if binary else xgboost.XGBRegressor
    model = kind(random_state=seed, n_jobs=2).fit(features[train], target[train])
    made = model.predict(features[test], output_margin=True) if binary else model.predict(features[test])
    facts = {"model": f"xgboost {xgboost.__version__}, defaults", "train_rows": len(train)}
    return made, target[test], facts


def _table(name: str, target: str, leave_out: tuple[str, ...] = (), *, binary: bool) -> Callable:
    def train(settings: Settings) -> tuple[Any, Any, dict[str, Any]]:
        arrays = data.load(name, settings.folder)
        numeric = {key: value for key, value in arrays.items() if value.dtype.kind in "if"}
        features = [value for key, value in numeric.items() if key != target and key not in leave_out]
        return _trees(np.stack(features, 1).astype(np.float32), arrays[target], settings.seed, binary=binary)

    return train


def _images(name: str, layers: str, epochs: int) -> Callable:
    def train(settings: Settings) -> tuple[Any, Any, dict[str, Any]]:
        arrays = data.load(name, settings.folder)
        parts = [arrays[key] for key in ("x_train", "y_train", "x_test", "y_test")]
        return network(*parts, layers=layers, epochs=epochs, seed=settings.seed)

    return train


def network(
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    layers: str,
    epochs: int,
    seed: int,
    size: int = 128,
    rate: float = 1e-3,
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Trains a network of 10 classes with Adam; "dense" has one hidden layer, "convolutional" two before it."""
    try:
        import optax
    except ImportError as error:
        raise ImportError("this part trains networks with optax: pip install 'jaxdp-privacy[study]'") from error
    start, apply = {"dense": (_dense_parameters, _dense), "convolutional": (_cnn_parameters, _cnn)}[layers]
    scale, shift = 1.0 / 255.0, float(np.mean(x_train)) / 255.0
    x, y = jnp.asarray(x_train), jnp.asarray(y_train, jnp.int32)
    optimiser = optax.adam(rate)
    parameters = start(jax.random.key(seed), x_train.shape[1:])

    def loss(parameters: Any, rows: Any) -> Any:
        logits = apply(parameters, x[rows].astype(jnp.float32) * scale - shift)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]))

    def step(carry: Any, rows: Any) -> tuple[Any, Any]:
        parameters, state = carry
        value, slope = jax.value_and_grad(loss)(parameters, rows)
        change, state = optimiser.update(slope, state)
        return (optax.apply_updates(parameters, change), state), value

    @jax.jit
    def epoch(carry: Any, key: Any) -> tuple[Any, Any]:
        order = jax.random.permutation(key, len(y_train))[: len(y_train) // size * size]
        return jax.lax.scan(step, carry, order.reshape(-1, size))

    carry, losses = (parameters, optimiser.init(parameters)), []
    for index in range(epochs):
        carry, values = epoch(carry, jax.random.fold_in(jax.random.key(seed + 1), index))
        losses.append(float(np.mean(np.asarray(values))))
    logits = jax.jit(lambda parameters, x: apply(parameters, x * scale - shift))
    parts = np.array_split(x_test, max(1, len(x_test) // 1000))
    made = np.concatenate([np.asarray(logits(carry[0], part.astype(np.float32))) for part in parts])
    facts = {"model": f"{layers} network, {epochs} epochs", "train_rows": len(y_train), "train_loss": losses[-1]}
    return made, y_test.astype(np.int32), facts


def _weights(key: Any, shape: tuple[int, ...]) -> Any:
    """He initialisation."""
    return jax.random.normal(key, shape) * np.float32(np.sqrt(2.0 / np.prod(shape[:-1])))


def _dense_parameters(key: Any, shape: tuple[int, ...], hidden: int = 128) -> dict[str, Any]:
    one, two = jax.random.split(key)
    inputs = int(np.prod(shape))
    first, last = _weights(one, (inputs, hidden)), _weights(two, (hidden, 10)) * np.float32(0.1)
    return {"w1": first, "b1": jnp.zeros(hidden), "w2": last, "b2": jnp.zeros(10)}


def _dense(p: dict[str, Any], x: Any) -> Any:
    hidden = jax.nn.relu(x.reshape(len(x), -1) @ p["w1"] + p["b1"][None])
    return hidden @ p["w2"] + p["b2"][None]


def _cnn_parameters(key: Any, shape: tuple[int, ...], channels: tuple[int, int] = (16, 32)) -> dict[str, Any]:
    one, two, three = jax.random.split(key, 3)
    first, second = channels
    after = (shape[0] // 4, shape[1] // 4, second)
    return {
        "c1": _weights(one, (9 * shape[2], first)),
        "c2": _weights(two, (9 * first, second)),
        **_dense_parameters(three, after),
    }


def _cnn(p: dict[str, Any], x: Any) -> Any:
    """Two 3x3 convolutions, each with relu and 2x2 maximum, then the dense network.

    A convolution is one matrix product of shifted images: on CPUs many times faster than XLA's own and its gradient.
    """
    for name in ("c1", "c2"):
        n, height, width, channels = x.shape
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
        patches = jnp.concatenate(shifted, axis=3).reshape(-1, 9 * channels)
        made = jax.nn.relu(patches @ p[name]).reshape(n, height // 2, 2, width // 2, 2, -1)
        x = jnp.max(made, axis=(2, 4))
    return _dense(p, x)


def _sklearn(name: str, quantile: float | None = None) -> Callable:
    """Fallbacks that ship with scikit-learn: digits, and diabetes with the progression above its median as label."""

    def train(settings: Settings) -> tuple[Any, Any, dict[str, Any]]:
        try:
            from sklearn import datasets
        except ImportError as error:
            raise ImportError("this part needs data, or scikit-learn's: pip install 'jaxdp-privacy[study]'") from error
        if name == "digits":
            digits = datasets.load_digits()
            x, y = (digits.images * 15.0).astype(np.uint8), digits.target
            return network(x[:1400], y[:1400], x[1400:], y[1400:], layers="dense", epochs=20, seed=settings.seed)
        found = datasets.load_diabetes(scaled=False)
        target = found.target.astype(np.float32)
        if quantile is not None:
            target = (target > np.quantile(target, quantile)).astype(np.int32)
        return _trees(found.data.astype(np.float32), target, settings.seed, binary=quantile is not None)

    return train


_STUDY = (
    Task("adult", "Adult", "binary", 10.0, "nat", _table("adult", "income_gt_50k", ("is_test",), binary=True)),
    Task("diabetes", "Diabetes (Pima)", "binary", 10.0, "nat", _table("diabetes_pima", "positive", binary=True)),
    Task("mnist", "MNIST", "multiclass", 25.0, "nat", _images("mnist", "dense", 5)),
    Task("cifar10", "CIFAR-10 (8x8)", "multiclass", 25.0, "nat", _images("cifar10_8x8", "convolutional", 10)),
    Task("diamonds", "diamonds price", "regression", 50_000.0, "USD", _table("diamonds", "price", binary=False)),
    Task("abalone", "abalone rings", "regression", 50.0, "rings", _table("abalone", "rings", binary=False)),
    Task(
        "bike",
        "bike rentals an hour",
        "regression",
        5_000.0,
        "rentals",
        _table("bike_hourly", "cnt", ("casual", "registered", "yyyymmdd"), binary=False),
    ),
)
_FALLBACK = (
    Task("sklearn_digits", "digits (scikit-learn)", "multiclass", 25.0, "nat", _sklearn("digits")),
    Task("sklearn_diabetes_label", "diabetes (scikit-learn)", "binary", 10.0, "nat", _sklearn("diabetes", 0.5)),
    Task("sklearn_diabetes", "diabetes (scikit-learn)", "regression", 1000.0, "1", _sklearn("diabetes")),
)


def tasks(settings: Settings, *, regression: bool) -> list[Task]:
    """Those of the study; the fallbacks in a quick run and where there is no data."""
    chosen = _FALLBACK if settings.quick or settings.folder is None else _STUDY
    return [task for task in chosen if (task.kind == "regression") == regression]
