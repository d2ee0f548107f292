"""The log: progress, throughput, trackers, what is printed and kept of a run."""
