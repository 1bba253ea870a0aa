from tests.support.checkpoints import smollm2_folder, smollm2_gguf

__all__ = ["smollm2_folder", "smollm2_gguf"]
