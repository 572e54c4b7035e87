"""The mechanisms; see the package for the public names."""
