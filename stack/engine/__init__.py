"""The loop that plans, launches and takes in steps, and the worker process around it."""
