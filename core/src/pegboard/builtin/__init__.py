"""The core's own components, declared and loaded like anyone's."""
