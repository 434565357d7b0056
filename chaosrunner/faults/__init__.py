"""Faults: changes made to the cluster, one file each; every one is planned, applied, verified and undone alike."""
