"""The arguments of audits, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdp._check import devices as check_devices
from jaxdp.audit import _certificates
from jaxdp.audit.targets import Batched, Foreign

__all__ = [
    "check_claim",
    "check_concrete",
    "check_devices",
    "check_number",
    "check_samples",
    "check_share",
    "check_stream",
    "check_test",
    "name_of",
    "sampler_of",
]


def check_samples(value: Any) -> int:
    """num_samples as an int."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or not 100 <= value <= 2**45:
        raise ValueError(f"num_samples must be an integer from 100 to 2**45, got {value!r}")
    return int(value)


def check_concrete(*inputs: Any) -> None:
    """Refuses traced inputs: an audit decides on the host, between calls of its compiled programs."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(inputs)):
        raise ValueError(
            "key and inputs must be concrete: an audit does not run inside of jit, vmap or scan, got tracers"
        )


def check_stream(mechanism: Any, score: Any, resolution: Any, progress: Any) -> float:
    """Checks what the audits of samples have in common; the resolution as a float."""
    if progress is not None and not callable(progress):
        raise ValueError(f"progress must be a function of one number, got {progress!r}")
    if score is not None and not callable(score):
        raise ValueError(f"score must be a function of one output, got {score!r}")
    if score is not None and isinstance(mechanism, Foreign):
        raise ValueError(f"score must be None for a Foreign function, got {score!r}")
    number = check_number("resolution", resolution)
    if not 1e-30 <= number <= 1e30:
        raise ValueError(f"resolution must lie in [1e-30, 1e30], got {resolution!r}")
    return number


def check_share(name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    number = check_number(name, value)
    if not 0.0 < number < 1.0 or not 0.0 < 1.0 - number < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return number


def check_number(name: str, value: Any) -> float:
    """A concrete real number as a float."""
    try:
        number = math.nan if isinstance(value, str | bool | np.bool_) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"{name} must be a real number, got {value!r}")
    return number


def sampler_of(mechanism: Any) -> Callable:
    """The function (key, summary) -> output of a mechanism."""
    if isinstance(mechanism, Batched | Foreign):
        return mechanism
    run = getattr(mechanism, "sample", mechanism)
    if not callable(run):
        raise ValueError(f"mechanism must have a method sample or be a function (key, summary), got {mechanism!r}")
    return run


def check_claim(mechanism: Any, epsilon: Any, delta: Any) -> tuple[float, float]:
    """The claimed epsilon and delta: those given, else those of the mechanism."""
    if epsilon is None or delta is None:
        stated = mechanism.privacy() if hasattr(mechanism, "privacy") else None
        if epsilon is None and stated is None:
            raise ValueError("epsilon must be given for a mechanism without privacy(), got None")
        epsilon = stated.epsilon if epsilon is None else epsilon
        delta = getattr(stated, "delta", 0.0) if delta is None else delta
    claim = check_number("epsilon", epsilon), check_number("delta", delta)
    if not 0.0 <= claim[0] < math.inf:
        raise ValueError(f"epsilon must be nonnegative and finite, got {epsilon!r}")
    if not 0.0 <= claim[1] < 1.0:
        raise ValueError(f"delta must be in [0, 1), got {delta!r}")
    return claim


def check_test(test: Any, delta: float, runs: int, alpha: float) -> str:
    """The test that is asked for, or the one that fits the claim."""
    # A delta costs the label test 2 runs delta of alpha; with fewer runs one side might be left without any.
    possible = 2.0 * runs * delta <= 0.01 * alpha and runs >= 32
    if test is None:
        return _certificates.LABEL if possible else _certificates.CLOPPER_PEARSON
    if test not in _certificates.TESTS:
        raise ValueError(f"test must be one of {', '.join(_certificates.TESTS)}, got {test!r}")
    if test == _certificates.LABEL and not possible:
        needs = "a delta near 0 and 32 certification runs"
        raise ValueError(f"test 'label' needs {needs}, got delta {delta!r} and {runs} runs")
    return test


def name_of(mechanism: Any) -> str:
    """Class of a record, name of a function."""
    if isinstance(mechanism, Batched | Foreign):
        mechanism = mechanism.sample if isinstance(mechanism, Batched) else mechanism.function
    return getattr(mechanism, "__qualname__", type(mechanism).__name__)
