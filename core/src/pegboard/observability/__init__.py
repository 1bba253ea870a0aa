"""Logs, the periodic line of numbers, start phases, and the step timeline."""
