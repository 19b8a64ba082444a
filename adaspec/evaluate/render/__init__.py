"""What a person reads of an evaluation: tables, report.md, plots and the paper's figures."""
