"""``python -m credax.cli``: the same as the command ``credax``."""

import sys

from credax.cli.main import main

sys.exit(main())
