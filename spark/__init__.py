"""The pipeline from the broker's message log to tables: see README.md beside this file."""
