"""One thread per process, and child processes find the packages of this checkout."""

import os
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH", "")]))
