"""The Kubernetes client: sessions, list and watch, eviction, budgets, drain rules, leases. The one room that imports
the official client, which serves for configuration, authentication and raw requests; objects stay dictionaries."""

from chaosrunner.cluster.config import ClusterConfig
from chaosrunner.cluster.resources import Resource
from chaosrunner.cluster.session import (
    JSON_PATCH,
    Answer,
    ApiError,
    Cluster,
    Listing,
    ServerVersion,
    Unreachable,
    connect,
)

__all__ = [
    "JSON_PATCH",
    "Answer",
    "ApiError",
    "Cluster",
    "ClusterConfig",
    "Listing",
    "Resource",
    "ServerVersion",
    "Unreachable",
    "connect",
]
