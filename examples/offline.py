"""Generate text without a server: `python examples/offline.py`."""

from pegboard import LLM, SamplingParams

prompts = ["The capital of France is", "Water boils at", "Once upon a time"]
with LLM() as llm:
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24)):
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
