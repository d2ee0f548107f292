"""The model card, and the way to the Hub."""
