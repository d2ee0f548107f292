"""Native transformers models <-> anyformer: one map of fields and weights per architecture, read in both directions."""
