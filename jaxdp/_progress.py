"""A progress bar on a terminal."""

from __future__ import annotations

import sys

__all__ = ["Progress"]


class Progress:
    """A bar on standard error for `total` parts of work; silent where that is not a terminal.

    Args:
        total: Number of parts.
        width: Of the longest name.
    """

    def __init__(self, total: int, width: int) -> None:
        self.done, self.total, self.width = 0, total, width
        self.shown = sys.stderr.isatty()

    def show(self, name: str, fraction: float) -> None:
        """Draws the bar where `done` parts and a fraction of the next one are finished."""
        if self.shown:
            share = (self.done + fraction) / self.total
            filled = int(30 * share)
            bar = "#" * filled + "." * (30 - filled)
            print(f"\r[{bar}] {share:4.0%} {name:{self.width}}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Wipes the line."""
        if self.shown:
            print("\r" + " " * (38 + self.width) + "\r", end="", file=sys.stderr, flush=True)
