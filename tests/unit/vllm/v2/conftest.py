import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# The policy's random models serve here too.
sys.path.append(str(Path(__file__).parents[2] / "policy"))
# And so does what lets kernels run where there is no GPU.
sys.path.append(str(Path(__file__).parents[2] / "kernels"))
