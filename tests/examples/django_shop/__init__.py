"""A Django shop whose orders are fulfilled by workflows; docs/how-to/django.md."""
