"""Output bounds of statistics by Hamming distance, one statistic a file."""

from jaxdp.bounds._output_bounds import OutputBounds as OutputBounds
from jaxdp.bounds._output_bounds import geometric_grid as geometric_grid
from jaxdp.bounds._output_bounds import linear_grid as linear_grid
from jaxdp.bounds.absolute_error import absolute_error as absolute_error
from jaxdp.bounds.accuracy import accuracy as accuracy
from jaxdp.bounds.binary_cross_entropy import binary_cross_entropy as binary_cross_entropy
from jaxdp.bounds.cross_entropy import cross_entropy as cross_entropy
from jaxdp.bounds.from_candidates import from_candidates as from_candidates
from jaxdp.bounds.mean import mean as mean
from jaxdp.bounds.quantile import maximum as maximum
from jaxdp.bounds.quantile import median as median
from jaxdp.bounds.quantile import minimum as minimum
from jaxdp.bounds.quantile import quantile as quantile
from jaxdp.bounds.squared_error import squared_error as squared_error
from jaxdp.bounds.standard_deviation import standard_deviation as standard_deviation
from jaxdp.bounds.sum import sum as sum
from jaxdp.bounds.trimmed_mean import trimmed_mean as trimmed_mean
from jaxdp.bounds.variance import variance as variance
