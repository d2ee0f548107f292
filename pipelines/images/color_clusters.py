"""Colours as words: k-means over the pixels of the training images (Chen et al. 2020, section 3.1).

A pixel is three numbers from -1 to 1, as transformers' ImageGPT image processor has them; grey images have three equal
ones.
"""

import json
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..storage.cache import cached_folder, sha
from .image_store import ImageStore

SAMPLE = 1 << 20  # pixels that the clusters are fitted to, evenly spread over all
EXACT = 1 << 12  # up to so many different colours are clustered at once, more of them in mini-batches


def to_unit(pixels: np.ndarray) -> np.ndarray:
    """Bytes (..., C) of grey or colour pixels -> float32 (..., 3) from -1 to 1."""
    wide = np.broadcast_to(pixels, (*pixels.shape[:-1], 3))
    return wide.astype(np.float32) / np.float32(127.5) - 1


def to_bytes(colors: np.ndarray) -> np.ndarray:
    """The inverse of to_unit, for colour."""
    return np.rint((np.asarray(colors) + 1) * 127.5).clip(0, 255).astype(np.uint8)


def sample_pixels(store: ImageStore, number: int = SAMPLE) -> np.ndarray:
    """Bytes (n, C): pixels at a fixed distance from each other through all images."""
    count, channels, height, width = store.pixels.shape
    total = count * height * width
    places = np.linspace(0, total - 1, min(number, total)).astype(np.int64)
    image, inside = np.divmod(places, height * width)
    return store.pixels.reshape(count, channels, -1)[image, :, inside]


def fit_clusters(store: ImageStore, number: int, cache: Path) -> np.ndarray:
    """Centres float32 (number, 3) of the training images' colours, from dark to bright; kept in the cache.

    Raises UserError where there are fewer colours than clusters.
    """

    def build(folder: Path) -> None:
        from sklearn.cluster import KMeans, MiniBatchKMeans

        colors, counts = np.unique(sample_pixels(store), axis=0, return_counts=True)
        if len(colors) < number:
            raise UserError(
                f"objective.clusters={number}, but the training images have {len(colors)} different colours only"
            )
        kmeans = KMeans if len(colors) <= EXACT else MiniBatchKMeans
        settings = {} if kmeans is KMeans else {"batch_size": 1 << 14}
        fitted = kmeans(number, n_init=3, random_state=0, **settings).fit(to_unit(colors), sample_weight=counts)
        centres = fitted.cluster_centers_.astype(np.float32)
        centres = centres[np.lexsort((*centres.T, centres.sum(axis=1).round(4)))]
        (folder / "clusters.json").write_text(json.dumps(centres.tolist()))

    key = sha([store.fingerprint, number])
    folder = cached_folder(cache, "clusters", key, build)
    return np.array(json.loads((folder / "clusters.json").read_text()), dtype=np.float32)


def quantise(pixels: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Bytes (..., C) -> number of the nearest cluster (...), uint16, as the image processor finds it."""
    from scipy.cluster.vq import vq

    flat = to_unit(pixels.reshape(-1, pixels.shape[-1]))
    colors, inverse = np.unique(flat, axis=0, return_inverse=True)
    nearest, _ = vq(colors, clusters)
    return nearest.astype(np.uint16)[inverse.ravel()].reshape(pixels.shape[:-1])


def store_codes(store: ImageStore, clusters: np.ndarray, cache: Path) -> np.ndarray:
    """The images of a store as clusters' numbers, uint16 (N, height * width) row by row, mapped from the cache."""
    count, _, height, width = store.pixels.shape
    shape = (count, height * width)

    def build(folder: Path) -> None:
        with (folder / "codes.bin").open("wb") as file:
            for start in range(0, count, 1024):
                pixels = store.pixels[start : start + 1024].transpose(0, 2, 3, 1)
                file.write(quantise(pixels, clusters).tobytes())

    key = sha([store.fingerprint, clusters.tolist()])
    folder = cached_folder(cache, "codes", key, build)
    return np.memmap(folder / "codes.bin", dtype=np.uint16, mode="r", shape=shape)
