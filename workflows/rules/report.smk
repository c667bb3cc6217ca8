rule pages:
    input:
        selection.metrics_files,
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
