"""Measuring: workload specs, the load client, records, metrics and validity. Knows an engine only as a URL."""
