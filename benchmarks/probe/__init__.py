"""What the probe costs and how true its times are, side by side with other clients: `python -m benchmarks.probe`."""
