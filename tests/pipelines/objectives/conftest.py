"""A task's tiny recipe, prepared: KIND of a test file names the task."""

import pytest
from anyformer.pipelines.errors import UserError
from anyformer.pipelines.objectives.prepare import prepare_data
from anyformer.pipelines.recipes.compose import load_recipe
from task_data import on_rows, task_recipe


@pytest.fixture
def prepare(tmp_path, request):
    """Prepared data of the task; overrides as on the command line."""

    def run(*overrides, kind=None, **sections):
        kind = kind or request.module.KIND
        return prepare_data(load_recipe(str(task_recipe(tmp_path, kind, **sections)), overrides))

    return run


@pytest.fixture
def refused(prepare, tmp_path):
    """Rows that cannot be used are one sentence before training."""

    def run(rows, task, says, **sections):
        with pytest.raises(UserError, match=says) as error:
            prepare(**(on_rows(tmp_path, rows, **task) | sections))
        assert "\n" not in str(error.value)

    return run


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory, request):
    """The task's data with each of the test file's TOKENIZERS."""
    folder, found = tmp_path_factory.mktemp("tokenized"), {}
    for name, tokenizer in request.module.TOKENIZERS.items():
        sections = {"tokenizer": tokenizer, "data": {"cache_dir": str(folder / "cache")}}
        recipe = load_recipe(str(task_recipe(folder, request.module.KIND, **sections)))
        found[name] = prepare_data(recipe)
    return found
