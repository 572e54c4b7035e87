"""Audits: what a mechanism loses, computed from its laws or certified from its samples."""

from jaxdp.audit.exact import exact as exact
from jaxdp.audit.exact import privacy_profile as privacy_profile
