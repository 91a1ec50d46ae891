"""Rules for the SQL sources that can be checked in their text; `python -m tests.style.lint` runs them."""
