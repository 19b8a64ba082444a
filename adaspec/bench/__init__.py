"""Benchmarks of adaspec's decisions and n-gram look-ups."""
