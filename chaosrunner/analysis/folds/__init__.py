"""Incremental folds over ordered rows. Each class takes its kinds of row by `feed` and can be asked at any time.

The engine feeds them live, the analysis replays them; there is no second implementation.
"""
