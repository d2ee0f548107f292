"""Everything between raw data and the Hub: recipes, data, training, evaluation, publishing.

To follow one run from its recipe to the published model, read in this order:

recipes/schema.py: the sections of a recipe, frozen dataclasses.
recipes/compose.py: from files and the command line to one checked Recipe.
plugins.py: the registries, in which its name finds the Objective.
objectives/base.py: the row of an objective: all that is known before any data.
training/run.py: the run, from its start to the finished folder.
training/session.py: what is made once: engine, data, trainer.
training/checkpoints/resume.py: whether a run that stands in the folder may go on.
objectives/prepare.py: from the recipe to Data: sources, tokenizer, rows.
objectives/reads.py: the part that reads; text.py and causal.py beside it are one in full.
data/reader.py: the reader of people's rows, in files and on the Hub.
data/account.py: the account of all that comes in.
tokenizers/load.py: the tokenizer, trained or loaded.
data/tokenization.py: from documents to stored token ids.
data/packing.py: from token ids to rows.
data/order.py: the order of rows, by which a resumed run reads on; sample_ids.py: rows as a training reads them.
objectives/learns.py: the part that trains: config and loss.
training/models.py: the model, fresh or a checkpoint's.
training/trainer.py: the steps, checkpoints and validations.
objectives/scores.py: the part that measures.
objectives/answers.py: the part that a finished model is asked by.
training/finish.py: from the last step to a finished folder.
publishing/model_card.py: the card.
publishing/publish.py: the upload.
"""

from .freed_memory import bound_caches

bound_caches()
