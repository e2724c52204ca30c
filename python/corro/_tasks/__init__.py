"""Jobs whose ranks live in the tasks of another system: those of Spark, or the actors of Ray. See docs/design/spark.md."""
