"""What a person reads of an evaluation: tables on the terminal, report.md, and plots.

`report.parse_report` reads a report's document once, into a `Report`. `background`, `contents` and
`learned` describe each table of it once, as a `table.Table`; `terminal` and `markdown` show such
tables (another page, in HTML say, would be one more module beside these two). `plots` draws from
the same `Report`, `figures` from the trace. `write` makes a folder of it all.
"""
