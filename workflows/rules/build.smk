rule checkpoint:
    output:
        ".cache/checkpoints/{model}/config.json",
    log:
        "logs/build/{model}.log",
    wildcard_constraints:
        model=ID,
    priority: 1000000
    shell:
        "{PYTHON} -m workflows.build {wildcards.model} > {log} 2>&1"


rule build:
    input:
        selection.model_files,
