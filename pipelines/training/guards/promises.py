"""What a run relies on in a native model beyond its packed rows (documents_apart.py): that it is saved as it is, and
that gradient checkpointing changes no gradient.

Accumulated losses and the weights of a checkpoint are not asked about: this package's trainer counts labels and reads
checkpoints itself, whatever the class does with them.
"""

from anyformer.modeling.families import FAMILIES

from ...checks.check_report import ask
from ...checks.findings import Verdict
from ...checks.made import kind_named, twin_of
from ...errors import UserError
from ...recipes.schema import Recipe


def broken_promises(config, auto_class: str, recipe: Recipe) -> list[str]:
    """A sentence for each promise that a tiny twin of a native config breaks; none of what cannot be asked, and none of
    a model with code of its own."""
    if config.model_type in FAMILIES or getattr(config, "auto_map", None):
        return []
    try:
        subject = twin_of(config, kind_named(auto_class))
    except UserError:  # of no kind that has laws
        return []
    laws = ["saving", "checkpointing"] if recipe.training.gradient_checkpointing else ["saving"]
    answers = [ask(subject, law) for law in laws]
    return [
        f"{subject.class_name} breaks the law {answer.law} ({answer.why or answer.worst.what}); "
        f"anyformer check shows it"
        for answer in answers
        if answer.verdict is Verdict.FAILS
    ]
