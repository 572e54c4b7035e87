"""Mechanisms to try audits on, NOT FOR RELEASE: broken ones, and published benchmarks with their exact laws."""

from jaxdp.audit.catalogue._benchmarks import catalogue as catalogue
from jaxdp.audit.catalogue._entry import Entry as Entry
from jaxdp.audit.catalogue._loss_law import LossLaw as LossLaw
from jaxdp.audit.catalogue.broken import Broken as Broken
from jaxdp.audit.catalogue.broken import broken as broken
from jaxdp.audit.catalogue.sparse import sparse_vector_variants as sparse_vector_variants
