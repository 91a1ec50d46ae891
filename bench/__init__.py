"""Benchmarks: workloads, their runner and their results. Never imported by the library or by tests."""
