"""Figures of a report: one module a figure, each a function from the material to a drawing or to words why not."""
