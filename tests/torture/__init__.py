"""Kills runs at random instants and looks whether anything is left: `python -m tests.torture --help`."""
