"""What was published, and what a run may say about it."""

from reports.claims.catalog import claims
from reports.claims.claim import Cell, Claim
from reports.claims.verdict import WITHOUT_VALUE, Verdict, judge

__all__ = ["WITHOUT_VALUE", "Cell", "Claim", "Verdict", "claims", "judge"]
