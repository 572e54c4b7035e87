"""A session whose certification runs come in pieces, so that decisions can be taken between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdp.audit import _blocks, _session
from jaxdp.audit._events import Event

__all__ = ["Stream"]


class Stream(_session.Session):
    """Like `Session`; the pieces of the certification are consecutive blocks, so that no run is counted twice."""

    counted = 0
    """Blocks counted so far."""

    def outputs(self, part: int, pairs: int) -> list[list[np.ndarray]]:
        """Outputs of both sides, coordinates, statistics and rows as codes; each part (0, 1, 2) has its own keys."""
        return [
            engine.draw(self.keys, side, part, number, pairs)
            for number, (engine, side) in enumerate(zip(self.engines, self.sides, strict=True))
        ]

    def count(self, event: Event, blocks: int) -> np.ndarray:
        """Counts (2, levels + 1) of the next blocks of both sides, by level of the event's nested family."""
        runs = (self.counted + blocks) * _blocks.BLOCK
        hits = event.hits(self.certify(event, (runs, runs)))
        return np.diff(hits, axis=1, prepend=0, append=blocks * _blocks.BLOCK)

    def _count(self, part: int, runs: Any, choice: Any, shape: tuple[int, ...], first: int = 0) -> np.ndarray:
        if part != _session._CERTIFICATION:
            return super()._count(part, runs, choice, shape, first)
        counts = super()._count(part, runs, choice, shape, self.counted)
        self.counted = runs[0] // _blocks.BLOCK
        return counts
