"""The example of a pipeline of items: docs/tutorial/etl.md."""
