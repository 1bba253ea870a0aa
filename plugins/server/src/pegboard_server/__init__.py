"""The HTTP front end: OpenAI-compatible endpoints, probes and metrics. Imports no torch."""
