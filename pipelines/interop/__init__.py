"""Native transformers models <-> anyformer: one table of fields and weights per lineage, read in both directions."""
