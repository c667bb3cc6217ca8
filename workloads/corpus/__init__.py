"""Text for the small trained checkpoint, made of templates: stories with sums, retrieval, drills, plain English.

`python -m workloads.corpus` writes it as JSON lines. Everything follows from a seed, and the split decides which sums
and story patterns may occur, so no held-out item is ever seen in training. Needs the standard library alone.
"""

from workloads.corpus.documents import Document, documents
from workloads.corpus.retrieval import RetrievalItem, retrieval_items
from workloads.corpus.stories import Story, stories
from workloads.corpus.sums import Split, Sum, is_held_out

__all__ = [
    "Document",
    "RetrievalItem",
    "Split",
    "Story",
    "Sum",
    "documents",
    "is_held_out",
    "retrieval_items",
    "stories",
]
