"""What another engine was measured at, by us, on the same machine and model; published values: `reports.claims`."""
