"""Searches the tiles of the expert products on recorded routes, and writes the table that configurations name."""
