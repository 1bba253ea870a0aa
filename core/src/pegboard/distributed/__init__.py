"""Process groups and their collectives, over torch.distributed and the platform's backend."""
