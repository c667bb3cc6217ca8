"""Draft, verify, accept, commit. Knows nothing of HTTP and transfer."""
