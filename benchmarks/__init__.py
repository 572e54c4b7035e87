"""Benchmarks of jaxdp against the alternatives: `python -m benchmarks` lists them."""
