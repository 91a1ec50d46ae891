"""Workflows that benchmarks run."""
