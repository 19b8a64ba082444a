import sys
from pathlib import Path

# The replay's random costs serve here too.
sys.path.append(str(Path(__file__).parents[1] / "replay"))
