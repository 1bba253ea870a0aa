"""NVIDIA GPUs as a platform."""
