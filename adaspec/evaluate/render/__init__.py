"""How an evaluation is shown: tables on the terminal, in report.md and report.html; and plots.

`tables` describes every table once, as a `table.Table`; `terminal`, `markdown` and `html` say which
of them appear in what order, and show them. `report_plots` and `trace_plots` draw in one `style`.
"""
