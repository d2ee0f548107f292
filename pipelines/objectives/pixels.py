import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.batch_keys import row_ids
from ..data.rows import evenly_spread
from ..errors import UserError
from ..lazy import np, torch
from ..plugins import register_objective
from ..recipes.introspection import check_beside
from ..recipes.row_words import Words
from ..recipes.schema import ObjectiveSettings, doc
from ..storage.atomic import replaced_file
from ..words import counted, watched
from .answers import FinishedModel
from .base import Planned
from .data import Data
from .images import AnswersImages, ImageObjective, ReadsImages, StoredImages, image_setting
from .label_values import Classes
from .learns import Learns
from .scores import Scored
from .showing import image_text
from .text import PerplexityScores

PICTURE = "completions.png"
SCALE = 6  # each pixel of it is drawn as a square of this side
GAP = 2  # pixels between two images, drawn as large
MOST_PROBED = 10_000  # training images that the linear probe is fitted to


@dataclass
class PixelSettings(ObjectiveSettings):
    image_field: str = doc("column that holds the image", "image")
    label_field: str | None = doc("column that holds the class, for the metric linear_probe alone")
    image_size: int = doc(
        "images are resized to so many pixels a side, each of them a token", 32, at_least=2, at_most=2**12
    )
    clusters: int = doc(
        "colours, found by k-means over the pixels of the training images", 512, at_least=2, at_most=2**16
    )

    @property
    def pixels(self) -> int:
        """Pixels of an image, the tokens of a row."""
        return self.image_size**2


class Palette:
    """The colours of a processor of pixels, and the size of its images.

    clusters: colours (K, 3) from -1 to 1, float32. shape: (channels, height, width). channels: of a colour: 1 where all
    clusters are grey, else 3.
    """

    def __init__(self, processor):
        side = processor.size["height"]
        self.clusters, self.shape = np.asarray(processor.clusters, dtype=np.float32), (3, side, side)
        self.channels = 1 if (self.clusters.max(axis=1) - self.clusters.min(axis=1)).max() < 1e-4 else 3

    def pictures(self, codes):
        """Colour numbers (B, S * S) -> bytes (B, S, S, 3)."""
        from ..images.color_clusters import to_bytes

        return to_bytes(self.clusters)[np.asarray(codes)].reshape(len(codes), *self.shape[1:], 3)


class ReadsPixels(ReadsImages):
    """Images as colour numbers. Data.labels: {split: class numbers (N,)}, for the linear probe."""

    legend = (
        "an image reduced to the recipe's colours, darker to brighter [shades]; its pixels are predicted row by row, "
        "each from those before it"
    )

    def prepare(self, sources: dict, tokenizer: Any = None) -> Data:
        """With colours that are fitted to the training images in a fresh processor."""
        from ..images.color_clusters import fit_clusters
        from ..images.processors import image_gpt_processor, load_image_processor

        checkpoint = self.recipe.model.name_or_path
        if checkpoint is not None:
            processor = load_image_processor(checkpoint, self.recipe.trust_remote_code)
            self._check_of_checkpoint("image_size", processor.size["height"])
            if processor.clusters is not None:
                self._check_of_checkpoint("clusters", len(processor.clusters))
        else:
            processor = image_gpt_processor(self.settings.image_size)
        classes = {} if self.settings.label_field is None else self._read_classes(sources)
        data = Data(self.objective, self, processor, classes, sources=sources)
        if processor.clusters is None:
            store = self._store(data, sources["train"])
            processor.clusters = fit_clusters(store, self.settings.clusters, self.cache)
        return data

    def _store(self, data: Data, source):
        from ..images.processors import prepare_images

        side = data.processor.size["height"]
        return prepare_images(source, data.processor, (3, side, side), self.cache)

    def try_examples(self, examples: list, data: Data | None) -> None:
        from ..images.image_store import decode

        for place, row in examples:
            decode(row[self.settings.image_field], 3, image_setting(self.objective), place)

    def _read_classes(self, sources: dict) -> dict:
        """Split -> class numbers (N,) of its images. Raises UserError for a value that is no class."""
        column = self.settings.label_field
        classes = Classes(f"objective.label_field={column!r}", column, sources, self.cache)
        return {
            split: np.array([classes.number(row[column], place) for place, row in examples.only(column)])
            for split, examples in sources.items()
        }

    def _check_of_checkpoint(self, name: str, own: int) -> None:
        """Raise UserError where a setting is neither its default nor the checkpoint's value `own`, which is used."""
        base = self.recipe.model.name_or_path
        why = f"has no effect with model.name_or_path={base}, which brings {own}; set it to {own}"
        check_beside("objective", self.settings, [(f"{name}=", getattr(self.settings, name) != own, why)])

    def rows(self, data: Data, source, split: str) -> "PixelRows":
        """Images as colour numbers; with objective.label_field also their classes, for the linear probe."""
        from ..images.color_clusters import store_codes

        store, clusters = self._store(data, source), Palette(data.processor).clusters
        return PixelRows(store, store_codes(store, clusters, self.cache), len(clusters), data.labels.get(split))

    def collator(self, data: Data, packed: bool) -> Callable[[list[dict]], dict]:
        return stack_pixels

    def describe(self, data: Data, rows: "PixelRows") -> str:
        palette = Palette(data.processor)
        _, height, width = palette.shape
        kind, number = "grey levels" if palette.channels == 1 else "colours", len(palette.clusters)
        return f"{counted(len(rows), 'image')} of {rows.name}, {height} x {width} pixels of {number} {kind}"

    def show(self, console, data: Data, rows, number: int, row: dict) -> None:
        codes = row["labels"].tolist()
        console.rule(f"row {number}: {len(codes)} pixels, {len(set(codes))} colours", align="left")
        picture = torch.from_numpy(Palette(data.processor).pictures([codes])[0])
        console.print(image_text(picture.permute(2, 0, 1)))


def config_sizes(colours: int, pixels: int) -> dict[str, Any]:
    """Config fields that follow from the number of colours and the number of pixels in an image."""
    vocabulary = {"vocab_size": colours + 1, "output_vocab_size": colours, "tie_word_embeddings": False}
    return vocabulary | {"max_position_embeddings": pixels}


class LearnsPixels(Learns):
    """The sizes of the vocabulary of colours."""

    def config_fields(self) -> dict[str, Any]:
        palette = Palette(self.data.processor)
        number, pixels = len(palette.clusters), palette.shape[1] * palette.shape[2]
        return config_sizes(number, pixels) | {"bos_token_id": number}


class PixelScores(PerplexityScores):
    """Metrics of the summed loss, and the linear probe."""

    def of_answers(self, finished: FinishedModel, rows, numbers: Sequence[int]) -> Scored:
        if "linear_probe" not in self.recipe.evaluation.metrics:
            return Scored()
        sizes = {"batch_size": self.recipe.training.per_device_train_batch_size, "seed": self.objective.seed}
        return Scored({"linear_probe": linear_probe(finished.model, self.data.rows["train"], rows, **sizes)})


class CompletesImages(AnswersImages):
    """A vector for each image, and images that are completed from their upper halves."""

    finishes_on = "one"

    @property
    def channels(self) -> int:
        return Palette(self.processor).channels

    def check_prompts(self, most: int) -> None:
        """Raise UserError for images of more pixels than the model has positions."""
        side = self.settings.image_size
        if side**2 > most:
            raise UserError(
                f"objective.image_size={side} makes {side**2} pixels, more than the model's "
                f"max_position_embeddings={most}; at most {math.isqrt(most)} works"
            )

    def samples(self, finished: FinishedModel, splits, scored) -> list[dict]:
        """No samples, but a picture in the run's folder."""
        split = list(splits)[-1]
        if split != "train":
            self.draw(finished, splits[split], Path(finished.path) / PICTURE)
        return []

    def draw(self, finished: FinishedModel, rows, path: Path) -> bool:
        """Write a PNG of images, evenly spread over the rows, that are completed from their upper halves."""
        import PIL.Image

        number = self.recipe.evaluation.sample_images
        if number:
            palette, originals = Palette(self.processor), np.asarray(rows.codes[evenly_spread(len(rows), number)])
            completed = complete(finished.model, palette, originals, seed=self.objective.seed)
            with replaced_file(path) as staged:
                PIL.Image.fromarray(completion_grid(palette, originals, completed)).save(staged, format="PNG")
        return number > 0


@register_objective
class Pixels(ImageObjective):
    """The next pixel of an image, row by row, as one of a few colours (ImageGPT, Chen et al. 2020).

    An image of S x S pixels is a row of S * S tokens: the start token and all pixels but the last are read, all pixels
    are predicted. The start token is the last of the vocabulary, and is never predicted. The processor is transformers'
    ImageGPTImageProcessor; if it has no clusters, they are fitted to the training images and written into it.
    """

    name = "pixels"
    Settings = PixelSettings
    Reads, Learns, Scores, Answers = ReadsPixels, LearnsPixels, PixelScores, CompletesImages
    auto_class = "AutoModelForCausalLM"
    compares = "pixels"
    default_metrics = ("bits_per_pixel",)
    words = Words(
        row="image",
        step="images x {0.pixels} pixels",
        loss="nats per pixel",
        use=f"look at {{folder}}/{PICTURE}: upper half, completion, original",
        picture=PICTURE,
    )

    def check(self) -> None:
        super().check()
        section, fields = self.settings, self.recipe.model.fields
        pixels, most = section.pixels, fields.get("max_position_embeddings")
        if most is not None and most < pixels:
            raise UserError(
                f"model.max_position_embeddings={most} must be at least {pixels}, as objective.image_size="
                f"{section.image_size} makes {pixels} pixels; remove it"
            )
        if "linear_probe" in self.recipe.evaluation.metrics and section.label_field is None:
            raise UserError("evaluation.metrics: linear_probe needs objective.label_field, the column of the classes")

    def planned(self) -> Planned:
        pixels = self.settings.pixels
        return Planned((pixels, pixels), fields=config_sizes(self.settings.clusters, pixels))


class PixelRows(StoredImages):
    """Rows {"input_ids", "labels"} of S * S tokens each. codes: (N, S * S) colours. labels: (N,) classes, or None."""

    def __init__(self, store, codes, start: int, labels):
        super().__init__(store)
        self.codes, self.start, self.labels = codes, start, labels
        self.facts = store.facts | {"tokens": int(codes.size)}

    def __getitem__(self, index: int) -> dict:
        labels = torch.from_numpy(self.codes[self.inside(index)].astype(np.int64))
        return {"input_ids": torch.cat([torch.tensor([self.start]), labels[:-1]]), "labels": labels}


def stack_pixels(rows: list[dict]) -> dict:
    """Rows -> one batch: input_ids and labels (B, T), aligned with the predictions: the model must not shift them.

    The labels are there twice, as anyformer's decoders call labels that need no shift `shift_labels`.
    """
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
    return batch | {"shift_labels": batch["labels"]} | row_ids(rows)


# ---- the linear probe: logistic regression on averaged features (Chen et al. 2020, 2.3)


def features(model, rows, indices, layer: int, batch_size: int) -> "np.ndarray":
    """Float32 (n, D): hidden states before block `layer` (0: the embeddings), averaged over the tokens of each row."""
    means = []
    for start in watched(range(0, len(indices), batch_size), "probing, batch"):
        ids = torch.stack([rows[i]["input_ids"] for i in indices[start : start + batch_size]]).to(model.device)
        with torch.no_grad():
            outputs = model.base_model(input_ids=ids, output_hidden_states=True, use_cache=False)
        means.append(outputs.hidden_states[layer].float().mean(dim=1).cpu().numpy())
    return np.concatenate(means)


def linear_probe(model, train, test, *, batch_size: int = 64, seed: int = 0) -> float:
    """Accuracy on all rows of `test` of a regression fitted to at most MOST_PROBED random rows of `train`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    layer, number = model.config.num_hidden_layers // 2, min(MOST_PROBED, len(train))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(train))[:number])
    was_training = model.training
    model.eval()
    inputs = features(model, train, chosen, layer, batch_size)
    test_inputs = features(model, test, range(len(test)), layer, batch_size)
    model.train(was_training)
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(inputs, train.labels[chosen])
    return float(regression.score(test_inputs, test.labels))


# ---- images that a model completes from their upper halves: a picture (upper half | completion | original)


def complete(model, palette: Palette, codes: "np.ndarray", *, seed: int) -> "np.ndarray":
    """The colour numbers (B, S * S) with their second halves replaced by what the model samples."""
    codes = np.asarray(codes).astype(np.int64)
    half = palette.shape[1] // 2 * palette.shape[2]
    start = np.full((len(codes), 1), len(palette.clusters))
    prompt = torch.from_numpy(np.concatenate([start, codes[:, :half]], axis=1)).to(model.device)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        tokens = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=codes.shape[1] - half,
            min_new_tokens=codes.shape[1] - half,
            do_sample=True,
            temperature=1.0,
            top_k=0,
        )
    return tokens[:, 1:].cpu().numpy()


def completion_grid(palette: Palette, originals: "np.ndarray", completed: "np.ndarray") -> "np.ndarray":
    """A picture as bytes (height, width, 3): a row per image with its upper half, its completion, and the original."""
    whole, completions = palette.pictures(originals), palette.pictures(completed)
    seen = whole.copy()
    seen[:, whole.shape[1] // 2 :] = 128
    images = np.stack([seen, completions, whole], axis=1)
    images = np.pad(images, ((0, 0), (0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=255)
    grid = images.swapaxes(1, 2).reshape(-1, 3 * images.shape[3], 3)[:-GAP, :-GAP]
    return grid.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
