"""Shared by rows, collators and the trainer: keys beside a model's inputs, and the label that is not counted."""

# Which rows of the data set a batch holds, in which pass over it, and where a stream goes on; none is for the model.
ROW_IDS, EPOCH, POSITION = "row_ids", "epoch", "position"

IGNORE_INDEX = -100  # the label that the losses of torch and transformers leave out
