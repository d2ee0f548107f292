"""Everything between raw data and the Hub: recipes, data, training, evaluation, publishing."""

from .freed_memory import bound_caches

bound_caches()
