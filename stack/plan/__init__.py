"""`python -m stack.plan`: what an instance would allocate, without loading weights."""
