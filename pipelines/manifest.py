"""The manifest of a folder: sizes and SHA-256 of the files that it was written with, compared by every reader.

Checkpoints, folders of finished runs and entries of the cache have one. One core hashes about 1 GB a second.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import UserError

MANIFEST = "manifest.json"  # {file: {"size", "sha256"}}
LARGE = 2**26  # bytes; what is only shown takes the manifest's hash of larger files that nobody has touched since
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
OF_WEIGHTS = (*WEIGHT_FILES, "*.index.json", "config.json", "adapt??_config.json", "modules.json")
OF_WEIGHTS += ("[0-9]_*/config.json",)
# What decides a model's answers: weights, config, tokenizer, processor, code and recipe; not run.json or reports.
OF_ANSWERS = (*OF_WEIGHTS, "*.py", "*.model", "*.spm", "vocab.txt", "merges.txt", "*.jinja", "*config*.json")
OF_ANSWERS += ("*token*.json", "vocab.json", "clusters.json", "recipe.yaml")
# Files of settings that hold one JSON object each.
OBJECTS = ("config.json", "generation_config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json")
OBJECTS += ("special_tokens_map.json", "added_tokens.json", "preprocessor_config.json", "processor_config.json")
NEVER_EMPTY = ("config.json", "tokenizer.json", "preprocessor_config.json")
# Among them what a user may edit: defaults of generation, the place of an adapter's base, a recipe, and code, which
# the package may write anew.
MAY_CHANGE = ("generation_config.json", "adapter_config.json", "recipe.yaml", "*.py")
# What loading reads first, or beside the rest, where it stands in a folder.
READ_IF_THERE = (WEIGHTS, "chat_template.jinja", *(name for name in OBJECTS if name not in MAY_CHANGE))
Entries = dict[str, dict[str, Any]]  # {file: {"size", "sha256"}}


OUR_CODE = Path(__file__).parents[1] / "modeling"


def cache_folder(chosen: str | None = None) -> Path:
    """Where prepared data is kept: `chosen` (data.cache_dir), $ANYFORMER_CACHE or ~/.cache/anyformer."""
    return Path(chosen or os.environ.get("ANYFORMER_CACHE") or "~/.cache/anyformer").expanduser()


def sha(value: Any) -> str:
    """32 hexadecimal digits that identify a JSON value: keys of entries, fingerprints of data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_of(path: Path) -> list[int]:
    """Size, times of change and inode of a file, which differ as soon as it has been written again."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]


def hash_of(path: Path) -> str:
    """The SHA-256 of a file, read once in a process as long as nobody writes it."""
    return _hash_in_state(path.absolute(), tuple(state_of(path)))


@lru_cache(maxsize=4096)
def _hash_in_state(path: Path, state: tuple[int, ...]) -> str:
    return sha256(path)


def is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def files_of_answers(folder: Path, patterns: Iterable[str] = OF_ANSWERS) -> list[Path]:
    """The files in a model's folder that decide what it answers, without results that were written there."""
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path for path in files if not path.name.startswith("evaluation-"))


def manifest_of(folder: Path, files: Iterable[Path]) -> str:
    """The text of a manifest of some files in a folder."""
    entries = {str(file.relative_to(folder)): {"size": file.stat().st_size, "sha256": hash_of(file)} for file in files}
    return json.dumps(entries, indent=1)


def read_manifest(folder: Path) -> Entries:
    """The entries of a folder's manifest; empty where it has none. Raises UserError for a damaged one."""
    file = folder / MANIFEST
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError):
        raise UserError(f"{file} is damaged, so nothing says whether the model is whole; delete it to go on") from None
    is_ours = isinstance(entries, dict) and all(
        isinstance(entry, dict) and {"size", "sha256"} <= entry.keys() for entry in entries.values()
    )
    return entries if is_ours else {}


def find_change(folder: Path, hash_file: Callable[[Path], str] | None = None) -> str | None:
    """The first difference between a folder's files and its manifest, in words; None where nothing has changed.

    hash_file: sha256, or what knows hashes of files in the same state. A folder without a manifest counts as damaged.
    Raises PermissionError for a file that this user may not read, which is no damage.
    """
    try:
        entries = read_manifest(folder)
        changed = first_changed(folder, entries, hash_file)
    except PermissionError:
        raise
    except UserError:
        return f"{MANIFEST} cannot be read"
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read ({error.strerror})"
    if not entries:
        return f"its {MANIFEST} is missing or names no file"
    return None if changed is None else " ".join(changed)


def first_changed(
    folder: Path, entries: Entries, hash_file: Callable[[Path], str] | None = None
) -> tuple[str, str] | None:
    """(a file of a folder that is not that of its manifest's entry, how it differs); None where there is none."""
    for name, entry in entries.items():
        if not os.path.isfile(folder / name):
            return name, "is missing"
        size = (folder / name).stat().st_size
        if size != entry["size"]:
            return name, f"has {size} bytes instead of {entry['size']}"
    for name, entry in entries.items():
        if (hash_file or sha256)(folder / name) != entry["sha256"]:
            return name, "has changed since it was written"
    return None


def is_untouched(file: Path) -> bool:
    """Whether a large file has not been written since the manifest beside it, by the time of its last change."""
    state, manifest = file.stat(), file.parent / MANIFEST
    return state.st_size > LARGE and manifest.is_file() and state.st_ctime_ns < manifest.stat().st_ctime_ns


def check_saved_files(folder: str | Path, what: str) -> None:
    """Raise UserError for a file of a model that is damaged, added, or not the one it was saved with.

    A folder without a manifest has nothing to compare. Where its weights are whole and others, a person has saved
    another model into it, whose other files may differ, too. what: the argument that names the folder.
    """
    folder = Path(folder).expanduser()
    entries = {name: entry for name, entry in read_manifest(folder).items() if is_any(Path(name).name, OF_ANSWERS)}
    weights = {name: entry for name, entry in entries.items() if is_any(name, WEIGHT_FILES)}
    others = {name: entry for name, entry in entries.items() if name not in weights and not is_any(name, MAY_CHANGE)}
    changed, way_out = first_changed(folder, others), "put back the file that was saved"
    added = [name for name in READ_IF_THERE if entries and name not in entries and (folder / name).is_file()]
    if changed is None and added:
        changed, way_out = (added[0], "was added"), "remove it"
    if changed is not None and first_changed(folder, weights) is None:
        name, words = changed
        fault = words if words in ("is missing", "was added") else "has changed since it was saved with the weights"
        raise UserError(f"{what}={folder}: {name} {fault}; {way_out}, or delete {MANIFEST} if the change is meant")
    check_readable(folder, [name for name in OBJECTS if changed is not None or name not in others])


def check_readable(folder: str | Path, names: Iterable[str] = OBJECTS) -> None:
    """Raise UserError for damaged weights of a saved model, and for damaged files among `names`."""
    check_objects(folder, names)
    weight_files(Path(folder).expanduser())


def check_objects(folder: str | Path, names: Iterable[str] = OBJECTS) -> None:
    """Raise UserError for a file of settings, or a tokenizer.json, that is damaged."""
    for file in (Path(folder).expanduser() / name for name in names):
        if file.is_file():
            content = read_json(file)
            is_whole = isinstance(content, dict) and (content or file.name not in NEVER_EMPTY)
            if not is_whole or (file.name == "tokenizer.json" and "model" not in content):
                raise UserError(f"{file} is damaged, the settings that belong there are missing; save the model again")


def weight_files(folder: Path) -> list[Path]:
    """The files of weights that `from_pretrained` would read in a folder, index included; [] for none of safetensors.

    Raises UserError for a damaged file, and for a tensor that is not in the file that the index names.
    """
    adapter, single, index = (folder / name for name in ("adapter_model.safetensors", WEIGHTS, WEIGHTS_INDEX))
    for file in (single, *([] if (folder / "config.json").is_file() else [adapter])):
        if file.is_file():
            tensor_shapes(file)
            return [file]
    if not index.is_file():
        for file in folder.glob("*_model*.bin"):  # of torch.save: zip files, since torch 1.6
            with file.open("rb") as opened:
                begins = opened.read(2)
            if not begins or (begins == b"PK" and not zipfile.is_zipfile(file)):
                raise UserError(f"{file} is damaged, its end is missing; save the model again")
        return []
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict):
        raise UserError(f"{index} is damaged, it holds no weight_map; save the model again")
    shards = sorted({*places.values()})
    if missing := [name for name in shards if not (folder / name).is_file()]:
        raise UserError(f"{index} names {missing[0]}, which is missing; save the model again")
    tensors = {name: tensor_shapes(folder / name) for name in shards}
    if lost := [name for name, shard in places.items() if name not in tensors[shard]]:
        raise UserError(f"{index} names {places[lost[0]]} for {lost[0]}, which is not in it; save the model again")
    return [index, *(folder / name for name in shards)]


def read_json(file: Path, way_out: str = "save the model again") -> Any:
    """The content of a JSON file; raises UserError, which ends with `way_out`, for other content."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not readable as JSON ({error}); {way_out}") from error


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """{tensor: its shape} of a safetensors file, from its header; raises UserError for a damaged file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({error}); save the model again") from error
