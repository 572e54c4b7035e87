"""The study's data sets: where they come from, and checks that a file is the one the study used.

A data set is one .npz file with one array a column. They are looked for in --data, then in JAXDP_DATA, then in
../shared/data beside the repository. Without them the study runs on what ships with scikit-learn and on synthetic
columns, under other names: it never passes one for the other.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from pathlib import Path

import numpy as np

VARIABLE = "JAXDP_DATA"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"

ROWS = {
    "variance_columns": {
        "diamonds_price": 53_940,
        "abalone_rings": 4_177,
        "bike_hourly_cnt": 17_379,
        "adult_age": 48_842,
        "adult_hours_per_week": 48_842,
    },
    "diamonds": dict.fromkeys(("price", "carat", "depth", "table", "x", "y", "z", "cut", "color", "clarity"), 53_940),
    "abalone": {"rings": 4_177, "sex": 4_177},
    "bike_hourly": {"cnt": 17_379, "hr": 17_379},
    "adult": {"income_gt_50k": 48_842, "age": 48_842},
    "diabetes_pima": {"positive": 768},
    "mnist": {"x_train": 60_000, "y_train": 60_000, "x_test": 3_000, "y_test": 3_000},
    "cifar10_8x8": {"x_train": 50_000, "y_train": 50_000, "x_test": 10_000, "y_test": 10_000},
}
"""Arrays that the study reads, and their lengths."""

NUMBERS = {
    ("variance_columns", "diamonds_price"): (3932.800, 15_915_334.36, 326, 18_823),
    ("variance_columns", "abalone_rings"): (9.934, 10.39, 1, 29),
    ("variance_columns", "bike_hourly_cnt"): (189.463, 32_899.57, 1, 977),
    ("variance_columns", "adult_age"): (38.644, 187.97, 17, 90),
    ("variance_columns", "adult_hours_per_week"): (40.422, 153.54, 1, 99),
    ("diamonds", "price"): (3932.800, 15_915_334.36, 326, 18_823),
    ("abalone", "rings"): (9.934, 10.39, 1, 29),
    ("bike_hourly", "cnt"): (189.463, 32_899.57, 1, 977),
    ("adult", "income_gt_50k"): (0.2393, 0.18203, 0, 1),
    ("diabetes_pima", "positive"): (0.349, 0.2272, 0, 1),
    ("mnist", "x_train"): (33.318, 6172.85, 0, 255),
    ("mnist", "y_train"): (4.4539, 8.3482, 0, 9),
    ("cifar10_8x8", "y_train"): (4.5, 8.25, 0, 9),
}
"""Mean, population variance, least and largest value of the whole array."""

ORIGINS = {
    "variance_columns": "diamonds_price, abalone_rings, bike_hourly_cnt, adult_age, adult_hours_per_week (int32): "
    "the columns price, rings, cnt, age and hours-per-week of the next files, in their order",
    "diamonds": "diamonds.csv of the R package ggplot2, also plotnine/data/diamonds.csv of plotnine on PyPI; cut, "
    "color, clarity as codes",
    "abalone": "UCI machine learning repository, Abalone; sex as codes",
    "bike_hourly": "UCI machine learning repository, Bike Sharing, hour.csv",
    "adult": "UCI machine learning repository, Adult: adult.data followed by adult.test; categories as codes, "
    "income_gt_50k as 0 or 1",
    "diabetes_pima": "Pima Indians diabetes, e.g. on OpenML (data set 37); the label as `positive`, 0 or 1",
    "mnist": "MNIST: x_train (60000, 28, 28) uint8, y_train, and the first 3,000 test images as x_test, y_test",
    "cifar10_8x8": "CIFAR-10, each image averaged over 4x4 blocks: x_train (50000, 8, 8, 3) uint8, y_train, x_test, "
    "y_test",
}


class DataMissing(FileNotFoundError):
    """A data set is not there; the message says where to get it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """A numeric column with the public range of its values.

    Attributes:
        name: Identifies it in results.
        title: For figures, with the unit of the values.
        unit: The unit of the values.
        values: (N,) float32, the whole column.
        lower: Public range.
        upper: Its upper end.
    """

    name: str
    title: str
    unit: str
    values: np.ndarray
    lower: float
    upper: float


def directory(option: str | Path | None = None) -> Path | None:
    """The folder with data sets, or None."""
    for place in (option, os.environ.get(VARIABLE)):
        if place:
            if not Path(place).is_dir():
                raise DataMissing(f"data directory {place!s} does not exist")
            return Path(place)
    return _BESIDE if _BESIDE.is_dir() else None


@functools.cache
def load(name: str, folder: Path | None) -> dict[str, np.ndarray]:
    """All arrays of a data set, checked.

    Raises:
        DataMissing: If the file is not there.
        ValueError: If an array is missing, or is not the one the study used.
    """
    if name not in ROWS:
        raise ValueError(f"name must be one of {', '.join(ROWS)}, got {name!r}")
    path = None if folder is None else folder / f"{name}.npz"
    if path is None or not path.is_file():
        raise DataMissing(
            f"{name}.npz was not found in {folder or 'any data directory'}. It holds one NumPy array a column, in the "
            f"order of the source: {ORIGINS[name]}. Put it into a folder and name that folder with --data or "
            f"the variable {VARIABLE}."
        )
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    for key, rows in ROWS[name].items():
        if key not in arrays:
            raise ValueError(f"{path.name} must have an array {key!r}, got {', '.join(sorted(arrays))}")
        if len(arrays[key]) != rows:
            raise ValueError(f"{path.name}: {key} must have {rows:,} rows, got {len(arrays[key]):,}")
        if expected := NUMBERS.get((name, key)):
            check_numbers(f"{path.name}: {key}", arrays[key], expected)
    return arrays


def check_numbers(title: str, values: np.ndarray, expected: tuple) -> None:
    """Mean and variance to four digits, least and largest value exactly."""
    doubles = values.astype(np.float64)
    found = float(doubles.mean()), float(doubles.var()), int(values.min()), int(values.max())
    if not np.allclose(found, expected, rtol=3e-4) or found[2:] != tuple(expected[2:]):
        raise ValueError(f"{title} must have mean, variance, min, max {expected}, got {found}")


_RANGES = {
    "diamonds_price": ("diamonds price", "USD", 0.0, 50_000.0),
    "abalone_rings": ("abalone rings", "rings", 0.0, 50.0),
    "bike_hourly_cnt": ("bike rentals an hour", "rentals", 0.0, 5_000.0),
    "adult_age": ("adult age", "years", 0.0, 125.0),
    "adult_hours_per_week": ("adult hours a week", "hours", 0.0, 168.0),
}


def columns(folder: Path | None) -> list[Column]:
    """The five columns of the study, or the fallbacks where their file is not there."""
    try:
        arrays = load("variance_columns", folder)
    except DataMissing:
        return fallback_columns()
    return [
        Column(name, title, unit, arrays[name].astype(np.float32), lower, upper)
        for name, (title, unit, lower, upper) in _RANGES.items()
    ]


def fallback_columns() -> list[Column]:
    """Columns for those without data: of scikit-learn's diabetes data, where that is installed, and synthetic ones."""
    found = [synthetic()["gamma"]]
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn import datasets

        diabetes = datasets.load_diabetes(scaled=False)
        age, progression = diabetes.data[:, 0].astype(np.float32), diabetes.target.astype(np.float32)
        found += [
            Column("sklearn_diabetes_age", "age (scikit-learn diabetes)", "years", age, 0.0, 125.0),
            Column(
                "sklearn_diabetes_progression", "progression (scikit-learn diabetes)", "1", progression, 0.0, 1000.0
            ),
        ]
    return found


@functools.cache
def synthetic(size: int = 20_000) -> dict[str, Column]:
    """Public synthetic columns by name; lognormal and uniform are those on which the asymmetric mechanism loses."""
    rng = np.random.default_rng(7)
    drawn = {
        "gamma": ("gamma, shape 2", rng.gamma(2.0, 10.0, size), 500.0),
        "normal": ("normal, far inside its range", rng.normal(40.0, 12.0, size), 250.0),
        "counts": ("geometric counts", rng.geometric(0.05, size), 600.0),
        "lognormal_mild": ("lognormal, sigma 0.6", rng.lognormal(3.0, 0.6, size), 1_000.0),
        "beta": ("50 beta(2, 5)", 50.0 * rng.beta(2.0, 5.0, size), 200.0),
        "lognormal": ("lognormal, sigma 2", rng.lognormal(0.0, 2.0, size), 1_000.0),
        "uniform": ("uniform on its whole range", rng.uniform(0.0, 100.0, size), 100.0),
        "wide": ("normal, a third of its range", np.abs(rng.normal(40.0, 14.0, size)), 125.0),
    }
    return {
        name: Column(name, title, "1", np.clip(values, 0.0, upper).astype(np.float32), 0.0, upper)
        for name, (title, values, upper) in drawn.items()
    }
