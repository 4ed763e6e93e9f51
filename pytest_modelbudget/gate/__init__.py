"""From a budget to a report: load, measure, judge; the same for pytest, commands and Python."""
