"""Adapters that break the contract, as shell scripts: each with the error code and the rule that it breaks.

Lives here: the table, and `write`, which makes a program of a script. Scripts read nothing from stdin: the
contract does not demand it.
"""

from __future__ import annotations

import os
from pathlib import Path

PENDING = '{"v":1,"status":"pending","token":"t"}'
DONE = '{"v":1,"status":"done","outcome":"ok","value":{"bool":true}}'

ANSWERS: dict[str, tuple[str, str]] = {
    "nothing": ("json", "true"),
    "blank": ("json", "echo"),
    "junk": ("json", "echo job submitted"),
    "null": ("object", "echo null"),
    "list": ("object", "echo '[]'"),
    "half": ("json", 'printf \'{"v":1,"status":"pend\''),
    "comma": ("json", 'echo \'{"v":1,"status":"pending","token":"t",}\''),
    "two_documents": ("one_document", f"echo '{PENDING}{PENDING}'"),
    "log_line_behind": ("one_document", f"echo '{PENDING}'; echo done"),
    "duplicate_key": ("duplicate_key", 'echo \'{"v":1,"status":"pending","token":"t","token":"u"}\''),
    "duplicate_inside": (
        "duplicate_key",
        'echo \'{"v":1,"status":"done","outcome":"ok","value":{"a":1,"a":1}}\'',
    ),
    "nan": ("number", 'echo \'{"v":1,"status":"done","outcome":"ok","value":NaN}\''),
    "infinity": ("number", 'echo \'{"v":1,"status":"done","outcome":"ok","value":-Infinity}\''),
    "huge_float": ("number", 'echo \'{"v":1,"status":"done","outcome":"ok","value":1e999}\''),
    "huge_integer": ("number", 'echo \'{"v":1,"status":"done","outcome":"ok","value":9223372036854775808}\''),
    "surrogate": ("text", 'echo \'{"v":1,"status":"pending","token":"\\ud800"}\''),
    "nul": ("text", 'printf %s \'{"v":1,"status":"pending","token":"\\u0000"}\''),
    "nul_in_a_key": ("text", 'printf %s \'{"v":1,"status":"pending","token":"t","\\u0000":1}\''),
    "raw_nul": ("json", 'printf \'{"v":1,"status":"pending","token":"a\\000b"}\''),
    "latin_1": ("utf8", 'printf \'{"v":1,"status":"pending","token":"\\351"}\''),
    "byte_order_mark": ("utf8", f"printf '\\357\\273\\277{PENDING}'"),
    "deep": ("depth", "head -c 200 /dev/zero | tr '\\0' '['; head -c 200 /dev/zero | tr '\\0' ']'"),
    "very_deep": (
        "depth",
        "head -c 500000 /dev/zero | tr '\\0' '['; head -c 500000 /dev/zero | tr '\\0' ']'",
    ),
    "too_long": ("size", f"echo '{PENDING}'; head -c 2097152 /dev/zero | tr '\\0' ' '"),
    "far_too_long": ("size", "exec cat /dev/zero"),
    "far_too_chatty": ("stderr", "exec cat /dev/zero >&2"),
    "no_version": ("version", 'echo \'{"status":"pending","token":"t"}\''),
    "other_version": ("version", 'echo \'{"v":2,"status":"pending","token":"t"}\''),
    "version_text": ("version", 'echo \'{"v":"1","status":"pending","token":"t"}\''),
    "version_true": ("version", 'echo \'{"v":true,"status":"pending","token":"t"}\''),
    "no_status": ("status", "echo '{\"v\":1}'"),
    "other_status": ("status", 'echo \'{"v":1,"status":"running","token":"t"}\''),
    "no_token": ("token", 'echo \'{"v":1,"status":"pending"}\''),
    "empty_token": ("token", 'echo \'{"v":1,"status":"pending","token":""}\''),
    "number_token": ("token", 'echo \'{"v":1,"status":"pending","token":7}\''),
    "long_token": ("token", f"echo '{PENDING[:-3]}'$(head -c 66000 /dev/zero | tr '\\0' x)'\"}}'"),
    "pause_below_zero": (
        "poll_after_ms",
        'echo \'{"v":1,"status":"pending","token":"t","poll_after_ms":-1}\'',
    ),
    "pause_text": (
        "poll_after_ms",
        'echo \'{"v":1,"status":"pending","token":"t","poll_after_ms":"5s"}\'',
    ),
    "message_number": ("message", 'echo \'{"v":1,"status":"pending","token":"t","message":5}\''),
    "progress_percent": ("progress", 'echo \'{"v":1,"status":"pending","token":"t","progress":40}\''),
    "no_outcome": ("outcome", 'echo \'{"v":1,"status":"done","value":{"bool":true}}\''),
    "no_result": ("result", 'echo \'{"v":1,"status":"done","outcome":"ok"}\''),
    "ok_with_error": ("result", 'echo \'{"v":1,"status":"done","outcome":"ok","error":{"message":"x"}}\''),
    "two_results": (
        "result",
        f'echo \'{{"v":1,"status":"done","outcome":"ok","value":1,"result":"{"0" * 64}"}}\'',
    ),
    "short_id": ("id", 'echo \'{"v":1,"status":"done","outcome":"ok","result":"c0ffee"}\''),
    "upper_case_id": ("id", f'echo \'{{"v":1,"status":"done","outcome":"ok","result":"{"A" * 64}"}}\''),
    "id_with_newline": (
        "id",
        f'printf %s \'{{"v":1,"status":"done","outcome":"ok","result":"{"0" * 64}\\n"}}\'',
    ),
    "error_text": ("error", 'echo \'{"v":1,"status":"done","outcome":"error","error":"it broke"}\''),
    "error_without_message": ("error", 'echo \'{"v":1,"status":"failed","retryable":true,"error":{}}\''),
    "error_stack_text": (
        "error",
        'echo \'{"v":1,"status":"done","outcome":"error","error":{"message":"x","stack":"here"}}\'',
    ),
    "failed_without_retryable": (
        "retryable",
        'echo \'{"v":1,"status":"failed","error":{"message":"x"}}\'',
    ),
    "objects_without_result": (
        "objects",
        'echo \'{"v":1,"status":"done","outcome":"ok","value":1,"objects":[]}\'',
    ),
}
"""Answers with exit code 0 that are no answers: the broken rule, and the script."""

EXITS: dict[str, tuple[bool, str, str]] = {
    "exit_3_with_an_answer": (True, "adapter_exit", f"echo '{DONE}'; exit 3"),
    "exit_1": (True, "adapter_exit", "exit 1"),
    "exit_75": (True, "adapter_exit", "exit 75"),
    "exit_64": (False, "adapter_exit", "exit 64"),
    "exit_65": (False, "adapter_exit", "exit 65"),
    "exit_77": (False, "adapter_exit", "exit 77"),
    "exit_78": (False, "adapter_exit", "exit 78"),
    "exit_126": (False, "adapter_broken", "exec /dev/null"),
    "exit_127": (False, "adapter_broken", "exec no_such_command_at_all"),
    "killed": (True, "adapter_exit", "kill -9 $$"),
    "hangs": (True, "adapter_timeout", "exec sleep 600"),
    "ignores_sigterm": (True, "adapter_timeout", "trap '' TERM; while :; do sleep 1; done"),
    "grandchild_has_stdout": (True, "adapter_timeout", "sleep 600 & wait"),
}
"""Ways to end without an answer: whether a retry may help, the error code, and the script."""


def write(folder: Path, name: str, script: str, interpreter: str = "/bin/sh") -> str:
    """Make a program of a script and return its path."""
    path = folder / name
    path.write_text(f"#!{interpreter}\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return os.fspath(path)
