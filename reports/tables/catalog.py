"""All tables, in the order in which they are written as files."""

from collections.abc import Callable

from reports.material import Material
from reports.tables import (
    acceptance,
    accuracy,
    balance,
    claims,
    definitions,
    drafters,
    evidence,
    instances,
    integrated,
    ladder,
    leave_one_out,
    mechanisms,
    memory,
    micro,
    profile,
    quality,
    settings,
)
from reports.tables.table import Table

TABLES: tuple[Callable[[Material], Table], ...] = (
    ladder.prefill_ladder,
    ladder.decode_ladder,
    leave_one_out.leave_one_out,
    integrated.throughput,
    integrated.latencies,
    integrated.worsened,
    balance.balance,
    drafters.drafters_table,
    acceptance.acceptance_by_context,
    accuracy.accuracy_table,
    accuracy.accuracy_pairs,
    accuracy.accuracy_items,
    quality.operating_points,
    settings.prefill_settings,
    settings.decode_settings,
    micro.micro_table,
    profile.profile_table,
    mechanisms.mechanism_table,
    memory.memory_table,
    instances.memory_terms,
    memory.published_memory,
    instances.kernels_table,
    claims.computed_claims,
    claims.measured_claims,
    evidence.sessions_table,
    evidence.levels_table,
    evidence.validity_table,
    evidence.failures_table,
    evidence.versions_table,
    evidence.provenance_table,
    definitions.definitions_table,
)
