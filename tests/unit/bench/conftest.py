import sys
from pathlib import Path

# The policy's random models serve here too.
sys.path.append(str(Path(__file__).parents[1] / "policy"))
