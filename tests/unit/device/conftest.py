import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# The policy's random models and the replay's random recordings serve here too.
for neighbour in ("policy", "replay"):
    sys.path.append(str(Path(__file__).parents[1] / neighbour))
