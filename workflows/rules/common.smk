import sys

PYTHON = sys.executable
selection = Selection(config)
RESULT = f"results/{selection.folder}/{{suite}}/{{row}}/{{workload}}/s{{session}}"


localrules:
    rows,
    report,
    tables,
    figures,
    claims,
    build,
    all,
