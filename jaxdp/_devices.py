"""Arrays on several devices, those of other processes included."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "devices"


def mesh(devices: tuple[Any, ...]) -> Mesh:
    """All devices in a row."""
    return Mesh(np.array(devices), (AXIS,))


def replicate(array: Any, mesh: Mesh) -> jax.Array:
    """A copy for every device; all processes have to hold the same values."""
    placement = NamedSharding(mesh, PartitionSpec())
    if placement.is_fully_addressable:
        return jax.device_put(array, placement)
    array = jnp.asarray(array)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = replicate(jax.random.key_data(array), mesh)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, placement, lambda index: host[index])


def to_host(array: Any) -> np.ndarray:
    """An array with the shares of all devices; all processes have to make the call."""
    if getattr(array, "is_fully_addressable", True):
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
