"""What a model is trained to predict: each objective turns documents into rows with labels, with a preview."""
