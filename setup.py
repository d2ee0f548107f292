"""The packages, found: the folders modeling, pipelines and configs are installed below `anyformer`."""

from setuptools import find_packages, setup

FOLDERS = ("modeling", "pipelines", "configs")
below = [name for folder in FOLDERS for name in (folder, *(f"{folder}.{inner}" for inner in find_packages(folder)))]
setup(packages=["anyformer", *(f"anyformer.{name}" for name in below)])
