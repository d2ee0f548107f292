"""`anyformer evaluate MODEL blimp`, or any file of minimal pairs: the share of pairs whose good text is likelier."""

import transformers

from ..errors import loading
from ..likelihoods.minimal_pairs import is_right, open_pairs, share_right, shares_of_groups
from ..likelihoods.whole_texts import check_score
from ..open_tokenizer import open_tokenizer
from ..recipes.schema import MinimalPairsSettings, Recipe
from ..reporting.console import print_table
from ..words import counted
from .result import Began, Result, with_bounds
from .saved_model import load_placed, open_config


class PairsResult(Result):
    """The share of right pairs, and low and high, its 95 % interval; groups: the same for each value of each column.

    score: what was compared. answers: {"row", "good", "bad", their scores} of each pair.
    """

    def show(self) -> None:
        """Print one table: a row for each value of the first column of groups, and one for all pairs."""
        column, groups = next(iter(self.groups.items()), ("", {}))
        rows = []
        for name, row in [*groups.items(), ("all", vars(self))]:
            rows.append([name.replace("_", " "), with_bounds(row["share"], row), f"{row['pairs']:,}"])
        head = self.head(counted(self.pairs, "pair"), f", by {self.score.replace('_', ' ')}")
        print_table(head, [column or "pairs", "good one likelier", "pairs"], rows)


def evaluate_pairs(recipe: Recipe, settings: MinimalPairsSettings) -> PairsResult:
    """Measure the recipe's checkpoint on minimal pairs.

    Raises UserError for pairs that cannot be read, and for a model that cannot score them as the settings say.
    """
    began = Began.now(recipe, vars(settings))
    source = recipe.model.name_or_path
    pairs = open_pairs(settings, "minimal_pairs")
    config = open_config(recipe)
    with loading(f"MODEL={source}"):
        tokenizer = open_tokenizer(source, recipe.trust_remote_code)
    model = load_placed(head_of(config), recipe)
    score = check_score(model, tokenizer, settings.score)
    scores = pairs.scores(model, tokenizer, list(range(len(pairs))))
    right = [is_right(each) for each in scores]
    answers = [
        {"row": row, "good": good, "bad": bad, "good_score": of_good, "bad_score": of_bad}
        | {column: values[row] for column, values in pairs.groups.items()}
        for row, (good, bad, (of_good, of_bad)) in enumerate(zip(pairs.good, pairs.bad, scores))
    ]
    shares = share_right(right) | {"groups": shares_of_groups(pairs, right), "settings": vars(settings)}
    return PairsResult(recipe, pairs.name, began, answers, score=score, **shares)


def head_of(config) -> str:
    """The Auto class that scores texts: with a masked head if the model was saved so or cannot write, else one that
    writes."""
    if config.is_encoder_decoder:
        return "AutoModelForSeq2SeqLM"
    saved = (config.architectures or [""])[0]
    writes = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or "AutoModelForCausalLM" in (
        getattr(config, "auto_map", None) or {}
    )
    fills = saved.endswith(("ForMaskedLM", "ForPreTraining"))
    return "AutoModelForCausalLM" if writes and not fills else "AutoModelForMaskedLM"
