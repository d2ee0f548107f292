"""What a model can learn: one file per objective or task, imported when its name is looked up in plugins.OBJECTIVES.

The interface is in base.py. A new objective needs a file here that bears its name, and an entry in NAMES.
"""

from ..plugins import OBJECTIVES, TEACHERS

NAMES = (
    "causal",
    "denoising",
    "fill_in_the_middle",
    "image_classification",
    "instruction_tuning",
    "masked",
    "masked_image",
    "mixture",
    "mixture_of_denoisers",
    "multi_label_classification",
    "multi_task",
    "multiple_choice",
    "pixels",
    "preference",
    "prefix_lm",
    "question_answering",
    "sentence_pairs",
    "sentence_similarity",
    "sequence_classification",
    "sequence_regression",
    "span_corruption",
    "text_to_text",
    "token_classification",
    "translation",
)
OBJECTIVES.announce({name: f"{__name__}.{name}" for name in NAMES})
TEACHERS.announce({kind: f"{__name__}.teachers" for kind in ("nothing", "tokens")})
TEACHERS.announce({kind: f"{__name__}.taught_texts" for kind in ("classes", "tags", "vectors")})
