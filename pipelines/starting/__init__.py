"""From data as people have them to a recipe: what they hold, which task learns it, and the recipe as text."""
