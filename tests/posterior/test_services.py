"""Every method of a posterior works after ``import credax`` alone."""

import subprocess
import sys

from credax.posterior import services

# In a process of its own, since other tests import the modules that define the functions.
MISSING = """
import credax
from credax.posterior import services
print([name for name in services.__annotations__ if not hasattr(services, name)])
"""


def test_import_credax_provides_every_function():
    found = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]", (
        "import credax does not import the modules that define these functions of "
        f"credax.posterior.services: {found.stdout.strip()}"
    )


def test_there_is_something_to_provide():
    assert {"save", "evaluate", "calibrate", "diagnose", "convergence"} <= set(
        services.__annotations__
    )
