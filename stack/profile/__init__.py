"""`python -m stack.profile`: where the time of a prefill chunk and of a decode step goes, op by op."""
