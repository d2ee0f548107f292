"""Shared by rows, collators and the trainer: two keys beside a model's inputs, and the label that is not counted."""

# Which rows of the data set a batch holds, and in which pass over it; neither is for the model.
ROW_IDS, EPOCH = "row_ids", "epoch"

IGNORE_INDEX = -100  # the label that the losses of torch and transformers leave out
