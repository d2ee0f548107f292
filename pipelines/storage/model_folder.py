"""Model folders: a saved model's config, weights and the code files it loads with."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.modeling.families import FAMILIES

from ..adapters import ADAPTED_CONFIG, ADAPTER_WEIGHTS, check_weights, is_adapter
from ..errors import UserError
from ..manifest import (
    MANIFEST,
    MAY_CHANGE,
    OUR_CODE,
    WEIGHTS,
    WEIGHTS_INDEX,
    check_saved_files,
    files_of_answers,
    is_any,
    manifest_of,
    read_json,
    tensor_shapes,
    weight_files,
)
from .atomic import write_atomically
from .checkpoints import list_checkpoints

PROCESSORS = ("preprocessor_config.json", "processor_config.json", "tokenizer_config.json")


@dataclass(frozen=True)
class ModelFolder:
    """A saved model on disk. `open_model_folder` makes one and checks that the folder holds a model."""

    path: Path
    config: dict[str, Any]

    @property
    def is_ours(self) -> bool:
        """Whether the model is of an anyformer family, whose code this package has."""
        return self.config.get("model_type") in FAMILIES

    @property
    def is_adapter(self) -> bool:
        """Whether its weights are an adapter's; `config` is then the adapted model's."""
        return is_adapter(self.path)

    @property
    def auto_map(self) -> dict[str, Any]:
        """Classes that the model loads with, by Auto class: those of its config, tokenizer and processors."""
        joined = dict(self.config.get("auto_map") or {})
        for name in PROCESSORS:
            if (self.path / name).is_file():
                content = read_json(self.path / name)
                for part in (content, *content.values()):  # a processor's file nests those of its parts
                    classes = part.get("auto_map") or {} if isinstance(part, dict) else {}
                    # Older tokenizers of transformers list only the two classes, slow and fast.
                    joined |= classes if isinstance(classes, dict) else {"AutoTokenizer": classes}
        return joined

    def weight_files(self) -> list[Path]:
        """The files `from_pretrained` would read, index included.

        Raises UserError: there are none, or a shard that the index names is missing.
        """
        if self.is_adapter:
            check_weights(self.path)
            return [self.path / ADAPTER_WEIGHTS]
        files = weight_files(self.path)
        if not files:
            raise UserError(f"{self.path} holds no {WEIGHTS} or {WEIGHTS_INDEX}; save the model with save_pretrained")
        return files

    def parameter_count(self) -> int:
        """Stored parameters, a tied head counted once, from the headers of the weight files.

        Raises UserError for a file that is no complete safetensors file.
        """
        files = (file for file in self.weight_files() if file.suffix == ".safetensors")
        return sum(math.prod(shape) for file in files for shape in tensor_shapes(file).values())

    def code_files(self) -> dict[str, Path]:
        """Every code file the model loads with, by name: those of `auto_map` and all siblings they import.

        Files that the folder of an anyformer model lacks are taken from the installed package.

        Raises:
            UserError: a file is missing and cannot be supplied, because the model is not ours or because the files
                in the folder are of another version, with which new files must not be mixed.
        """
        from transformers.dynamic_module_utils import get_relative_imports

        if self.is_adapter:
            return {}  # its base model has them
        if self.is_ours and not self.config.get("auto_map"):
            raise UserError(
                f"{self.path / 'config.json'} has no auto_map, so the model cannot load without anyformer; load it "
                f"with from_pretrained and save it again"
            )
        files: dict[str, Path] = {}
        modules = _auto_map_modules(self.auto_map)
        while modules:
            name = f"{modules.pop()}.py"
            if name in files:
                continue
            file = self.path / name
            if not file.is_file() and self.is_ours:
                file = OUR_CODE / name
            if not file.is_file():
                raise UserError(f"{self.path} lacks {name}, which its code needs; save the model again to write it")
            files[name] = file
            modules |= set(get_relative_imports(file))
        self._check_one_version(files)
        return dict(sorted(files.items()))

    def _check_one_version(self, files: dict[str, Path]) -> None:
        supplied = [name for name, file in files.items() if file.parent == OUR_CODE]
        if not supplied:
            return
        for name, file in files.items():
            if name not in supplied and file.read_bytes() != (OUR_CODE / name).read_bytes():
                raise UserError(
                    f"{self.path} lacks {supplied[0]}, and its {name} is of another anyformer version; load the model "
                    f"with from_pretrained and save it again"
                )


def remove_supplied_code(folder: Path) -> None:
    """Delete from a saved anyformer model the code files that the installed package has, too, byte for byte.

    `from_pretrained` with the package needs none, and `code_files` supplies them again.
    """
    for file in folder.glob("*.py"):
        installed = OUR_CODE / file.name
        if installed.is_file() and installed.read_bytes() == file.read_bytes():
            file.unlink()


def write_manifest(folder: Path) -> None:
    """Write the manifest of a finished run's folder, which every command that reads the model compares."""
    files = [file for file in files_of_answers(folder) if not is_any(file.name, MAY_CHANGE)]
    write_atomically(folder / MANIFEST, manifest_of(folder, files))


def open_model_folder(folder: Path | str) -> ModelFolder:
    """Return the saved model in `folder`; raise UserError where there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; name the folder of a finished run or of a saved model")
    file = folder / (ADAPTED_CONFIG if is_adapter(folder) else "config.json")
    if not file.is_file() and not is_adapter(folder):
        checkpoints = list_checkpoints(folder)
        hint = f"finish the run, or name {checkpoints[0]}" if checkpoints else "name one written by save_pretrained"
        raise UserError(f"{folder} is no model folder, config.json is missing; {hint}")
    config = read_json(file) if file.is_file() else {}
    if not isinstance(config, dict):
        raise UserError(f"{file} holds no settings; save the model again")
    model = ModelFolder(folder, config)
    model.weight_files()
    check_saved_files(folder, "MODEL")
    return model


def _auto_map_modules(auto_map: dict[str, Any]) -> set[str]:
    """Module names in an auto_map, whose values are "module.Class" or lists of such (slow and fast tokenizer)."""
    modules = set()
    for value in auto_map.values():
        for reference in value if isinstance(value, list | tuple) else [value]:
            # "owner/name--module.Class" is code in another repository, which transformers downloads.
            if reference is not None and "--" not in reference:
                modules.add(reference.split(".")[0])
    return modules
