"""Configuration: one frozen struct a concern. Each field declares type, bounds, default and help.

From a field come its TOML key, its flag, its help and its line in the docs. `env` alone reads the
environment. `pegboard.engine.resolve` turns what the user gave into one `EngineConfig`.
"""
