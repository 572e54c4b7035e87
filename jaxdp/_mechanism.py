"""The decorator that makes a class of public parameters a mechanism."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

__all__ = ["examples", "mechanism", "neighbours", "static"]

_REGISTRY: dict[type, tuple[Callable, Callable]] = {}


def static(default: Any = dataclasses.MISSING) -> Any:
    """A keyword-only field that is part of the program (a flag, a count), not a number that may be traced."""
    return dataclasses.field(default=default, kw_only=True, metadata={"static": True})


def mechanism(*, examples: Callable, neighbours: Callable) -> Callable[[type], type]:
    """Registers a class as a mechanism: a frozen dataclass and pytree of parameters.

    Fields declared with `static()` become part of the tree's structure, all others are leaves, so that records
    can be passed through jit and vmap (a batch of records is a record of arrays). Records compare and hash by
    identity, since leaves may be arrays. There is no `__post_init__`: unflattening puts tracers into the fields.

    Args:
        examples: epsilon -> {label: record}, the variants that the contract tests and the command line use.
        neighbours: (record, numpy Generator) -> (summary, summary'), a random pair that is neighbouring
            according to the record's summary contract.
    """

    def register(cls: type) -> type:
        cls = jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, eq=False)(cls))
        _REGISTRY[cls] = (examples, neighbours)
        return cls

    return register


def examples(epsilon: float = 1.0) -> Iterator[tuple[str, Any]]:
    """All registered variants as (label, record), with total budget `epsilon`."""
    for make, _ in _REGISTRY.values():
        yield from make(epsilon).items()


def neighbours(record: Any, rng: Any) -> tuple[Any, Any]:
    """A random pair of neighbouring summaries for `record`."""
    return _REGISTRY[type(record)][1](record, rng)
