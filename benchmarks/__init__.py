"""Benchmarks of jaxdp against the alternatives: `python -m benchmarks` lists them."""

import os

# Some scripts measure in processes of their own: the first one must leave them memory of a GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
