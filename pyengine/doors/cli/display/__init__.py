"""How runs and their journals look on a terminal, and in other forms.

Lives here: tables that fit their terminal, journals as lines, cut ids and the ids that they stand for, the
forms of an answer and of a log. May not: contain SQL, or do the work of a command.
"""

from __future__ import annotations

__all__: list[str] = []
