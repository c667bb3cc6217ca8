# The verdict is the exit code; what it rests on stays beside it whatever it is.
rule gate:
    input:
        selection.metrics_files,
    output:
        touch(f"results/{selection.folder}/gate.passed"),
    log:
        f"logs/{selection.folder}/gate.log",
    params:
        testbed=selection.testbed,
        rows=selection.row_names,
        verdict=f"results/{selection.folder}/gate.json",
    shell:
        "{PYTHON} -m workflows.cli gate {params.rows} --testbed {params.testbed} --existing"
        " --store baselines --out {params.verdict} > {log} 2>&1"
