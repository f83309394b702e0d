"""Benchmarks to prompts: hub, local folder or embedded."""
