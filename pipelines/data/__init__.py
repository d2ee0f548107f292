"""Raw data to rows: sources, documents, examples, validation split, mixture, stores, packing."""
