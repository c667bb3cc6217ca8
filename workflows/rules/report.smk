# What runs here and why the rest does not, so that the report need not call an impossible row one that was not run.
rule rows:
    output:
        f"results/{selection.folder}/rows.json",
    log:
        f"logs/{selection.folder}/rows.log",
    params:
        testbed=selection.testbed,
        engine=selection.engine,
        rows=selection.rows_here,
    shell:
        "{PYTHON} -m workflows.row_list --testbed {params.testbed} --engine {params.engine} --out {output} > {log} 2>&1"


rule pages:
    input:
        selection.metrics_files,
        rows=rules.rows.output,
    output:
        page=report(
            f"results/{selection.folder}/report.html",
            category="Report",
            caption="../report/page.rst",
        ),
        tables=report(
            directory(f"results/{selection.folder}/tables"),
            patterns=["{name}.csv"],
            category="Tables",
            caption="../report/table.rst",
        ),
        figures=report(
            directory(f"results/{selection.folder}/figures"),
            patterns=["{name}.svg"],
            category="Figures",
            caption="../report/figure.rst",
        ),
    log:
        f"logs/{selection.folder}/report.log",
    params:
        results=f"results/{selection.folder}",
        drawn_by=selection.report_code,
    shell:
        "{PYTHON} -m reports.build {params.results} --out {output.page} 2>&1 | tee {log} >&2"


rule tables:
    input:
        rules.pages.output.tables,


rule figures:
    input:
        rules.pages.output.figures,


rule claims:
    input:
        rules.pages.output.tables,


rule report:
    input:
        rules.pages.output.page,
