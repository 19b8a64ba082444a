"""How an evaluation is shown: tables on the terminal and in report.md, and plots.

`report.parse_report` turns the JSON document into a `Report`. `result_tables` and `context_tables`
describe every table once, as a `table.Table`, and `page` says which of them appear in what order;
`terminal` and `markdown` show them, and an HTML page would be one more module beside these two.
`report_plots` and `trace_plots` draw in one `style`.
"""
