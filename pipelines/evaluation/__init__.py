"""A saved model measured on the data of a recipe."""
