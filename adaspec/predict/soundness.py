def check_forest(f): pass
