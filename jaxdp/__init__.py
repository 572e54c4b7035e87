"""jaxdp: differential-privacy mechanisms in JAX, each with its exact output law, and audits."""

__version__ = "0.1.0"

from jaxdp import audit as audit
from jaxdp import bounds as bounds
from jaxdp import lattice as lattice
from jaxdp import random as random
from jaxdp._release import asymmetry as asymmetry
from jaxdp._release import default_grid as default_grid
from jaxdp._release import expected_error as expected_error
from jaxdp._release import radius_for as radius_for
from jaxdp._release import release as release
from jaxdp.bounds import OutputBounds as OutputBounds
from jaxdp.bounds import geometric_grid as geometric_grid
from jaxdp.bounds import linear_grid as linear_grid
from jaxdp.laws import DiscreteLaw as DiscreteLaw
from jaxdp.laws import LatticeLaw as LatticeLaw
from jaxdp.mechanisms.above_threshold import AboveThreshold as AboveThreshold
from jaxdp.mechanisms.asymmetric_sensitivity import AsymmetricSensitivity as AsymmetricSensitivity
from jaxdp.mechanisms.exponential_mechanism import ExponentialMechanism as ExponentialMechanism
from jaxdp.mechanisms.inverse_sensitivity import InverseSensitivity as InverseSensitivity
from jaxdp.mechanisms.laplace import Laplace as Laplace
from jaxdp.mechanisms.permute_and_flip import PermuteAndFlip as PermuteAndFlip
from jaxdp.mechanisms.small_db import SmallDB as SmallDB
from jaxdp.mechanisms.smooth_sensitivity import SmoothSensitivity as SmoothSensitivity
from jaxdp.mechanisms.sparse_vector import SparseVector as SparseVector
from jaxdp.random import secure_key as secure_key
from jaxdp.types import Halt as Halt
from jaxdp.types import Privacy as Privacy
from jaxdp.types import Runs as Runs
from jaxdp.types import compose as compose
from jaxdp.workload import Workload as Workload
from jaxdp.workload import answer as answer
from jaxdp.workload import binary_universe as binary_universe
from jaxdp.workload import histogram as histogram
from jaxdp.workload import max_error as max_error
