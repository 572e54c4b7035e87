"""Audits: what a mechanism loses, computed from its laws or certified from its samples."""

from jaxdp.audit.catalogue import Broken as Broken
from jaxdp.audit.catalogue import broken as broken
from jaxdp.audit.exact import exact as exact
from jaxdp.audit.exact import privacy_profile as privacy_profile
from jaxdp.audit.monte_carlo import monte_carlo as monte_carlo
from jaxdp.audit.report import AuditReport as AuditReport
