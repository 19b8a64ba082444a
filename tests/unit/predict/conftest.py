import sys
from pathlib import Path

# Random networks of policies serve here too.
sys.path.append(str(Path(__file__).parents[1] / "policy"))
