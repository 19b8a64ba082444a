"""placeholder"""
def write_report(folder, plan):
    pass
