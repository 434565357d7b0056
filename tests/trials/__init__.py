"""Trials that take too long for every change: commands of their own, which report what they found."""
