"""A recipe: YAML and overrides become one checked object."""
