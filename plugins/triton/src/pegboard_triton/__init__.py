"""Attention and named ops in Triton, offered to any platform that declares `triton`."""
