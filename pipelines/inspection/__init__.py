"""Looking inside a model: what its layers attend to."""
