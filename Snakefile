# The main job: plan -> session -> metrics -> report. `np1d run` calls this; plain snakemake works too:
#   snakemake --profile workflows/profiles/default report
#   snakemake --profile workflows/profiles/default results/cpu/decode/baseline/sp99_9/s0/metrics.json
from snakemake.utils import min_version, validate
from workflows.order_log import note_order
from workflows.targets import ID, Selection

min_version("9.24")


configfile: "workflows/config/config.yaml"


validate(config, "workflows/config/schemas/config.schema.json")


wildcard_constraints:
    testbed=ID,
    suite=ID,
    row=ID,
    workload=ID,
    session="[0-9]+",


include: "workflows/rules/common.smk"
include: "workflows/rules/build.smk"
include: "workflows/rules/plan.smk"
include: "workflows/rules/session.smk"
include: "workflows/rules/metrics.smk"
include: "workflows/rules/report.smk"
include: "workflows/rules/gate.smk"


rule all:
    default_target: True
    input:
        rules.build.input,
        rules.report.input,


onstart:
    note_order(selection)


onerror:
    print(
        "every attempt, interrupted ones too, keeps its logs in its session's folder: results/.../s0/attempts/"
    )
