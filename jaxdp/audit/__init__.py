"""Audits: what a mechanism loses, computed from its laws or certified from its samples.

Start with `examine`, the whole audit of a `Claim` on several pairs of inputs. Its parts: `screen` (hints), `exact` and
`privacy_profile` (from laws), `monte_carlo` (from samples, in a fixed number of runs). Beside it: `sequential` (any
number of runs), `search` (for the worst pair, among the neighbours of `ReplaceOne`, `ChangeOne`, `ChangeEvery` and
`AddRemove`), `learned_score` (events for black boxes with many numbers), `finite_precision` (all words of a sampler),
`Batched` and `Foreign` (what can be audited), `plots`, `gaussian_lower` and `tradeoff` (what counts say besides).
"""

from jaxdp.audit import plots as plots
from jaxdp.audit._finite_precision_report import FinitePrecisionReport as FinitePrecisionReport
from jaxdp.audit._sequential_report import SequentialReport as SequentialReport
from jaxdp.audit.adjacency import AddRemove as AddRemove
from jaxdp.audit.adjacency import ChangeEvery as ChangeEvery
from jaxdp.audit.adjacency import ChangeOne as ChangeOne
from jaxdp.audit.adjacency import ReplaceOne as ReplaceOne
from jaxdp.audit.adjacency import patterns as patterns
from jaxdp.audit.catalogue import Broken as Broken
from jaxdp.audit.catalogue import broken as broken
from jaxdp.audit.claims import Claim as Claim
from jaxdp.audit.exact import exact as exact
from jaxdp.audit.exact import privacy_profile as privacy_profile
from jaxdp.audit.examine import Examination as Examination
from jaxdp.audit.examine import examine as examine
from jaxdp.audit.finite_precision import finite_precision as finite_precision
from jaxdp.audit.learned import learned_score as learned_score
from jaxdp.audit.monte_carlo import monte_carlo as monte_carlo
from jaxdp.audit.pairs import FoundPair as FoundPair
from jaxdp.audit.pairs import certificate as certificate
from jaxdp.audit.pairs import exact_loss as exact_loss
from jaxdp.audit.pairs import renyi as renyi
from jaxdp.audit.pairs import search as search
from jaxdp.audit.report import AuditReport as AuditReport
from jaxdp.audit.screen import Finding as Finding
from jaxdp.audit.screen import screen as screen
from jaxdp.audit.sequential import sequential as sequential
from jaxdp.audit.targets import Batched as Batched
from jaxdp.audit.targets import Foreign as Foreign
from jaxdp.audit.views import gaussian_lower as gaussian_lower
from jaxdp.audit.views import tradeoff as tradeoff
