"""What keeps records of float64 arrays the same when they are pickled."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class Pickles:
    """Pickles arrays as NumPy's: JAX's would come back in 32 bits in a 32-bit program, as another law."""

    def __getstate__(self) -> dict[str, Any]:
        return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, vars(self))
