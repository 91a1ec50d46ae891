"""The names that a class annotates, without what the annotations mean.

Lives here: `annotated_names`. May not: types (values/hints.py), an import of the package. Design: from Python
3.14 on an annotation is evaluated when somebody asks for it, and it may name a class that stands below, or
one that is imported for type checkers alone, as under `from __future__ import annotations`. A reader of
names alone must not evaluate it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def annotated_names(cls: type) -> Collection[str]:
        """Return the names that a class itself annotates."""
        return get_annotations(cls, format=Format.FORWARDREF)

else:

    def annotated_names(cls: type) -> Collection[str]:
        """Return the names that a class itself annotates."""
        names: Collection[str] = vars(cls).get("__annotations__", ())
        return names
