"""Where and with what figures are measured: devices, versions, commit, and the peak of memory."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from typing import Any

import jax


def facts() -> dict[str, Any]:
    """Where and with what the figures were measured."""
    packages = ("jax", "jaxlib", "numpy", "scipy", "opendp", "diffprivlib")
    device = jax.devices()[0]
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": f"{len(jax.devices())} x {device.platform} ({device.device_kind})",
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "commit": _commit(),
    }


class Peak:
    """Highest use of memory inside a `with` block, in `bytes`; 0 where the platform does not tell.

    On Linux with CPU devices: how far the resident memory of the process rose above where it was on entry, which
    reused memory does not show. On an accelerator: the highest use since the process started, as its allocator says.
    """

    bytes = 0

    def __enter__(self) -> Peak:
        self._reset, self._before = False, 0
        if jax.devices()[0].platform == "cpu":
            try:
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")
                self._reset, self._before = True, _status("VmRSS")
            except OSError:
                pass
        return self

    def __exit__(self, *exception: object) -> None:
        if self._reset:
            self.bytes = max(0, _status("VmHWM") - self._before)
        elif statistics := jax.devices()[0].memory_stats():
            self.bytes = int(statistics.get("peak_bytes_in_use", 0))


def _status(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit, with a star where the working tree differs from it."""
    command = ["git", "-C", os.path.dirname(__file__)]
    try:
        head = subprocess.run([*command, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*command, "diff", "--quiet", "HEAD"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + "*" * changed
