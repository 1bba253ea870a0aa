"""The KV cache's accounting: who holds which block, and which prefixes are still there.

Runs in the engine core. Knows block ids and token ids; never sees a tensor.
"""
