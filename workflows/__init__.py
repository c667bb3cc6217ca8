"""The harness: from a row of a published table to a supervised session, its verdict and its place in the report."""
