"""A Django shop whose orders are fulfilled by workflows; README.md, "In your own transaction"."""
