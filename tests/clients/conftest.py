"""The tests start the server as those of tests/integration do."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
