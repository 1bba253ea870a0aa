"""One device's side of the engine: the worker, its model runner and the persistent batch."""
