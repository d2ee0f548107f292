"""Images: processors, augmentation, colour clusters."""
