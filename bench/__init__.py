"""Benchmarks: workloads, their runner and what they measured. Never imported by the library or by tests."""
