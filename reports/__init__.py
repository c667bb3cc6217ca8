"""What a run says: published claims, tables, figures and the page. Reads records and metrics alone."""
