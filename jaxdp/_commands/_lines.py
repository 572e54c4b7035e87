"""What the tables of the commands share."""

from __future__ import annotations

import jax

__all__ = ["devices", "line"]


def line(cells: list[str], width: int) -> str:
    """A row of a table: a name, numbers, and a last cell as it is."""
    name, *numbers, verdict = cells
    return f"{name:{width}}" + "".join(f"{cell:>11}" for cell in numbers) + f"  {verdict}"


def devices() -> str:
    """Number and kind of the devices."""
    devices = jax.devices()
    return f"{len(devices)} {devices[0].platform.upper()} device{'s' if len(devices) > 1 else ''}"
