"""Reports of runs: the page of one run, of several compared, figures; all made from the runs' folders."""
