"""Reports: grids, headline, intervals, tables and figures."""
