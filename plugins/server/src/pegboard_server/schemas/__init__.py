"""Bodies: pydantic models for what comes in, msgspec structs for what goes out."""
