"""What a model is trained to predict: each objective is one class that makes rows and batches.

Those of text are listed here, those of images in image_data.py.
"""

from .causal import CausalObjective
from .masked import MaskedObjective
from .span_corruption import SpanCorruptionObjective

OBJECTIVES = {"causal": CausalObjective, "masked": MaskedObjective, "span_corruption": SpanCorruptionObjective}
