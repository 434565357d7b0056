"""The node agent: a kubelet in miniature that runs each container as a local process."""
