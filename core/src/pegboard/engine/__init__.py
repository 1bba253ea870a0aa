"""From options to text: resolution, the engine core's loop, its clients, LLM and AsyncLLM.

The front end's half (clients, input and output processing) imports no torch; the engine core's
half imports it only through the executor that was selected.
"""
