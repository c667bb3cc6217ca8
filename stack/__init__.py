"""The serving engine: instances that prefill, decode, or do both."""
