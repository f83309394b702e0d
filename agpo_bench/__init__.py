"""agpo-bench: policy-optimisation methods compared under one generated-token budget."""

__version__ = "0.1.0"
