"""The message log as a reader sees it: names, ranges, lines. Knows no Spark."""
