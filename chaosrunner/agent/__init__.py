"""The agent: a static program in Go that makes a fault inside a Pod and ends it by itself.

`main.go` tells what it does; `Dockerfile` makes its image, `chaosrunner agent build` does without Docker.
"""
