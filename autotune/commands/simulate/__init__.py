"""Simulate scheduling policies: the scenario, the command, and the chart."""
