"""Linear probe of a model of pixels: logistic regression on its averaged features (Chen et al. 2020, 2.3)."""

import numpy as np
import torch

from ..words import watched

MOST = 10_000  # training images that the regression is fitted to


@torch.no_grad()
def features(model, rows, indices, layer: int, batch_size: int) -> np.ndarray:
    """Float32 (n, D): hidden states before block `layer` (0: the embeddings), averaged over the tokens of each row."""
    means = []
    for start in watched(range(0, len(indices), batch_size), "probing, batch"):
        ids = torch.stack([rows[i]["input_ids"] for i in indices[start : start + batch_size]]).to(model.device)
        states = model.base_model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states[layer]
        means.append(states.float().mean(dim=1).cpu().numpy())
    return np.concatenate(means)


def linear_probe(model, train, test, *, batch_size: int = 64, seed: int = 0) -> float:
    """Accuracy on all rows of `test` of a regression fitted to at most MOST random rows of `train`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    layer, number = model.config.num_hidden_layers // 2, min(MOST, len(train))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(train))[:number])
    was_training = model.training
    model.eval()
    inputs = features(model, train, chosen, layer, batch_size)
    test_inputs = features(model, test, range(len(test)), layer, batch_size)
    model.train(was_training)
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(inputs, train.labels[chosen])
    return float((regression.predict(test_inputs) == test.labels).mean())
