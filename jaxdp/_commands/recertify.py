"""`python -m jaxdp recertify FILE`: certificates from the counts of a JSON file, nothing else of it believed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from jaxdp.audit import AuditReport, SequentialReport

__all__ = ["run"]

_SLACK = 1e-9


def run(args: argparse.Namespace) -> int:
    """Certifies every report of the file again; 1 if a claim is refuted, 2 if the file states other certificates."""
    try:
        with open(args.file, encoding="utf-8") as file:
            found = json.load(file)
    except json.JSONDecodeError as error:
        raise ValueError(f"{args.file} is not JSON ({error})") from error
    reports = list(_reports(found))
    if not reports:
        raise ValueError(f"{args.file} holds no report")
    refuted, differing = 0, 0
    for stored in reports:
        report = (SequentialReport if "stages" in stored else AuditReport).from_json(json.dumps(stored))
        name = stored.get("name", report.mechanism)
        certified, claimed = float(report.epsilon_lower), _stated(stored, report.epsilon_lower)
        same = abs(certified - claimed) <= _SLACK * max(1.0, certified)
        note = "" if same else f"; THE FILE STATES {claimed:.6g}"
        print(f"{name}: {report.verdict}{note}")
        refuted += bool(report.refuted)
        differing += not same
    return 2 if differing else 1 if refuted else 0


def _reports(found: Any) -> Iterator[dict[str, Any]]:
    """The reports in a report, an examination or the file of a table."""
    if isinstance(found, dict):
        if isinstance(found.get("audits"), list):
            for entry in found["audits"]:
                yield from _reports(entry)
        elif "report" in found:
            yield from _reports(found["report"])
        elif "epsilon" in found:
            yield found


def _stated(stored: dict[str, Any], certified: float) -> float:
    """The certificate that the file states, if it states one."""
    value = stored.get("epsilon_lower", certified)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"epsilon_lower must be a number, got {value!r}") from error
