"""What was published, and what a run may say about it."""

from reports.claims.catalog import claims
from reports.claims.claim import Cell, Claim
from reports.claims.verdict import Verdict, judge

__all__ = ["Cell", "Claim", "Verdict", "claims", "judge"]
