"""A real Kubernetes on one Linux machine, as root, without docker: the second lab.

`python -m chaosrunner.lab.real` is its program. All its processes, mounts and networks live in namespaces of their own
that end with the *keeper*, process 1 among them (`keeper`); `outside` is what starts, finds and ends a keeper.
"""
