"""Everything between raw data and the Hub: recipes, data, training, evaluation, publishing."""
