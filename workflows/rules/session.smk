# One start of the servers. It holds the whole machine, all sixteen parts that the profile counts; the supervisor takes a host
# lock as well, and writes the checkpoint if it is not there: as an input, a checkpoint that was written anew would measure
# everything again.
rule session:
    input:
        plan=RESULT + "/plan.json",
    output:
        RESULT + "/status.json",
    log:
        f"logs/{selection.folder}/{{suite}}/{{row}}/{{workload}}/s{{session}}/session.log",
    priority: selection.place
    resources:
        machine=16,
    params:
        cell=selection.cell_key,
        measures=selection.measured_by,
        folder=subpath(output[0], parent=True),
    shell:
        "exec {PYTHON} -m workflows.session {input.plan} {params.folder} --on-failure {selection.on_failure} --log {log}"
