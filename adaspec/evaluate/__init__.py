"""Reports: grids, headline, intervals, plots."""
