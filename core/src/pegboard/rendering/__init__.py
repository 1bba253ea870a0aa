"""Chat messages to prompts: sandboxed, bounded templates. Knows neither HTTP nor the engine."""
