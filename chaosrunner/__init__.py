"""Chaos and recovery drills for Kubernetes services that stream."""

__version__ = "0.1.0"
