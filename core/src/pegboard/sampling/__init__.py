"""Sampling: logits to tokens for a whole batch on the device, one file an idea.

`sampler` puts the parts in order; what no row of a step asks for costs nothing. The package knows
rows and logits, not models, schedulers or processes.
"""
