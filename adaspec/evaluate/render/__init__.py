"""How an evaluation is shown: tables on the terminal and in report.md, and plots.

`tables` describes every table once, as a `table.Table`; `terminal` and `markdown` say which of them
appear in what order, and show them. `report_plots` and `trace_plots` draw in one `style`.
"""
