"""Publishing on the Hub: weights, tokenizer, the code that the model loads with, and its card, in one commit.

The folder is only read, so publishing can be repeated after any failure.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType

from ..adapters import ADAPTED_CONFIG, ADAPTER_CONFIG, base_of
from ..errors import UserError
from ..lazy import hub
from ..manifest import read_json
from ..recipes import secrets
from ..recipes.strict_yaml import format_yaml, parse_yaml
from ..storage.json_text import json_text
from ..storage.local_facts import LOADING, names_only
from ..storage.model_folder import ModelFolder, open_model_folder
from ..storage.record import of_its_model
from ..words import counted
from .model_card import MARKER, is_own_card, render_model_card, write_model_card
from .run_facts import RunFacts, objective_facts

# Files of the modules that sentence-transformers adds to a model.
MODULE_FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
MODULE_FOLDERS = "[0-9]_*"
# Files published beside weights, code, card and its picture. No others: checkpoints, optimizer states, pickles, logs.
PUBLISHED = [
    *("config.json", ADAPTER_CONFIG, ADAPTED_CONFIG, "generation_config.json", "recipe.yaml", "run.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("preprocessor_config.json", "processor_config.json", "LICENSE*", "NOTICE*"),
    *MODULE_FILES,
]
OF_THE_RUN = ["metrics.jsonl", "router.jsonl", "loss.png"]  # published with the model that they are of
LOCAL = ("recipe.yaml", "run.json", "tokenizer_config.json")  # files that may name folders of the training machine
HUB_TOKEN = re.compile(secrets.HUB_TOKEN.encode())
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def publish(
    folder: Path | str,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    license: str | None = None,
    check: Callable[[Path], tuple[str, dict] | None] | None = None,
    facts: RunFacts | None = None,
    code: Mapping[str, Path] = MappingProxyType({}),
) -> str:
    """Push a saved model to the Hub and return its URL; a second call updates the repository.

    Args:
        folder: a finished run's folder or one written by `save_pretrained`; it is read, never changed.
        repo_id: `owner/name`, or `name` for the account that is logged in; created where it does not exist.
        private: create the repository as private; an existing public one is refused.
        revision: branch, created where it does not exist; None: main.
        license: licence named in the card; None: the recipe's `publish.license`.
        check: returns a line for the card and the contents of check.json; None: neither is published.
        facts: what the card says of the run; None: read from the folder.
        code: files that replace those of the same names in the folder.

    Raises:
        UserError: `folder` is no model folder or holds a secret, `repo_id` is malformed, nobody is logged in, or the
            Hub refuses or cannot be reached. Everything that can be checked is checked before the upload.
    """
    model = open_model_folder(folder)
    files = files_to_publish(model) | code
    repo_id = resolve_repo_id(repo_id)
    api = hub.HfApi()
    with hub_errors(f"{repo_id} could not be prepared on the Hub"):
        url = str(api.create_repo(repo_id, private=private or None, exist_ok=True))
        if private and not api.repo_info(repo_id).private:
            raise UserError(f"{repo_id} exists and is public; make it private in its settings or choose another name")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
    contents = with_card(files, model, repo_id, license=license, check=check, facts=facts)
    if is_own_card(model.path / "README.md") and _has_foreign_card(api, repo_id, revision):
        print(f"the README.md of {repo_id} was not written by anyformer, or changed by hand; it is kept as it is")
        del contents["README.md"]
    print(f"{listing(contents)} going to {url}", flush=True)
    operations = [hub.CommitOperationAdd(name, file) for name, file in sorted(contents.items())]
    with hub_errors(f"the upload to {repo_id} did not complete, and {model.path} is as it was"):
        api.create_commit(repo_id, operations, commit_message="Publish with anyformer", revision=revision)
    return url if revision is None else f"{url}/tree/{revision}"


def with_card(
    files: dict[str, Path | bytes],
    model: ModelFolder,
    repo_id: str,
    *,
    license: str | None = None,
    check: Callable[[Path], tuple[str, dict] | None] | None = None,
    facts: RunFacts | None = None,
) -> dict[str, Path | bytes]:
    """`files_to_publish` of a model, with its card and, where it is checked, check.json; arguments as in `publish`."""
    contents, checked, card, facts = dict(files), None, model.path / "README.md", facts or RunFacts.read(model.path)
    print(*facts.left_out, sep="\n", end="\n" * bool(facts.left_out))
    if check is not None and (result := check(model.path)) is not None:
        checked, findings = result
        contents["check.json"] = json_text(findings).encode()
    if is_own_card(card):
        arguments = {"repo_id": repo_id, "license": license, "facts": facts, "checked": checked}
        contents["README.md"] = render_model_card(model, **arguments).encode()
    else:
        print(f"{card} was not written by anyformer; it is published as it is")
        contents["README.md"] = card
    if not license and not facts.section("publish").get("license"):
        print("the card names no licence; --license or publish.license says it")
    if not any((model.path / name).is_file() for name in TOKENIZER):
        print(f"{model.path} holds no tokenizer; the model is published without one")
    return contents


def listing(contents: dict[str, Path | bytes]) -> str:
    """A line for each file, the largest first, and a line with their number and total size."""
    sizes = {name: len(c) if isinstance(c, bytes) else c.stat().st_size for name, c in contents.items()}
    lines = [f"  {size / 1e6:10.3f} MB  {name}" for name, size in sorted(sizes.items(), key=lambda item: -item[1])]
    return "\n".join([*lines, f"{counted(len(sizes), 'file')}, {sum(sizes.values()) / 1e6:.1f} MB,"])


def prepare_folder(folder: Path | str) -> None:
    """Write into a saved model's folder what it lacks: code files and the model card.

    Raises UserError: the folder cannot be published, as in `publish`.
    """
    model = open_model_folder(folder)
    for name, file in model.code_files().items():
        if file.parent != model.path:
            shutil.copyfile(file, model.path / name)
    write_model_card(model.path)


def resolve_repo_id(repo_id: str) -> str:
    """Return `repo_id` as owner/name, after asking the Hub who is logged in; one request, made before a run trains.

    Raises UserError: the id is malformed, nobody is logged in, or the Hub cannot be reached.
    """
    try:
        hub.utils.validate_repo_id(repo_id)
    except hub.errors.HFValidationError as error:
        raise UserError(
            f"repo_id={repo_id!r} is no repository name ({str(error).split(':')[0].rstrip('.')}); "
            f"write owner/name, such as my-name/my-model"
        ) from error
    try:
        with hub_errors("the Hub could not be asked who is logged in", passing=(401,)):
            owner = hub.HfApi().whoami()["name"]
    except hub.errors.LocalTokenNotFoundError as error:
        raise UserError("not logged in to the Hub; run `hf auth login` or set HF_TOKEN") from error
    except hub.errors.HfHubHTTPError as error:
        raise UserError("the Hub does not accept the token; run `hf auth login` or set HF_TOKEN anew") from error
    return repo_id if "/" in repo_id else f"{owner}/{repo_id}"


def files_to_publish(model: ModelFolder) -> dict[str, Path | bytes]:
    """Path in the repository -> file on disk, or its content where paths of this machine were replaced by names.

    The card is not among them.

    Raises UserError: weights are damaged, code is missing, or a text file holds an access token of the Hub.
    """
    facts = RunFacts.read(model.path)
    if model.is_adapter and not facts.is_on_hub(base_of(model.path)):
        raise UserError(
            f"{model.path} is an adapter of {base_of(model.path)}, a folder of this machine that nobody else could "
            f"load it with; publish a whole model instead, made by: anyformer merge {model.path} OUT"
        )
    model.parameter_count()  # reads the header of every weight file: a damaged one is noticed before the upload
    picture = objective_facts(facts.recipe).words.picture
    patterns = [*PUBLISHED, *OF_THE_RUN, *([picture] if picture else [])] if facts.is_of_its_model else PUBLISHED
    texts = {
        file.name: file
        for file in sorted(model.path.iterdir())
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in patterns)
    }
    for file in [*texts.values(), model.path / "README.md"]:
        if file.suffix in (".yaml", ".json", ".jsonl", ".md") and file.is_file():
            with file.open("rb") as lines:
                if any(HUB_TOKEN.search(line) for line in lines):
                    raise UserError(f"{file} holds an access token of the Hub; remove it (and revoke it) first")
    published = {name: published_text(file) for name, file in texts.items() if name in LOCAL}
    modules = sorted(model.path.glob(f"{MODULE_FOLDERS}/config.json"))
    texts |= {str(file.relative_to(model.path)): file for file in modules}
    return texts | published | model.code_files() | {file.name: file for file in model.weight_files()}


def published_text(file: Path) -> Path | bytes:
    """The file, or its content without URL signatures, facts of loading, and paths (replaced by their names)."""
    is_yaml = file.suffix == ".yaml"
    content = parse_yaml(file.read_text(encoding="utf-8"), str(file)) if is_yaml else read_json(file)
    if file.name == "tokenizer_config.json":  # all other texts in it are tokens and templates
        public = {name: value for name, value in content.items() if name not in LOADING}
        public |= names_only({name: value for name, value in public.items() if name == "name_or_path"})
    else:
        own = of_its_model(file.parent, content)[0] if file.name == "run.json" else content
        public = secrets.without_signatures(names_only(own))
    if public == content:
        return file
    text = format_yaml(public) if is_yaml else json.dumps(public, indent=1, ensure_ascii=False)
    return text.encode()


@contextmanager
def hub_errors(what: str, passing: tuple[int, ...] = ()):
    """Turn errors of the Hub and of the connection into a UserError that begins with `what`.

    passing: HTTP statuses whose error is raised as it is.
    """
    try:
        yield
    except hub.errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in passing:
            raise
        reasons = {
            401: "nobody is logged in; run `hf auth login` or set HF_TOKEN",
            403: "the account that is logged in may not write there; choose a repository of yours",
            404: "the repository or branch does not exist",
        }
        again = "; run the same again" if status >= 500 or status in (408, 409, 412, 429) else ""
        reason = reasons.get(status) or _one_line(error.server_message or "no reason given")
        raise UserError(f"{what}: the Hub answered {status}, {reason}{again}") from error
    except hub.errors.OfflineModeIsEnabled as error:
        raise UserError(f"{what}: HF_HUB_OFFLINE is set; unset it to publish") from error
    except hub.errors.LocalTokenNotFoundError:
        raise
    except ValueError as error:  # the card's metadata, which the Hub checks before the upload
        raise UserError(f"{what}: {_one_line(str(error))}") from error
    except (hub.errors.HTTPError, OSError, RuntimeError) as error:  # RuntimeError: from the Xet client
        reason = _one_line(str(error) or type(error).__name__)
        raise UserError(f"{what}: no connection ({reason}); run the same again") from error


def _has_foreign_card(api, repo_id: str, revision: str | None) -> bool:
    """Whether the repository has a card that a person wrote or changed."""
    with hub_errors(f"the card of {repo_id} could not be read"):
        try:
            # Read by commit: the cached name of a branch may be out of date where another process has pushed.
            commit = api.repo_info(repo_id, revision=revision).sha
            card = api.hf_hub_download(repo_id, "README.md", revision=commit)
        except hub.errors.RemoteEntryNotFoundError:
            return False
    return MARKER not in Path(card).read_text(encoding="utf-8", errors="replace")


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")[:300]
