"""Output bounds of statistics by Hamming distance, one statistic a file."""

from jaxdp.bounds._output_bounds import OutputBounds as OutputBounds
from jaxdp.bounds._output_bounds import geometric_grid as geometric_grid
from jaxdp.bounds._output_bounds import linear_grid as linear_grid
