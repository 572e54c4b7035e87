"""Runs the parts of the study: a progress bar, one file a finished cell, JSON and a figure for each part."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import machine
from benchmarks.paper import report, style
from benchmarks.paper.study import Settings

HERE = Path(__file__).resolve().parent
PARTS = (
    "figure1",
    "figure2",
    "figure3",
    "figure4",
    "figure5",
    "figure6",
    "figure7",
    "unbounded",
    "beta",
    "statistics",
    "sizes",
    "tuning",
    "speed",
)


def module(name: str) -> ModuleType:
    """The script of a part: `cells(settings)` gives functions of nothing by label; `draw` and `table` take results."""
    return importlib.import_module(f"benchmarks.paper.{name}")


def run(names: list[str], settings: Settings, *, out: Path | None = None, fresh: bool = False) -> dict[str, Any]:
    """Runs parts; writes results, figures and, where all parts are there, the page.

    Args:
        names: Of parts.
        settings: Of the study.
        out: Folder of the results; by default `results`, or `out/quick` for a quick run.
        fresh: Forget finished cells.
    """
    out = out or HERE / ("out/quick" if settings.quick else "results")
    out.mkdir(parents=True, exist_ok=True)
    kept = (HERE / "out" if out == HERE / "results" else out) / "cells" / _fingerprint(settings)
    kept.mkdir(parents=True, exist_ok=True)
    work = {name: module(name).cells(settings) for name in names}
    bar, found = Progress(sum(map(len, work.values()))), {}
    for name, cells in work.items():
        results, seconds, cpu = {}, 0.0, 0.0
        for label, call in cells.items():
            bar.show(f"{name}: {label}")
            made = _cell(kept / f"{name}-{_slug(label)}.json", call, fresh)
            results[label], seconds, cpu = made["result"], seconds + made["seconds"], cpu + made["cpu"]
            bar.done += 1
        found[name] = results
        record = {"part": name, "settings": settings.facts(), "machine": machine.facts()}
        record |= {"seconds": seconds, "cpu_seconds": cpu}
        _write(out / f"{name}.json", record | {"results": results})
        if hasattr(module(name), "draw"):
            figure = module(name).draw(results)
            figure.savefig(out / f"{name}.png")
            style.pyplot().close(figure)
    bar.show("finished", last=True)
    if all((out / f"{name}.json").exists() for name in PARTS):
        report.write(out, HERE / "README.md" if out == HERE / "results" else out / "README.md")
    return found


def _cell(path: Path, call: Any, fresh: bool) -> dict[str, Any]:
    if path.exists() and not fresh:
        return json.loads(path.read_text())
    start, cpu = time.perf_counter(), time.process_time()
    result = call()
    made = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "result": result}
    _write(path, made)
    return made


def _write(path: Path, value: Any) -> None:
    # Renamed when complete: an interruption leaves no half file.
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(_rounded(value), indent=1) + "\n")
    partial.replace(path)


def _rounded(value: Any) -> Any:
    """Seven significant digits: small files that differ only where results do."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {str(key): _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _fingerprint(settings: Settings) -> str:
    return hashlib.sha256(json.dumps(settings.facts(), sort_keys=True).encode()).hexdigest()[:12]


def _slug(label: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in label)


class Progress:
    """A bar on standard error: cells done, time, what runs now."""

    def __init__(self, total: int):
        self.total, self.done, self.start = max(total, 1), 0, time.perf_counter()

    def show(self, text: str, *, last: bool = False) -> None:
        """Redraws the bar (writes lines where standard error is no terminal)."""
        width, share = 24, self.done / self.total
        filled = int(share * width)
        passed = time.perf_counter() - self.start
        line = f"[{'#' * filled}{'.' * (width - filled)}] {self.done}/{self.total} {passed:5.0f} s  {text}"
        terminal = sys.stderr.isatty()
        end = "\n" if last or not terminal else ""
        print(f"\r\033[K{line[:118]}" if terminal else line, end=end, file=sys.stderr, flush=True)
