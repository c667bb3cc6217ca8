# Before any session, and never beside one: a plan takes a second or two of a processor. It holds a part of the machine.
rule plan:
    output:
        RESULT + "/plan.json",
    log:
        f"logs/{selection.folder}/{{suite}}/{{row}}/{{workload}}/s{{session}}/plan.log",
    priority: 900000
    resources:
        machine=1,
    params:
        cell=selection.cell_key,
        testbed=selection.testbed,
        engine=selection.engine,
        passes=selection.passes,
        requests=selection.requests,
    shell:
        "{PYTHON} -m workflows.plan --testbed {params.testbed} --engine {params.engine}"
        " --row {wildcards.suite}/{wildcards.row} --workload {wildcards.workload}"
        " --session {wildcards.session} --passes {params.passes} --requests {params.requests}"
        " --out {output} > {log} 2>&1"
