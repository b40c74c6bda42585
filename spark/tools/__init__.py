"""Programs beside the pipeline."""
