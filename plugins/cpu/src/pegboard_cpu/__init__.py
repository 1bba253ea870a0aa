"""Pegboard on CPUs."""
