"""What all tests share: pytest's own plugin for testing plugins."""

pytest_plugins = ["pytester"]
