"""The empirical study of the asymmetric sensitivity mechanism, reproduced: `python -m benchmarks.paper`."""
