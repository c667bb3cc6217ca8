"""Processes of a session, from their start to the proof that none is left.

Knows nothing of models, rows or metrics: it is told what to start, when it counts as ready, and how long things may
take.
"""
