"""How an evaluation is shown: tables on the terminal, and one page of tables and figures.

`tables` describes every table once, as a `table.Table`; `contents` says which of them a report has,
in what order. `terminal` prints them; `page` puts them, with `figures`, into `page.html`.
`markdown` writes tables into the cards of policies.
"""
