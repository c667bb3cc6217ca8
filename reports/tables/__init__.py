"""Tables of a report, each a data frame with one row a thing and columns that carry their unit."""
