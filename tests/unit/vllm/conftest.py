import sys
from pathlib import Path

# The scripted engine, and what lets kernels run without a GPU.
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kernels")]
