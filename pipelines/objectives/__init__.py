"""What a model is trained to predict: each objective is one class that makes rows and batches."""

from .causal import CausalObjective

OBJECTIVES = {"causal": CausalObjective}
