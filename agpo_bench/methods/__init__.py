"""The mathematics of the methods: pure, no model, no file, no network."""
