"""The commands of `python -m jaxdp`, one a file."""
