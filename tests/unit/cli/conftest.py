import sys
from pathlib import Path

# Logged traffic of known truth serves here too.
sys.path.append(str(Path(__file__).parents[1] / "train"))
