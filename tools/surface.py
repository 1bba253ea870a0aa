"""Write the snapshot of the public surface that tests/contracts watches."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.contracts.test_surface import SNAPSHOT, surface  # noqa: E402

SNAPSHOT.write_text(json.dumps(surface(), indent=1, ensure_ascii=False) + "\n")
print(SNAPSHOT.relative_to(ROOT))
