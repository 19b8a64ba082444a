import sys
from pathlib import Path

HERE = Path(__file__).parent
# The scripted engine, the policy's random models, and what lets kernels run without a GPU.
for folder in (HERE, *(HERE.parent / name for name in ("policy", "replay", "kernels"))):
    sys.path.append(str(folder))
