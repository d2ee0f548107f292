"""The log of a run: progress, throughput, trackers, and what is printed and stored."""
