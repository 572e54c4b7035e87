"""Which bound to propose: a table over candidates, on public or synthetic data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdp._stability import stability
from jaxdp.bounds import OutputBounds
from jaxdp.mechanisms.propose_test_release import ProposeTestRelease
from jaxdp.types import Stability


@dataclasses.dataclass(frozen=True, eq=False)
class ProposalTable:
    """What each proposal would lead to on one data set; printed as a table. Not private.

    Attributes:
        proposal: (m,) proposed bounds.
        distance: (m,) distances of the data set from an unstable one.
        acceptance: (m,) probabilities that a value is released.
        expected_error: (m,) E|noise| of a released value.
    """

    proposal: np.ndarray
    distance: np.ndarray
    acceptance: np.ndarray
    expected_error: np.ndarray

    def __str__(self) -> str:
        lines = ["    proposal   distance   acceptance   expected error"]
        for row in zip(self.proposal, self.distance, self.acceptance, self.expected_error, strict=True):
            lines.append("{:12.6g} {:10d} {:12.4g} {:16.6g}".format(*row))
        return "\n".join(lines)

    def plot(self, file: str) -> None:
        """Draws acceptance and expected error over the proposals.

        Args:
            file: File to write; its ending chooses the format.

        Raises:
            ImportError: If matplotlib is not installed; says how to install it.
        """
        # Only a picture needs the audits' plotting module.
        from jaxdp.audit._plot import require_matplotlib

        figure = require_matplotlib().Figure(figsize=(6.0, 3.6), layout="constrained")
        axis = figure.subplots()
        order = np.argsort(self.proposal)
        x = self.proposal[order]
        (left,) = axis.plot(x, self.acceptance[order], color="C0", marker="o", ms=3, label="acceptance (left)")
        axis.set(xlabel="proposal", ylabel="probability of acceptance", ylim=(0.0, 1.05))
        errors = axis.twinx()
        (right,) = errors.plot(
            x, self.expected_error[order], color="C3", marker="s", ms=3, ls="--", label="expected error (right)"
        )
        errors.set(ylabel="expected error if accepted", ylim=(0.0, None))
        positive = x[x > 0.0]
        if len(positive) == len(x) and x[-1] > 30.0 * x[0]:
            axis.set_xscale("log")
        axis.legend(handles=[left, right], loc="best", fontsize=8)
        figure.savefig(file, dpi=110)


def proposal_table(
    mechanism: ProposeTestRelease, source: OutputBounds | Callable[[Any], Stability], proposals: Sequence[float]
) -> ProposalTable:
    """Distance, acceptance and expected error for several proposals. Not private: for public or synthetic data.

    Args:
        mechanism: ProposeTestRelease with concrete parameters.
        source: OutputBounds of a data set, or a function from a proposal to its Stability.
        proposals: Concrete bounds b >= 0, in the units of the statistic.

    Returns:
        ProposalTable, one row a proposal, in their order.

    Raises:
        ValueError: For bad arguments.

    Example:
        >>> x = np.random.default_rng(0).normal(50.0, 5.0, 501)
        >>> mechanism = jaxdp.ProposeTestRelease(epsilon=1.0, delta=1e-6)
        >>> def source(proposal):
        ...     return jaxdp.median_stability(x, 0.0, 100.0, proposal)
        >>> print(jaxdp.proposal_table(mechanism, source, [0.5, 1.0, 2.0]))
            proposal   distance   acceptance   expected error
                 0.5         12    0.0003443          1.00024
                   1         30       0.9158          2.00049
                   2         65            1          4.00098
    """
    if not isinstance(mechanism, ProposeTestRelease):
        raise ValueError(f"mechanism must be a ProposeTestRelease, got {type(mechanism).__name__}")
    if not isinstance(source, OutputBounds) and not callable(source):
        raise ValueError(f"source must be an OutputBounds or a function of a proposal, got {type(source).__name__}")
    if np.ndim(proposals) != 1 or len(proposals) == 0:
        raise ValueError(f"proposals must have shape (m,) with m >= 1, got {np.shape(proposals)}")
    rows = []
    for proposal in proposals:
        summary = source(proposal) if callable(source) else stability(source, proposal)
        law = mechanism.law(summary)
        rows.append((proposal, summary.distance, law.acceptance, law.law.expected_error()))
    columns = (np.array(column) for column in zip(*rows, strict=True))
    kinds = np.float64, np.int64, np.float64, np.float64
    return ProposalTable(*(column.astype(kind) for column, kind in zip(columns, kinds, strict=True)))
