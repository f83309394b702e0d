"""Sampling backends behind one Protocol."""
