import sys
from pathlib import Path

# The policy's random models and the replay's random costs serve here too.
sys.path.append(str(Path(__file__).parents[1] / "policy"))
sys.path.append(str(Path(__file__).parents[1] / "replay"))
