"""Lets tests here, and the workers that they start, import `scenarios`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
