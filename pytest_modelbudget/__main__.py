"""``python -m pytest_modelbudget`` is ``modelbudget``."""

import sys

from pytest_modelbudget.cli.command import main

sys.exit(main())
