"""The next pixel of an image, row by row, as one of a few colours (ImageGPT, Chen et al. 2020)."""

import math
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from ..data.examples import Examples
from ..data.image_store import ImageStore
from ..data.sample_ids import row_ids
from ..images.color_clusters import fit_clusters, store_codes, to_bytes
from ..images.processors import prepare_images, read_labels
from ..recipes.schema import ObjectiveSection


class PixelsObjective:
    """Each pixel is predicted from those before it, the first one from a start token.

    An image of S x S pixels is a row of S * S tokens: the start token and all pixels but the last are read, all pixels
    are predicted. The start token is the last of the vocabulary, and never predicted.

    Args:
        processor: transformers' ImageGPT image processor; without clusters they are fitted to the first rows made, the
            training set's, and written into it.
        shape: (channels, height, width) of the images after resizing.
    """

    auto_class = "AutoModelForCausalLM"
    predicts_next = False  # labels stand beside what predicts them
    images = True

    def __init__(self, section: ObjectiveSection, processor, shape: tuple[int, int, int], seed: int = 0):
        self.section, self.processor, self.shape, self.seed = section, processor, shape, seed

    @property
    def clusters(self) -> np.ndarray:
        """Colours (K, 3) from -1 to 1."""
        return np.asarray(self.processor.clusters, dtype=np.float32)

    @property
    def channels(self) -> int:
        """Numbers that a colour is made of: 1 where all clusters are grey."""
        return 1 if np.ptp(self.clusters, axis=1).max() < 1e-4 else 3

    @property
    def length(self) -> int:
        """Pixels of an image."""
        return self.shape[1] * self.shape[2]

    def config_fields(self) -> dict:
        """Fields of a fresh model's config that belong to the objective."""
        number = len(self.clusters)
        return {
            "vocab_size": number + 1,
            "output_vocab_size": number,
            "max_position_embeddings": self.length,
            "tie_word_embeddings": False,
            "bos_token_id": number,
        }

    def rows(self, examples: Examples, cache: Path) -> "PixelRows":
        """Images as colour numbers; with objective.label_field their classes are kept for the linear probe."""
        store = prepare_images(examples, self.processor, self.shape, cache)
        if self.processor.clusters is None:
            self.processor.clusters = fit_clusters(store, self.section.clusters, cache, "objective.clusters")
        labels = read_labels(examples, self.section.label_field) if self.section.label_field else None
        return PixelRows(store, store_codes(store, self.clusters, cache), len(self.clusters), labels)

    def collator(self, packed: bool) -> "PixelCollator":
        """packed has no meaning here: each row is one image."""
        return PixelCollator()

    def final_metrics(self, names: list[str], loss: float) -> dict[str, float]:
        """Those of `names` that follow from the mean loss in nats per pixel."""
        bits = loss / math.log(2)
        known = {"bits_per_pixel": bits, "bits_per_dimension": bits / self.channels}
        return {name: known[name] for name in names if name in known}

    def pictures(self, codes) -> np.ndarray:
        """Colour numbers (B, S * S) -> bytes (B, S, S, 3)."""
        return to_bytes(self.clusters)[np.asarray(codes)].reshape(len(codes), *self.shape[1:], 3)

    def describe(self, rows: "PixelRows") -> str:
        """One line for people."""
        _, height, width = self.shape
        kind = "grey levels" if self.channels == 1 else "colours"
        return f"{len(rows):,} images of {rows.name}, {height} x {width} pixels of {len(self.clusters)} {kind}"


class PixelRows(Dataset):
    """Rows {"input_ids", "labels"} of S * S tokens each; `codes` are (N, S * S), `labels`, classes, (N,) or None."""

    is_packed = False

    def __init__(self, store: ImageStore, codes: np.ndarray, start: int, labels: np.ndarray | None):
        self.store, self.codes, self.start, self.labels = store, codes, start, labels
        self.fingerprint, self.name = store.fingerprint, store.name
        self.facts = store.facts | {"tokens": int(codes.size)}

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        labels = torch.from_numpy(self.codes[index].astype(np.int64))
        return {"input_ids": torch.cat([torch.tensor([self.start]), labels[:-1]]), "labels": labels}


class PixelCollator:
    """Rows -> one batch: input_ids and labels (B, T), which are aligned with the predictions: the model must not shift.

    They are there twice, as a decoder of ours calls such labels shift_labels.
    """

    def __call__(self, rows: list[dict]) -> dict:
        batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
        return batch | {"shift_labels": batch["labels"]} | row_ids(rows)
