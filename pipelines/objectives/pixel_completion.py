"""Images that a model of pixels completes from their upper halves: a picture (upper half | completion | original)."""

from pathlib import Path

import numpy as np
import torch

from ..data.rows import evenly_spread
from ..storage.atomic import replaced_file

SCALE = 6  # each pixel is drawn as a square of this side
GAP = 2  # pixels between two images, drawn as large


@torch.no_grad()
def complete(model, palette, codes: np.ndarray, *, seed: int) -> np.ndarray:
    """The colour numbers (B, S * S) with their second halves replaced by what the model samples."""
    codes = np.asarray(codes).astype(np.int64)
    half = palette.shape[1] // 2 * palette.shape[2]
    start = np.full((len(codes), 1), len(palette.clusters))
    prompt = torch.from_numpy(np.concatenate([start, codes[:, :half]], axis=1)).to(model.device)
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
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


def completion_grid(palette, originals: np.ndarray, completed: np.ndarray) -> np.ndarray:
    """A picture as bytes (height, width, 3): a row per image with its upper half, its completion, and the original."""
    whole, completions = palette.pictures(originals), palette.pictures(completed)
    seen = whole.copy()
    seen[:, whole.shape[1] // 2 :] = 128
    rows = []
    for images in zip(seen, completions, whole):
        drawn = [image.repeat(SCALE, axis=0).repeat(SCALE, axis=1) for image in images]
        gap = np.full((drawn[0].shape[0], GAP * SCALE, 3), 255, dtype=np.uint8)
        rows += [np.concatenate([drawn[0], gap, drawn[1], gap, drawn[2]], axis=1)]
        rows += [np.full((GAP * SCALE, rows[0].shape[1], 3), 255, dtype=np.uint8)]
    return np.concatenate(rows[:-1])


def write_completions(path: Path, model, palette, rows, number: int, seed: int) -> Path:
    """Complete `number` images, evenly spread over the rows, and write the picture as PNG."""
    import PIL.Image

    chosen = evenly_spread(len(rows), number)
    originals = np.asarray(rows.codes[chosen])
    grid = completion_grid(palette, originals, complete(model, palette, originals, seed=seed))
    with replaced_file(path) as staged:
        PIL.Image.fromarray(grid).save(staged, format="PNG")
    return path
