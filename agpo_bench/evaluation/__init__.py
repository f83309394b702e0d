"""Evaluation through lm-eval, with our graders."""
