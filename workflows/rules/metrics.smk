rule metrics:
    input:
        RESULT + "/status.json",
    output:
        ensure(RESULT + "/metrics.json", non_empty=True),
    log:
        f"logs/{selection.folder}/{{suite}}/{{row}}/{{workload}}/s{{session}}/metrics.log",
    params:
        folder=subpath(output[0], parent=True),
        definitions=selection.metric_definitions,
    shell:
        "{PYTHON} -m workflows.measure {params.folder} 2>&1 | tee {log} >&2"
