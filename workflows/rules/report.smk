rule pages:
    input:
        selection.metrics_files,
    output:
        page=report(
            f"results/{selection.folder}/report.html",
            category="Report",
            caption="../report/page.rst",
        ),
    log:
        f"logs/{selection.folder}/report.log",
    params:
        results=f"results/{selection.folder}",
    shell:
        "{PYTHON} -m reports.build {params.results} --out {output.page} > {log} 2>&1"


rule report:
    input:
        rules.pages.output.page,
