"""What a model learns from labelled examples: each task is one class that makes rows, batches and scores.

Those of texts are listed here, that of images in image_data.py.
"""

from . import sequence_classification, translation

# name -> (class, the columns it reads, those of them that hold text)
TASKS = {
    "sequence_classification": (
        sequence_classification.SequenceClassification,
        sequence_classification.columns_of,
        sequence_classification.text_columns_of,
    ),
    "translation": (translation.Translation, translation.columns_of, translation.columns_of),
}
