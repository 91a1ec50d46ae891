"""Made-up installed distributions, whose RECORD is true until a test changes a file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def record_line(path: str, data: bytes, algorithm: str = "sha256") -> str:
    """One line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).decode().rstrip("=")
    return f"{path},{algorithm}={digest},{len(data)}"


def installed(site: Path, name: str, files: dict[str, bytes], *more: str) -> Path:
    """Make an installed distribution and return its RECORD."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = []
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
        lines.append(record_line(path, data))
    lines += [f"{info.name}/RECORD,,", f"{name}/__pycache__/a.cpython-312.pyc,,", *more]
    (info / "RECORD").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return info / "RECORD"


def sources(name: str, number: int) -> dict[str, bytes]:
    """Some files of a package."""
    return {f"{name}/m{i}.py": f"# {name} {i}\n".encode() * (i + 1) for i in range(number)}
