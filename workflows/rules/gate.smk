rule gate:
    input:
        selection.metrics_files,
    output:
        f"results/{selection.folder}/gate.json",
    log:
        f"logs/{selection.folder}/gate.log",
    params:
        results=f"results/{selection.folder}",
    shell:
        "{PYTHON} -m workflows.gate {params.results} --out {output} > {log} 2>&1"
