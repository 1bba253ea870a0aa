"""Executors: who owns the worker fleet, and how steps reach it."""
