"""An attention backend for Pegboard on PyTorch's scaled_dot_product_attention."""
