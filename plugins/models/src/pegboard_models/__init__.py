"""Model architectures, one file a family, on the public model kit."""
