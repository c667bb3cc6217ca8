rule checkpoint:
    output:
        ".cache/checkpoints/{model}/config.json",
    log:
        "logs/build/{model}.log",
    wildcard_constraints:
        model=ID,
    shell:
        "{PYTHON} -m workflows.build {wildcards.model} > {log} 2>&1"
