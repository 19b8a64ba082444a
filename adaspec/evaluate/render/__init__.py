"""How an evaluation is shown: tables on the terminal and in report.md, and plots.

`report.parse_report` turns the JSON document into a `Report`. `result_tables` and `context_tables`
describe every table once, as a `table.Table`, which `terminal` and `markdown` show; an HTML page
would be one more module beside these two. `report_plots` and `trace_plots` draw in one `style`.
"""
