"""Python values as JSON text and back, so that what comes back is equal to what went in.

Lives here: the codec, the shapes of annotations that msgspec cannot handle alone, exceptions as records, and
the results of SQL statements. May not: a name of the engine's own, such as a run or a step.

The way of an argument: `TypeCodec.encode` (codec.py) builds a shape for its annotation once
(shape_builder.py), writes the value, reads it back and compares (paths.py), and only then lets the text go.
"""

from __future__ import annotations
