"""Runs made visible: the page of a run, several compared, figures. All of it from what lies in the runs' folders."""
