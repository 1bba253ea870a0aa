"""Checkpoint formats: safetensors, GGUF and random weights, with configurations and tokenizers."""
