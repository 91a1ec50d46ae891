"""The example of a shop: docs/tutorial/shop.md."""
