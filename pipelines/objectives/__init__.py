"""What a model can learn: one file per objective or task, registered in plugins.OBJECTIVES when it is imported.

The interface is base.py. A new objective is a file here and a line below; nothing else asks for its name.
"""

from .causal import Causal
from .denoising import Denoising
from .fill_in_the_middle import FillInTheMiddle
from .image_classification import ImageClassification
from .instruction_tuning import InstructionTuning
from .masked import Masked
from .masked_image import MaskedImage
from .mixture import Mixture
from .mixture_of_denoisers import MixtureOfDenoisers
from .multi_label_classification import MultiLabelClassification
from .multi_task import MultiTask
from .multiple_choice import MultipleChoice
from .pixels import Pixels
from .preference import Preference
from .prefix_lm import PrefixLM
from .question_answering import QuestionAnswering
from .sentence_pairs import SentencePairs
from .sentence_similarity import SentenceSimilarity
from .sequence_classification import SequenceClassification
from .sequence_regression import SequenceRegression
from .span_corruption import SpanCorruption
from .text_to_text import TextToText
from .token_classification import TokenClassification
from .translation import Translation

__all__ = [
    "Causal",
    "Denoising",
    "FillInTheMiddle",
    "ImageClassification",
    "InstructionTuning",
    "Masked",
    "MaskedImage",
    "Mixture",
    "MixtureOfDenoisers",
    "MultiLabelClassification",
    "MultiTask",
    "MultipleChoice",
    "Pixels",
    "Preference",
    "PrefixLM",
    "QuestionAnswering",
    "SentencePairs",
    "SentenceSimilarity",
    "SequenceClassification",
    "SequenceRegression",
    "SpanCorruption",
    "TextToText",
    "TokenClassification",
    "Translation",
]
