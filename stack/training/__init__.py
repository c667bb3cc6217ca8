"""Training of the small checkpoint: from text to weights that the engine and transformers load."""
