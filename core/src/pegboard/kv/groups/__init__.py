"""The core's own KV group types, one file each."""
