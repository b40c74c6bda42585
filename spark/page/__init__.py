"""What `spark.gold.summary` gives, for a person: lines of a terminal, or one HTML file. Pure: no Spark."""
