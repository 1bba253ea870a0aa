"""GGUF: the file, its metadata as Hugging Face writes it, its weights and its tokenizer."""
