"""``python -m pytest_modelbudget.cli`` is ``modelbudget``."""

import sys

from pytest_modelbudget.cli.command import main

sys.exit(main())
