"""Where images and features come from: files, datasets, batches."""
